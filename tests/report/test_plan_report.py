# SPDX-License-Identifier: Apache-2.0
"""A plan as text and as a page: every way and figure is there, whatever the numbers are."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from feedrate.figures import ASSUMED, GIVEN, MEASURED, STORED, Figure
from feedrate.plan.results import Estimate, Plan
from feedrate.report.figures import TIE, draw_estimate, format_spread, list_marks, say_figure, short_time
from feedrate.report.lines import count_cells
from feedrate.report.plan import draw_plan
from feedrate.report.plan_page import draw_plan_page
from support.plans import IN_PLACE, PACKED, make_extreme_plan, make_node, make_plan, make_survey, near

WIDTHS = (80, 100, 140)


def words(text: str) -> str:
    return " ".join(text.split())


def list_columns(text: str) -> list[str]:
    """Return the words of the table's two lines of heads."""
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.lstrip().startswith(("way ", "before ")))
    return [*lines[at - 1].split(), *lines[at].split()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("plan", [make_plan(), make_extreme_plan()], ids=["usual", "extreme"])
def test_no_line_is_wider_than_the_terminal(plan: Plan, width: int) -> None:
    for text in (draw_plan(plan, width),):
        assert [line for line in text.splitlines() if count_cells(line) > width] == []


@pytest.mark.parametrize("width", [*WIDTHS, None])
@pytest.mark.parametrize("plan", [make_plan(), make_extreme_plan()], ids=["usual", "extreme"])
def test_every_column_is_there_at_every_width(plan: Plan, width: int | None) -> None:
    heads = set(list_columns(draw_plan(plan, width)))
    assert {"before", "first", "later", "whole", "run", "pays", "after", "limit"} <= heads


def test_in_a_pipe_every_way_is_one_line_with_its_whole_name() -> None:
    plan = make_extreme_plan()
    lines = draw_plan(plan).splitlines()
    for way in plan.ways:
        assert len([line for line in lines if line[2:].startswith(way.name)]) == 1 or not way.fits


@pytest.mark.parametrize("width", WIDTHS)
def test_names_that_are_wrapped_lose_no_word(width: int) -> None:
    plan = make_extreme_plan()
    lines = draw_plan(plan, width).splitlines()
    for way in plan.ways:
        if not way.fits:
            continue
        start = next(n for n, line in enumerate(lines) if line[2:].startswith(way.name.split(":")[0] + ":"))
        block, left = " ".join(lines[start : start + 12]).split(), way.name.split()
        for word in block:
            left = left[1:] if left and word == left[0] else left
        assert left == []


def test_a_wide_terminal_shows_disk_memory_and_gpu_hours_and_a_narrow_one_does_not() -> None:
    assert {"disk", "memory", "GPU", "hours", "saved"} <= set(list_columns(draw_plan(make_plan(), 140)))
    assert "disk" not in list_columns(draw_plan(make_plan(), 80))


def test_a_node_without_a_gpu_has_no_column_of_gpu_hours() -> None:
    assert "hours" not in list_columns(draw_plan(make_plan(node=make_node(gpus=0)), 140))


def test_the_recommended_way_is_marked_and_its_commands_are_whole() -> None:
    text = draw_plan(make_plan(), 80)
    assert "\n> pack, then" in text
    assert "\nRecommended: pack, then stage on scratch\n" in text
    assert "\n    feedrate pack /data/imagenet imagenet.pack\n" in text


def test_a_command_is_never_broken_by_us() -> None:
    command = "feedrate pack " + "/a/long/path" * 20 + " out"
    way = replace(PACKED, commands=(command,))
    assert f"\n    {command}\n" in draw_plan(make_plan(ways=(IN_PLACE, way)), 80)


def test_nothing_worth_doing_is_said_with_its_reason() -> None:
    text = draw_plan(make_plan(recommended="", reason="the GPU is the limit as it is"), 80)
    assert "\nNothing is worth doing: the GPU is the limit as it is.\n" in text
    assert "\n> " not in text


def test_ways_that_do_not_fit_stand_below_with_the_reason() -> None:
    text = draw_plan(make_plan(), 140)
    table, _, below = text.partition("Not possible, or not needed, here:\n")
    assert "cache decoded samples" not in table
    assert "cache decoded samples in memory: 720 GB decoded, and this job has 64 GB: --mem=760G\n" in below


def test_a_way_that_never_pays_says_so_and_reading_in_place_has_nothing_to_pay_for() -> None:
    plan = make_plan(ways=(IN_PLACE, replace(PACKED, pays_after=None)))
    rows = [line for line in draw_plan(plan, 140).splitlines() if "-bound" in line]
    assert "never" in next(row for row in rows if "pack, then" in row)
    assert "never" not in next(row for row in rows if "read in place" in row)


def test_figures_that_were_not_measured_now_are_marked_and_the_marks_explained() -> None:
    text = draw_plan(make_plan(), 140)
    assert "1,400 images/s ±10%*" in text
    assert "* assumed, or computed from what is assumed: a table of published rates\n" in text
    assert "°" not in text  # the one stored figure is not shown


def test_a_stored_figure_is_shown_with_its_date() -> None:
    node = make_node(model_rate=near(2900, STORED, "2026-11-02"))
    text = draw_plan(make_plan(node=node), 140)
    assert "2,900 images/s ±10%°" in text
    assert "feedrate bench machine', or computed from that: 2026-11-02\n" in text


def test_a_plan_without_a_model_rate_says_that_the_device_is_no_limit() -> None:
    assert "--model-rate" in draw_plan(make_plan(node=make_node(model_rate=None)), 80)


def test_a_dataset_without_images_has_nothing_to_decode() -> None:
    text = draw_plan(make_plan(survey=make_survey(pillow_s=None, feedrate_s=None, width=0, height=0)), 140)
    assert "nothing to decode" in text
    assert "pixels" not in text


def test_figures_are_not_broken_between_number_and_unit() -> None:
    text = draw_plan(make_plan(), 80)
    assert "\N{NO-BREAK SPACE}" not in text
    assert not [line for line in text.splitlines() if line.endswith((" 41.0", " 330", "MB/s"))]


def test_spreads_are_of_the_value_and_left_out_where_there_is_none() -> None:
    assert format_spread(Figure(100, 91, 104)) == "±9%"
    assert format_spread(Figure.exactly(3)) == ""
    assert format_spread(Figure(0, 0, 5)) == ""
    assert format_spread(Figure(1, 0, float("inf"))) == ""


def test_a_bound_is_never_said_to_lie_below_nothing() -> None:
    assert words(say_figure(Figure(0.73, 0.073, 1.5), "s")) == "730 ms (73.0 ms to 1.50 s)"
    assert short_time(Figure(100, 10, 201)) == "10.0s to 3m21s"
    assert short_time(Figure(100, 10, 190)) == "1m40s ±90%"


def test_a_figure_says_who_gave_it() -> None:
    assert words(say_figure(Figure.exactly(1200, GIVEN), "images/s")) == "1,200 images/s (given)"
    assert words(say_figure(Figure(2e9, 1e9, 3e9, ASSUMED), "bytes/s")) == "2.00 GB/s ±50%*"
    assert words(say_figure(Figure.exactly(1), "folders")) == "1 folder"
    assert say_figure(None, "s") == "unknown"
    assert say_figure(Figure.exactly(float("nan")), "s") == "unknown"


def test_times_in_tables_are_short() -> None:
    assert short_time(Figure(250, 240, 260, STORED)) == "4m10s ±4%°"
    assert short_time(Figure.exactly(0)) == "-"
    assert short_time(Figure.exactly(float("inf"))) == "never"


def test_only_marks_that_are_shown_are_explained() -> None:
    figures = [Figure.exactly(1, ASSUMED, "x"), Figure.exactly(1, STORED, "2026-11-02")]
    assert list_marks("5 s", figures) == []
    assert [line[0] for line in list_marks("5 s*", figures)] == ["*", "n"]


@pytest.mark.parametrize("plan", [make_plan(), make_extreme_plan()], ids=["usual", "extreme"])
def test_the_page_has_a_bar_for_each_way_that_fits_and_the_others_by_name(plan: Plan) -> None:
    page = draw_plan_page(plan)
    fitting = [way for way in plan.ways if way.fits]
    assert page.count('<div class="bar"') == len(fitting)
    assert all(way.name in page for way in plan.ways)
    assert "nan" not in page
    assert "<script" not in page


def test_bars_are_on_one_scale() -> None:
    page = draw_plan_page(make_plan(ways=(IN_PLACE, PACKED)))
    ends = [float(share) for share in re.findall(r'class="optimizer" style="flex: ([0-9.]+) ', page)]
    slow, fast = (89 * way.later_epoch_s.value for way in (IN_PLACE, PACKED))
    assert ends[1] / ends[0] == pytest.approx(fast / slow, rel=1e-3)


def test_a_way_far_slower_than_in_place_does_not_press_the_others_flat() -> None:
    slow = replace(PACKED, total_s=Figure.exactly(1e12), timeline=(("pack", 1e12),))
    page = draw_plan_page(make_plan(ways=(IN_PLACE, slow), recommended=""))
    widths = [float(share) for share in re.findall(r'style="flex: ([0-9.]+) ', page)]
    assert max(widths[:2]) > 0.4
    assert "What is longer than twice reading in place goes on." in page


def test_the_page_says_where_each_figure_comes_from() -> None:
    page = draw_plan_page(make_plan())
    assert "<td>assumed: a table of published rates</td>" in page
    assert "<td>stored: 2026-11-02</td>" in page


def make_estimate(**changes: object) -> Estimate:
    estimate = Estimate(
        "copy 100 GB from /nfs to /scr",
        {"": Figure(700, 650, 800)},
        "s",
        {"reads of /nfs": (Figure.within(41e6, 1.1, MEASURED), "bytes/s"),
         "writes to /scr": (Figure.exactly(2e9, STORED, "2026-11-02"), "bytes/s")},
        ("taken as one file",),
        ("feedrate stage SOURCE --scratch /scr",),
    )  # fmt: skip
    return replace(estimate, **changes)


def test_an_estimate_is_its_answer_its_interval_and_the_figures_with_their_origin() -> None:
    assert draw_estimate(make_estimate(), 80) == (
        "copy 100 GB from /nfs to /scr: 11 min 40 s (10 min 50 s to 13 min 20 s)\n"
        "  reads of /nfs   41.0 MB/s ±10%  measured\n"
        "  writes to /scr  2.00 GB/s       stored: 2026-11-02\n"
        "note: taken as one file\n"
        "next: feedrate stage SOURCE --scratch /scr\n"
    )


def test_an_estimate_with_several_answers_has_a_line_for_each() -> None:
    answers = {"read in place": Figure(700, 650, 800), "from a pack": Figure(70, 65, 80, ASSUMED)}
    text = draw_estimate(make_estimate(question="an epoch of /data", answers=answers, notes=()), 80)
    assert text.startswith(
        "an epoch of /data:\n"
        "  read in place  11 min 40 s (10 min 50 s to 13 min 20 s)\n"
        "  from a pack    70.0 s (65.0 s to 80.0 s), in part from assumed figures\n"
    )


def test_bounds_that_are_uneven_are_printed_as_bounds() -> None:
    uneven = Figure(32 * 60, 16 * 60, 64 * 60, ASSUMED)
    assert short_time(uneven) == "16m00s to 1h04m*"
    assert say_figure(uneven, "s").replace(TIE, " ") == "32 min 00 s (16 min 00 s to 1 h 04 min)*"
    assert short_time(Figure(100, 80, 125)) == "1m40s ±25%"


@pytest.mark.parametrize(("low", "high"), [(1.0, 19.0), (0.5, 8.54), (0.01, 1.5)])
def test_what_may_be_many_times_as_much_or_as_little_is_unknown(low: float, high: float) -> None:
    figure = Figure(1.0, low, high, ASSUMED, "too small to tell")
    assert short_time(figure) == "unknown*"
    assert say_figure(figure, "bytes/s").replace(TIE, " ") == "unknown*"
    assert "±" not in draw_estimate(Estimate("x", {"": figure}, "s", {"rate": (figure, "bytes/s")}))
