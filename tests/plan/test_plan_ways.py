# SPDX-License-Identifier: Apache-2.0
"""What a plan promises: it recommends only what fits, says so when nothing is worth doing, and adds up."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedrate.cli import make_parser
from feedrate.figures import ASSUMED, GIVEN, Figure
from feedrate.loader.order import Shuffled
from feedrate.loader.ranks import Shares
from feedrate.model import limits
from feedrate.plan.node import describe_node
from feedrate.plan.results import Plan, Way
from feedrate.plan.ways import make_plan, recommend
from feedrate.report.plan import draw_plan
from support.examples import examples
from support.plans import make_node, make_store, make_survey, make_way, near

QUICK_GPU = near(4700, GIVEN)


def way(plan: Plan, code: str) -> Way:
    return next(way for way in plan.ways if way.code == code)


def slow_store(**changes: Figure) -> object:
    return replace(
        make_store(), file_s=near(0.02), read_s=near(0.01), stream_bytes_per_s=near(20e6), **changes
    )


def test_a_slow_store_and_a_fast_gpu_make_packing_pay() -> None:
    plan = make_plan(make_survey(source=slow_store()), make_node(model_rate=QUICK_GPU))
    assert "pack" in plan.recommended or "live" in plan.recommended
    assert way(plan, plan.recommended).total_s.value < 0.5 * way(plan, "in-place").total_s.value


def test_where_the_gpu_is_the_limit_nothing_is_recommended() -> None:
    plan = make_plan(make_survey(), make_node(model_rate=near(50, GIVEN)))
    assert plan.recommended == ""
    assert "device" in plan.reason


def test_without_workers_loading_and_training_take_turns() -> None:
    survey, node = make_survey(), make_node(model_rate=QUICK_GPU)
    none, one = (way(make_plan(survey, node, workers=n), "in-place") for n in (0, 1))
    assert none.later_epoch_s.value > one.later_epoch_s.value
    alone_s = survey.samples.value / QUICK_GPU.value
    loading = make_plan(survey, make_node(model_rate=None), workers=0)
    assert none.later_epoch_s.value == pytest.approx(
        alone_s + way(loading, "in-place").later_epoch_s.value, rel=0.01
    )
    more = way(make_plan(survey, node, workers=0), "workers")
    assert more.later_epoch_s.value < none.later_epoch_s.value


def test_without_workers_every_gpu_has_a_process_that_loads() -> None:
    survey = make_survey(resident=1.0)
    one, four = (
        way(make_plan(survey, make_node(model_rate=None, gpus=gpus), workers=0), "in-place")
        for gpus in (1, 4)
    )
    assert four.first_epoch_s.value == pytest.approx(one.first_epoch_s.value / 4, rel=0.01)


def test_without_a_rate_of_the_model_a_note_says_what_the_times_are() -> None:
    plan = make_plan(make_survey(), make_node(model_rate=None))
    assert any("--model-rate" in note for note in plan.notes)


def test_the_parts_of_a_way_add_up_to_its_whole_run() -> None:
    for found in make_plan(make_survey(), make_node(model_rate=QUICK_GPU), epochs=7).ways:
        total = found.before_s.value + found.first_epoch_s.value + 6 * found.later_epoch_s.value
        assert found.total_s.value == pytest.approx(total)
        assert sum(seconds for _, seconds in found.timeline) == pytest.approx(total)


def test_one_epoch_has_no_later_ones() -> None:
    found = way(make_plan(make_survey(), make_node(), epochs=1), "pack")
    assert [label for label, _ in found.timeline] == ["pack", "first"]


def test_a_pack_is_not_packed_again() -> None:
    survey = make_survey(kind="pack", dataset="/data/a.pack", files=Figure.exactly(100))
    plan = make_plan(survey, make_node(model_rate=QUICK_GPU))
    assert not [found.code for found in plan.ways if "pack" in dict(found.timeline)]
    assert not [line for found in plan.ways for line in found.commands if line.startswith("feedrate pack")]


def test_scratch_that_is_too_small_is_never_recommended_and_says_so() -> None:
    node = make_node(model_rate=QUICK_GPU, scratch_free_bytes=Figure.exactly(10e9))
    plan = make_plan(make_survey(source=slow_store()), node)
    assert "scratch, 10.0 GB are free" in way(plan, "pack-stage").why_not
    assert plan.recommended not in ("pack-stage", "pack-live", "stage", "pack-scratch")


def test_without_scratch_its_ways_say_how_to_name_one() -> None:
    plan = make_plan(make_survey(), make_node(scratch=None, scratch_free_bytes=None, scratch_path=""))
    assert "--scratch DIR" in way(plan, "pack-stage").why_not


def test_a_disk_without_room_for_the_pack_is_said() -> None:
    plan = make_plan(make_survey(), make_node(pack_free_bytes=Figure.exactly(1e9)))
    assert "the pack needs" in way(plan, "pack").why_not
    assert way(plan, "pack-scratch").fits


def test_more_memory_names_the_option_to_type_and_not_more_than_the_node_has() -> None:
    big = make_plan(make_survey(), make_node(machine_memory_bytes=Figure.exactly(500e9)))
    assert way(big, "memory").commands[0].startswith("sbatch --mem=15")
    assert way(big, "memory").fits
    small = make_plan(make_survey(), make_node(machine_memory_bytes=Figure.exactly(64e9)))
    assert "the node has 64.0 GB" in way(small, "memory").why_not


def test_a_dataset_that_the_page_cache_holds_needs_no_more_memory() -> None:
    plan = make_plan(make_survey(samples=Figure.exactly(10_000), files=Figure.exactly(10_000)), make_node())
    assert "holds all of it" in way(plan, "memory").why_not


def test_a_store_without_a_page_cache_is_as_slow_in_every_epoch() -> None:
    store = replace(slow_store(), keeps_pages=False)
    survey = make_survey(source=store, samples=near(1000), files=near(1000), resident=None)
    found = way(make_plan(survey, make_node(model_rate=None)), "in-place")
    assert found.later_epoch_s.value == pytest.approx(found.first_epoch_s.value, rel=0.05)


def test_what_was_read_once_and_fits_in_memory_is_fast_afterwards() -> None:
    survey = make_survey(source=slow_store(), samples=near(1000), files=near(1000), resident=0.0)
    found = way(make_plan(survey, make_node(model_rate=None)), "in-place")
    assert found.later_epoch_s.value < 0.5 * found.first_epoch_s.value


def test_a_node_without_a_gpu_has_no_ways_that_need_one() -> None:
    plan = make_plan(make_survey(), make_node(gpus=0, gpu_name="", gpu_memory_bytes=None))
    assert not [found.code for found in plan.ways if "gpu" in found.code]


def test_png_files_are_not_decoded_on_the_gpu() -> None:
    node = make_node(gpu_decode_images_per_s=near(13_000))
    plan = make_plan(make_survey(formats={"png": 1.0}), node)
    assert "JPEG files only" in way(plan, "gpu-decode").why_not


def test_smaller_images_are_mentioned_and_never_recommended() -> None:
    survey = make_survey(width=4000, height=3000, feedrate_s=near(0.05), sample_bytes=near(4e6))
    plan = make_plan(survey, make_node(model_rate=QUICK_GPU, scratch=None))
    assert "resize" not in plan.recommended
    assert any("changes the images" in note for note in plan.notes)


def test_small_images_have_no_way_that_makes_them_smaller() -> None:
    plan = make_plan(make_survey(width=256, height=200), make_node())
    assert not [found.code for found in plan.ways if "resize" in found.code]


def test_an_assumed_figure_makes_what_depends_on_it_assumed() -> None:
    plan = make_plan(make_survey(), make_node(model_rate=near(140, ASSUMED, "a table")))
    assert way(plan, "in-place").total_s.origin == ASSUMED
    assert "a table" in way(plan, "in-place").total_s.note
    assert way(plan, "pack").before_s.origin != ASSUMED


def test_several_nodes_share_the_work_of_an_epoch_and_the_rate_of_the_source() -> None:
    one, four = (make_plan(make_survey(), make_node(model_rate=QUICK_GPU, nodes=n)) for n in (1, 4))
    assert way(four, "in-place").later_epoch_s.value < way(one, "in-place").later_epoch_s.value
    assert dict(way(four, "pack-stage").timeline)["stage"] > dict(way(one, "pack-stage").timeline)["stage"]


def test_every_command_that_a_plan_says_can_be_typed() -> None:
    node = make_node(model_rate=QUICK_GPU, gpu_decode_images_per_s=near(13_000), scratch_path="/scr/a b")
    survey = make_survey(dataset="/data/my photos", width=2000, height=2000)
    lines = [line for found in make_plan(survey, node).ways for line in found.commands]
    shell = [line for line in lines if "feedrate " in line]
    typed = [line.removeprefix('export DATA="$(').removesuffix(')"') for line in shell]
    parser = make_parser()
    for line in typed:
        parser.parse_args(shlex.split(line)[1:])
    python = [line for line in lines if line not in shell and not line.startswith("sbatch")]
    for line in python:
        compile(line, "line", "exec")
    assert typed
    assert python


def test_staging_gives_no_more_workers_than_there_are_batches() -> None:
    survey, store = make_survey(samples=near(200), files=near(200)), make_store()
    plan = make_plan(replace(survey, source=store), make_node(scratch=store, model_rate=QUICK_GPU))
    assert way(plan, "stage").later_epoch_s.value == pytest.approx(way(plan, "in-place").later_epoch_s.value)


def test_a_script_finds_the_staged_copy_in_its_environment() -> None:
    for code in ("stage", "pack-stage"):
        *_, staging, script = way(make_plan(make_survey(), make_node()), code).commands
        assert staging.startswith("export DATA=")
        assert 'os.environ["DATA"]' in script


def test_a_pack_goes_beside_a_dataset_as_the_dataset_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "photos").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert describe_node("data/photos/", scratch="").pack_folder == "data"
    assert describe_node(f"{tmp_path}/data/photos", scratch="").pack_folder == f"{tmp_path}/data"


def test_a_pack_of_a_pattern_is_named_after_what_comes_before_the_wildcard() -> None:
    patterns = {
        "/data/train-{000..127}.tar": "train.pack", "shards/*.tar": "shards.pack", "*.tar": "data.pack",
        "s3://bucket/x/part-*.tar": "part.pack", "/data/photos/": "photos.pack", ".": "data.pack",
    }  # fmt: skip
    for dataset, name in patterns.items():
        plan = make_plan(make_survey(dataset=dataset, kind="tar"), make_node())
        assert shlex.split(way(plan, "pack").commands[0])[-1] == name


def test_ways_of_a_pack_do_not_say_that_it_is_packed() -> None:
    plan = make_plan(make_survey(kind="pack", dataset="/data/a.pack"), make_node(model_rate=QUICK_GPU))
    assert way(plan, "pack-stage").name == "stage"
    assert not [found.name for found in plan.ways if found.name.startswith("pack")]
    assert "workers" not in draw_plan(plan)


def test_a_run_of_less_than_a_minute_is_left_as_it_is() -> None:
    survey = make_survey(samples=near(40), files=near(40), source=slow_store())
    plan = make_plan(survey, make_node(model_rate=None), epochs=3)
    assert plan.recommended == ""
    assert plan.reason.startswith("as it is, loading alone takes ")
    known = make_plan(survey, make_node(model_rate=QUICK_GPU), epochs=3)
    assert known.reason.startswith("as it is, the whole run takes ")


def test_what_saves_less_than_a_minute_is_not_recommended_however_many_times_faster() -> None:
    now, quick = make_way("in-place", "read in place", 0, 1.1, 1.1), make_way("pack", "pack", 1, 0.5, 0.5)
    code, reason = recommend([now, quick], 90)
    assert code == ""
    assert reason.startswith("pack would save 53.0 s, 54% of the 99.0 s that the whole run takes")
    assert "less than a minute" in reason
    longer = make_way("in-place", "read in place", 0, 1.3, 1.3)
    assert recommend([longer, quick], 90)[0] == "pack"


def test_images_that_the_loader_could_not_be_tried_on_are_not_taken_to_be_quick() -> None:
    slow = make_plan(make_survey(feedrate_s=None), make_node(model_rate=None))
    known = make_plan(make_survey(), make_node(model_rate=None))
    assert way(slow, "pack").later_epoch_s.value >= way(known, "pack").later_epoch_s.value
    assert way(slow, "pack").later_epoch_s.origin == ASSUMED
    assert "image=feedrate.RandomResizedCrop(224)" in way(slow, "pack").commands[-1]


def test_a_gpu_of_unknown_memory_says_so_and_not_that_nothing_fits() -> None:
    plan = make_plan(make_survey(), make_node(gpu_memory_bytes=None))
    assert "not known" in way(plan, "gpu").why_not


def test_a_pack_on_one_nodes_scratch_is_no_way_for_several_nodes() -> None:
    codes = [found.code for found in make_plan(make_survey(), make_node(nodes=2)).ways]
    assert "pack-scratch" not in codes
    assert "pack-stage" in codes


def test_a_pack_that_one_node_made_is_in_no_other_nodes_memory() -> None:
    survey = make_survey(source=slow_store(), samples=near(100_000), files=near(100_000), resident=0.0)
    one, two = (
        way(make_plan(survey, make_node(model_rate=None, nodes=nodes), epochs=3), "pack") for nodes in (1, 2)
    )
    assert one.first_epoch_s.value == pytest.approx(one.later_epoch_s.value, rel=0.1)
    assert two.first_epoch_s.value > 1.5 * two.later_epoch_s.value


def test_more_memory_than_a_machine_without_a_limit_has_free_is_not_asked_of_slurm() -> None:
    plan = make_plan(make_survey(), make_node(machine_memory_bytes=None))
    assert "64.0 GB are free" in way(plan, "memory").why_not


sizes = st.floats(1, 1e9)


@settings(max_examples=examples(25))
@given(
    samples=st.floats(1, 1e10), sample_bytes=st.floats(10, 1e8), rate=st.none() | st.floats(0.1, 1e6),
    memory=st.floats(1e6, 1e13), free=st.floats(0, 1e15), epochs=st.integers(1, 1000), gpus=st.integers(0, 8),
    nodes=st.integers(1, 1000), file_s=st.floats(1e-6, 10), resident=st.none() | st.floats(0, 1),
)  # fmt: skip
def test_whatever_the_dataset_and_the_node_only_what_fits_and_is_faster_is_recommended(
    samples: float, sample_bytes: float, rate: float | None, memory: float, free: float, epochs: int,
    gpus: int, nodes: int, file_s: float, resident: float | None,
) -> None:  # fmt: skip
    survey = make_survey(
        samples=near(samples), files=near(samples), sample_bytes=near(sample_bytes), resident=resident,
        source=replace(make_store(), file_s=near(file_s)), total_bytes=near(samples * sample_bytes),
    )  # fmt: skip
    node = make_node(
        model_rate=None if rate is None else near(rate), memory_bytes=Figure.exactly(memory), gpus=gpus,
        scratch_free_bytes=Figure.exactly(free), nodes=nodes,
    )  # fmt: skip
    plan = make_plan(survey, node, epochs=epochs)
    for found in plan.ways:
        for figure in (found.before_s, found.first_epoch_s, found.later_epoch_s, found.total_s):
            assert 0 <= figure.low <= figure.value <= figure.high < float("inf")
        assert found.memory_bytes.value >= 0
        assert found.disk_bytes.value >= 0
    if plan.recommended:
        chosen = way(plan, plan.recommended)
        assert chosen.fits
        assert chosen.total_s.value < way(plan, "in-place").total_s.value


def simulate_misses(parts: int, epochs: int, *, samples: int = 8000) -> list[float]:
    """Return which share of its samples one of several readers has never read before, epoch by epoch.

    In the Loader's own order, cut into the Loader's own slices.
    """
    order, shares = Shuffled(samples, seed=3), Shares(samples, batch_size=4, rank=1, world=parts)
    seen, missed = np.zeros(samples, bool), []
    for epoch in range(epochs):
        mine = order.at(epoch).indices(np.concatenate([shares.slots(i) for i in range(len(shares))]))
        missed.append(1 - seen[mine].mean())
        seen[mine] = True
    return missed


@pytest.mark.parametrize(("nodes", "epochs"), [(1, 5), (2, 6), (20, 30), (100, 90)])
def test_caches_of_several_nodes_fill_as_the_loaders_order_meets_samples(nodes: int, epochs: int) -> None:
    # Reading is all that takes time here, so an epoch takes what its misses take.
    survey = make_survey(pillow_s=near(1e-9), feedrate_s=near(1e-9), whole_s=near(1e-9), cached_s=near(1e-9),
                         resident=0.0, decoded_bytes=near(1.0))  # fmt: skip
    node = make_node(nodes=nodes, model_rate=None, memory_bytes=Figure.exactly(1e15),
                     to_device_bytes_per_s=None)  # fmt: skip
    plan = make_plan(survey, node, epochs=epochs, workers=16)
    misses = simulate_misses(nodes, epochs)
    for code in ("in-place", "ram", "disk"):
        found = way(plan, code)
        expected_s = found.first_epoch_s.value * sum(misses)
        assert found.total_s.value - found.before_s.value == pytest.approx(expected_s, rel=0.1), code


def test_every_gpu_fills_a_cache_of_its_own() -> None:
    store = replace(make_store(), keeps_pages=False)
    survey = make_survey(feedrate_s=near(1e-9), whole_s=near(1e-9), resident=0.0, decoded_bytes=near(1.0),
                         source=store)  # fmt: skip
    node = make_node(gpus=8, model_rate=None, to_device_bytes_per_s=None)
    found = way(make_plan(survey, node, epochs=20), "gpu")
    expected_s = found.first_epoch_s.value * sum(simulate_misses(8, 20))
    assert found.total_s.value - found.before_s.value == pytest.approx(expected_s, rel=0.1)


def test_what_one_gpu_keeps_is_still_read_by_the_others() -> None:
    # Room in memory for seven tenths of the files; each of eight GPUs keeps another two fifths of the images.
    samples = near(100_000)
    survey = make_survey(samples=samples, files=samples, total_bytes=near(10.8e9), feedrate_s=near(1e-9),
                         whole_s=near(1e-9), resident=0.0, decoded_bytes=near(1e6))  # fmt: skip
    node = make_node(gpus=8, model_rate=None, to_device_bytes_per_s=None,
                     memory_bytes=Figure.exactly((0.7 * 11.2e9 + 16e9) / 0.9))  # fmt: skip
    found = way(make_plan(survey, node, epochs=90), "gpu")
    # Of what a GPU lacks, the page cache has a third, as it evicts what all of them read.
    assert found.later_epoch_s.value == pytest.approx(0.6 * 0.66 * 11.06e9 / 330e6, rel=0.15)


def test_scratch_in_memory_takes_the_jobs_memory() -> None:
    # 138 GB would be copied to a tmpfs with room for them; the job may use 64 GB.
    shm = replace(make_store("/dev/shm", "tmpfs"), total_bytes_per_s=near(9e9))
    node = make_node(scratch=shm, scratch_path="/dev/shm", scratch_free_bytes=Figure.exactly(800e9),
                     model_rate=QUICK_GPU)  # fmt: skip
    plan = make_plan(make_survey(source=slow_store()), node)
    for code in ("stage", "pack-scratch", "pack-stage", "pack-live"):
        assert "which is memory" in way(plan, code).why_not, code
        assert "64.0 GB are left" in way(plan, code).why_not
    assert plan.recommended not in ("stage", "pack-scratch", "pack-stage", "pack-live")


@pytest.mark.parametrize(
    ("gigabytes", "why"),
    [(200, "would be more than half of it: 200 GB are left"),
     (300, "needs 324 GB with the training beside it: 300 GB are left"), (400, "")],
)  # fmt: skip
def test_why_a_copy_in_memory_does_not_fit_is_said(gigabytes: int, why: str) -> None:
    shm = make_store("/dev/shm", "tmpfs")
    node = make_node(
        scratch=shm, scratch_path="/dev/shm", memory_bytes=Figure.exactly(gigabytes * 1e9), gpus=74
    )
    said = way(make_plan(make_survey(), node, workers=0), "pack-stage").why_not
    copy = "a copy of 144 GB on /dev/shm, which is memory, "
    assert said == (why and f"{copy}{why} (this Slurm job's --mem)")


def test_a_copy_in_memory_is_counted_as_memory_and_needs_no_page_cache() -> None:
    samples = near(100_000)
    survey = make_survey(source=slow_store(), samples=samples, files=samples, total_bytes=near(10.8e9))
    plans = [
        make_plan(survey, make_node(scratch=make_store("/x", kind), scratch_path="/x", model_rate=QUICK_GPU))
        for kind in ("ext4", "tmpfs")
    ]
    disk, memory = (way(plan, "pack-stage") for plan in plans)
    assert memory.fits
    assert memory.memory_bytes.value - disk.memory_bytes.value == pytest.approx(memory.disk_bytes.value / 2)
    assert "which is memory" in way(plans[1], "disk").why_not  # a Loader refuses such a disk


def test_a_way_whose_first_epoch_alone_is_faster_never_pays() -> None:
    # One worker waits for a slow source in the first epoch; later ones come from memory, slower on scratch.
    scratch = replace(make_store("/scr", "ext4"), warm_file_s=near(0.025))
    survey = make_survey(source=slow_store(), samples=near(2000), files=near(2000), resident=0.0)
    plan = make_plan(survey, make_node(model_rate=QUICK_GPU, scratch=scratch, cores=near(1)), workers=1)
    found, now = way(plan, "stage"), way(plan, "in-place")
    assert found.before_s.value + found.first_epoch_s.value < now.first_epoch_s.value
    assert found.total_s.value > now.total_s.value
    assert found.pays_after is None


def test_without_a_rate_of_the_model_the_gain_is_that_of_loading_alone() -> None:
    survey, node = make_survey(source=slow_store()), make_node(model_rate=None)
    assert "loading alone" in make_plan(survey, node).reason
    assert "loading alone" not in make_plan(survey, replace(node, model_rate=QUICK_GPU)).reason


def test_without_a_rate_of_the_model_no_reason_speaks_of_the_whole_run() -> None:
    now = make_way("in-place", "read in place", 0, 1.1, 1.1)
    saved, short, nothing = (
        recommend(ways, 90, is_loading_alone=True)[1]
        for ways in (
            [now, make_way("pack", "pack", 1, 0.5, 0.5)],
            [make_way("in-place", "read in place", 0, 0.1, 0.1)],
            [now, make_way("pack", "pack", 1, 1.1, 1.1)],
        )
    )
    assert "54% of the 99.0 s that loading alone takes" in saved
    assert short == "as it is, loading alone takes 9.00 s"
    assert "loading waits for the device, and no other way" in nothing


def test_one_epoch_is_faster_and_several_are() -> None:
    ways = [make_way("in-place", "read in place", 0, 300, 300), make_way("pack", "pack", 10, 100, 100)]
    assert recommend(ways, 1)[1].startswith("1 epoch is 3.0 times as fast")
    assert recommend(ways, 2)[1].startswith("2 epochs are 3.0 times as fast")


def test_of_a_run_of_unknown_length_no_factor_is_said() -> None:
    # Nobody knows what a file takes: ten times as much, or a tenth.
    store = replace(make_store(), file_s=near(0.02, factor=10), files_per_s=near(1e5))
    plan = make_plan(make_survey(source=store, resident=0.0), make_node(model_rate=QUICK_GPU))
    assert not way(plan, "in-place").total_s.is_known
    assert plan.recommended
    assert "likely to be faster than in place, by how much is not known" in plan.reason
    rows = [line for line in draw_plan(plan, 200).splitlines() if line.startswith(("  pack", "> pack"))]
    assert [row for row in rows if "unknown" in row]
    assert not [row for row in rows if " epoch " in row.partition(": ")[0]]


def test_where_smaller_images_alone_are_faster_no_way_is_said_to_keep_them_and_be_so() -> None:
    source = replace(
        make_store(), stream_bytes_per_s=near(5e6), total_bytes_per_s=near(5e6), keeps_pages=False
    )
    node = make_node(model_rate=QUICK_GPU, scratch=None, scratch_free_bytes=None, memory_bytes=near(4e9))
    survey = make_survey(width=2000, height=2000, source=source, decoded_bytes=near(12e6))
    plan = make_plan(survey, node)
    assert plan.recommended == ""
    assert way(plan, "resize").total_s.value < 0.5 * way(plan, "in-place").total_s.value
    assert "no other way that keeps the images as they are would be 7% faster" in plan.reason


def test_the_code_to_type_fits_small_images_and_few_of_them() -> None:
    few = near(32)
    plan = make_plan(make_survey(samples=few, files=few, crop=32), make_node())
    line = way(plan, "pack").commands[-1]
    assert "batch_size=32" in line
    assert "RandomResizedCrop(32)" in line


def test_what_pillow_takes_is_six_times_ours_where_it_could_not_be_tried() -> None:
    survey = make_survey(pillow_s=None, resident=1.0)
    plan = make_plan(survey, make_node(model_rate=None))
    now, packed = way(plan, "in-place"), way(plan, "pack")
    assert now.later_epoch_s.value > 3 * packed.later_epoch_s.value
    assert now.later_epoch_s.high > 1.7 * now.later_epoch_s.value
    assert (now.later_epoch_s.origin, "six times" in now.later_epoch_s.note) == (ASSUMED, True)


@pytest.mark.parametrize("samples", [100, 300, 1000, 3000])
@pytest.mark.parametrize("workers", [1, 2, 4, 16])
@pytest.mark.parametrize("cores", [2, 8, 16])
def test_workers_are_no_limit_where_more_of_them_change_nothing(
    samples: int, workers: int, cores: int
) -> None:
    survey = make_survey(samples=near(samples), files=near(samples), resident=1.0)
    node = make_node(model_rate=QUICK_GPU, cores=Figure.exactly(cores))
    plan = make_plan(survey, node, workers=workers)
    if way(plan, "workers").why_not:
        assert way(plan, "in-place").limit != limits.STARVED


@pytest.mark.parametrize(("gpus", "workers"), [(0, 2), (1, 2), (4, 1)])
def test_there_are_never_more_workers_than_batches(gpus: int, workers: int) -> None:
    few = near(434)
    # Small files of a slow store: workers that wait are wanted, and would have nothing to do.
    survey = make_survey(samples=few, files=few, pillow_s=near(1e-4), source=slow_store(), resident=0.0)
    plan = make_plan(survey, make_node(model_rate=None, gpus=gpus), workers=workers)
    assert way(plan, "workers").why_not == f"{workers} are enough"
    assert way(plan, "in-place").limit != limits.STARVED
    assert f"num_workers={workers})" in way(plan, "stage").commands[-1]
