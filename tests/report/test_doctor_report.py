# SPDX-License-Identifier: Apache-2.0
"""The doctor's verdict in a terminal and as a document: one screen, whatever was found."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedrate import RandomErasing, RandomResizedCrop
from feedrate.cli.output import clean_values, dump_document
from feedrate.doctor.analyse.call_draft import write_code
from feedrate.doctor.findings.catalogue import CATALOGUE
from feedrate.doctor.results import Diagnosis, HotLine, Remedy, TimeShare
from feedrate.report import doctor_words as words
from feedrate.report.doctor import draw_diagnosis, draw_full
from feedrate.report.doctor_page import draw_doctor_page
from feedrate.report.doctor_trace import draw_trace
from feedrate.report.doctor_verify import draw_check
from support.diagnoses import (
    DIAGNOSES,
    NASTY,
    make_decode_bound,
    make_ended_early,
    make_nasty,
    make_odd,
    make_storage_bound,
)
from support.doctor_sample import BLOCK, PAGE, README, README_BLOCKS, draw_example, draw_sample
from support.examples import examples
from support.paths import DATA

GOLDEN = DATA / "doctor"


def test_every_finding_has_its_symptoms_on_the_page_of_troubleshooting_and_a_link_to_them() -> None:
    docs = GOLDEN.parent.parent.parent / "docs"
    rows = re.findall(
        r'^\| <a id="([a-z-]+)"></a>.* \| `([a-z-]+)` \|', (docs / "troubleshooting.md").read_text(), re.M
    )
    codes = sorted(one.code for one in CATALOGUE)
    assert sorted(rows) == [(code, code) for code in codes]
    linked = re.findall(r"troubleshooting\.md#([a-z-]+)", (docs / "doctor.md").read_text())
    assert sorted(linked) == codes


@pytest.mark.parametrize("name", DIAGNOSES)
def test_the_screen_is_as_it_was_looked_at(name: str) -> None:
    """`PYTHONPATH=tests python -m support.diagnoses` draws these files anew."""
    assert draw_diagnosis(DIAGNOSES[name]()) == (GOLDEN / f"{name}.txt").read_text()


def test_the_verdict_on_the_page_of_the_command_is_the_programs() -> None:
    """`PYTHONPATH=tests python -m support.doctor_sample` puts it there."""
    assert BLOCK.findall(PAGE.read_text()) == [draw_sample()]


def test_the_verdict_in_the_readme_is_the_programs_of_the_committed_document() -> None:
    """`PYTHONPATH=tests python -m support.doctor_sample` puts it there."""
    assert README_BLOCKS.findall(README.read_text()) == draw_example()


def test_every_finding_of_the_catalogue_has_its_line_on_the_page_of_the_command() -> None:
    page = (GOLDEN.parent.parent.parent / "docs" / "doctor.md").read_text()
    table = page.partition("## Findings")[2].partition("## In CI")[0]
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", table, re.M)) == sorted(one.code for one in CATALOGUE)


@pytest.mark.parametrize("name", DIAGNOSES)
def test_a_usual_run_and_the_prompt_after_it_fit_24_lines_of_80_columns(name: str) -> None:
    lines = draw_diagnosis(DIAGNOSES[name]()).splitlines()
    assert len(lines) <= 23
    assert max(len(line) for line in lines) <= 80


def test_a_command_to_type_is_never_cut() -> None:
    command = "feedrate pack " + "/a/very/deep/folder" * 10 + " PACK"
    first, *rest = make_decode_bound().remedies
    diagnosis = replace(make_decode_bound(), remedies=(replace(first, command=command), *rest))
    assert f"$ {command}\n" in draw_diagnosis(diagnosis)


def test_what_is_left_out_is_counted() -> None:
    text = draw_diagnosis(make_storage_bound())
    assert "2 of 3" in text
    assert "(+3 more)" in text  # remedies without gain
    assert text.count("(+3 more)") == 2  # and findings
    assert "(+2 more)" in text  # what was not seen


def test_the_verdict_names_the_code_even_where_its_sentence_does_not() -> None:
    diagnosis = replace(make_ended_early(), verdict="Training waits for image decoding.")
    assert draw_diagnosis(diagnosis).startswith("decode-bound: Training waits for image decoding.\n")


def test_a_remedy_that_gives_nothing_says_why_and_is_not_offered() -> None:
    text = draw_diagnosis(make_decode_bound())
    assert "no gain   packing alone: reads are 1% of the time" in text
    assert "x (0.9" not in text


def test_of_a_run_that_died_before_its_first_step_it_says_what_to_do() -> None:
    diagnosis = make_decode_bound()
    cure = replace(diagnosis.remedies[0], predicted_speedup=1.0, low=1.0, high=1.0, change="do this", note="")
    diagnosis = replace(diagnosis, remedies=(cure,), run=replace(diagnosis.run, steps=0), split=(), sample=())
    text = draw_diagnosis(diagnosis)
    assert "What to do:" in text
    assert "do this" in text
    assert "no gain" not in text
    assert "\na step" not in text
    page = draw_doctor_page(diagnosis)
    assert "What to do" in page
    assert "Would give nothing" not in page


def test_what_gives_nothing_is_named_with_the_reason() -> None:
    note = "reads are 1% of the time"
    diagnosis = replace(make_decode_bound(), remedies=(Remedy("pack", "pack it", 1.0, 1.0, 1.0, note=note),))
    assert f"no gain   pack it: {note}\n" in draw_diagnosis(diagnosis)
    assert "Nothing that was predicted or tried makes this run faster." in draw_diagnosis(diagnosis)


def test_text_from_the_run_cannot_steer_the_terminal() -> None:
    text = draw_diagnosis(clean_values(make_nasty()))
    assert "\x1b" not in text
    assert all(line.isprintable() for line in text.splitlines())
    assert r"\x1b[31m\n\udcff" in text


def test_code_to_paste_keeps_its_lines_at_the_door_and_nothing_else_does() -> None:
    remedy = replace(make_coded().remedies[0], code="a = 1\nb = '\x1b'\n", title="a\nb")
    cleaned = clean_values(replace(make_coded(), remedies=(remedy,))).remedies[0]
    assert (cleaned.code, cleaned.title) == ("a = 1\nb = '\\x1b'\n", "a\\nb")


@pytest.mark.parametrize(
    ("speedup", "low", "high", "text"),
    [
        (2.4, 2.0, 2.8, "2.4x (2.0-2.8)"),
        (1.04, 1.02, 1.06, "1.04x (1.02-1.06)"),
        (12.3, 9.6, 15.2, "12x (10-15)"),
        (1.5, float("nan"), 2.0, "1.50x"),
        (float("nan"), 1.0, 2.0, "unknown"),
        (float("inf"), 1.0, 2.0, "unknown"),
    ],
)
def test_a_gain_has_as_many_digits_as_it_needs(speedup: float, low: float, high: float, text: str) -> None:
    assert Remedy("a", "b", speedup, low, high).gain == text


def without_code(diagnosis: Diagnosis) -> Diagnosis:
    """What is to be pasted comes below the screen, whole."""
    return replace(diagnosis, remedies=tuple(replace(one, code=None) for one in diagnosis.remedies))


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(80))
def test_any_diagnosis_is_drawn_on_at_most_30_lines(seed: int) -> None:
    diagnosis = clean_values(make_odd(random.Random(seed)))
    assert len(draw_diagnosis(without_code(diagnosis)).splitlines()) <= 30
    assert draw_diagnosis(diagnosis).startswith(draw_diagnosis(without_code(diagnosis)))
    assert draw_doctor_page(diagnosis).encode()
    assert draw_check(diagnosis, 0.05).count("\n") == 1
    assert json.loads(draw_trace(diagnosis))["traceEvents"] is not None
    assert json.loads(dump_document("doctor", diagnosis))["command"] == "doctor"


def test_the_longest_of_everything_is_at_most_30_lines() -> None:
    whole, long = make_storage_bound(), "many words that go on and on " * 20
    first = replace(whole.findings[0], title=long, evidence=(long,) * 9)
    remedy = replace(whole.remedies[1], title=long, command=long, change=long, note=long)
    diagnosis = replace(
        whole,
        verdict=long,
        findings=(first,) * 9,
        remedies=(remedy,) * 9 + (replace(remedy, predicted_speedup=1.0),) * 9,
        run=replace(whole.run, unseen=(long,) * 9, device=long),
        split=tuple(replace(one, name=long, detail=long, share=0.1) for one in whole.split),
    )
    assert len(draw_diagnosis(diagnosis).splitlines()) <= 30


CODE = """import feedrate

loader = feedrate.Loader("PACK", batch_size=64)
for images, labels in loader:
    ...
"""
UNKIND = "Evil<b>\x1b[31m is not carried over"


def make_coded() -> Diagnosis:
    whole = make_decode_bound()
    remedy = replace(whole.remedies[0], code=CODE, left_out=("RandAugment is not carried over", UNKIND))
    return replace(whole, remedies=(remedy, *whole.remedies[1:]))


def test_code_to_paste_stands_below_the_screen_line_by_line() -> None:
    text = draw_diagnosis(clean_values(make_coded()))
    screen, _, below = text.partition("\nThe code to ")
    assert screen == draw_diagnosis(make_decode_bound())
    assert "\n".join(f"  {line}".rstrip() for line in CODE.rstrip().split("\n")) in below
    assert "What this does not do, or does otherwise:\n  - RandAugment is not carried over\n" in below
    assert r"Evil<b>\x1b[31m is not carried over" in below


def test_the_code_in_the_documentation_is_the_programs() -> None:
    code = write_code(
        {
            "batch_size": 256, "shuffle": True, "drop_last": True,
            "image": RandomResizedCrop(224, interpolation="bicubic"), "flip": 0.5, "normalize": "imagenet",
            "on_device": [RandomErasing(p=0.25)], "device": "cuda",
        }
    )  # fmt: skip
    title = "pack the images and feed them with feedrate.Loader"
    missing = "RandAugment is not carried over: feedrate.Loader has no such operation"
    pack = "feedrate pack /data/imagenet/train PACK"
    remedy = Remedy("loader", title, 3.2, 2.6, 3.9, command=pack, code=code, left_out=(missing,))
    _, _, below = draw_diagnosis(replace(make_decode_bound(), remedies=(remedy,))).partition("\n\nThe code")
    assert f"```text\nThe code{below}```" in PAGE.read_text()


def test_the_whole_report_and_the_page_have_the_code_too() -> None:
    assert "\n  for images, labels in loader:\n      ...\n" in draw_full(make_coded())
    page = draw_doctor_page(make_coded())
    assert (
        "feedrate.Loader(&quot;PACK&quot;, batch_size=64)\nfor images, labels in loader:\n    ...</pre>"
        in page
    )
    assert r"<li>Evil&lt;b&gt;\x1b[31m is not carried over</li>" in page
    first = json.loads(dump_document("doctor", make_coded()))["remedies"][0]
    assert (first["code"], first["left_out"][0]) == (CODE, "RandAugment is not carried over")


def test_the_document_has_what_scripts_look_for() -> None:
    document = json.loads(dump_document("doctor", make_decode_bound()))
    assert (document["command"], document["schema_version"]) == ("doctor", 1)
    assert document["argv"] == ["python", "train.py", "--data", "/data/imagenet"]
    assert [finding["code"] for finding in document["findings"]] == ["decode-bound", "sync-bound"]
    first = document["findings"][0]
    assert first["share"] == 0.66
    assert len(first["evidence"]) == 3
    assert first["numbers"]["decoder"] == "PIL.ImageFile.load"
    remedy = first["remedies"][0]
    assert {"predicted_speedup", "low", "high", "next_bottleneck", "command"} <= set(remedy)
    assert (remedy["predicted_speedup"], remedy["low"], remedy["high"]) == (2.4, 2.0, 2.8)
    assert document["run"]["exposed_wait_share"] == 0.66
    assert document["timeline"][0]["parts"]["forward"] > 0


def test_the_document_of_an_odd_run_is_strict_json() -> None:
    odd = replace(make_nasty(), verdict=NASTY)
    odd = replace(odd, run=replace(odd.run, samples_per_s=float("nan"), seconds=float("inf")))
    document = json.loads(dump_document("doctor", odd), parse_constant=pytest.fail)
    assert document["run"]["samples_per_s"] is None
    assert document["verdict"] == NASTY


def make_explained() -> Diagnosis:
    first, second = make_decode_bound().findings
    first = replace(first, code="contended", share=0.5, explains=("decode-bound",))
    return replace(make_decode_bound(), findings=(first, replace(second, code="decode-bound", share=0.85)))


def test_a_finding_that_costs_more_than_the_one_before_it_says_why_it_stands_there() -> None:
    diagnosis = make_explained()
    assert "also      decode-bound 85%, explained by contended: .item()" in draw_diagnosis(diagnosis)
    assert " 85% of the time, explained by contended: " in draw_doctor_page(diagnosis)
    found = json.loads(dump_document("doctor", diagnosis))["findings"]
    assert [(one["share"], one["explains"]) for one in found] == [(0.5, ["decode-bound"]), (0.85, [])]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("decode_cpu_s", 0.0456, "decode cpu: 45.6 ms"),
        ("major_faults_per_s", 12.5, "major faults a second: 12.5"),
        ("batch_bytes", 2_060_240, "batch: 2.06 MB"),
        ("limit_bytes", None, "limit: unknown"),
        ("sync_share", 0.31, "sync share: 31%"),
        ("better_workers", 4, "better workers: 4"),
        ("kind", "nfs4", "kind: nfs4"),
    ],
)
def test_a_number_of_a_finding_is_shown_with_its_unit(
    name: str, value: float | str | None, text: str
) -> None:
    assert words.named(name, value) == text


def test_the_reason_why_something_gives_nothing_is_not_cut_off() -> None:
    title = f"take <module> ({'/a/very/deep/folder' * 10}/train.py:13) out of the training loop"
    useless = Remedy("speed-up-loop", title, 1.01, 1.0, 1.02)
    drawn = draw_diagnosis(replace(make_storage_bound(), remedies=(useless,)))
    assert "1.01x predicted" in drawn


def test_a_place_is_its_file_and_line_however_deep_its_folder_is() -> None:
    place = f"{'/data/project' * 9}/train.py:62"
    diagnosis = make_storage_bound()
    shares = (TimeShare("waiting for the device", 0.01, 0.2, detail=f"item {place}"),)
    reasons = replace(diagnosis.findings[0], evidence=(f"augment ({place}) has 77% of the looks: y = 1",))
    remedy = Remedy("speed-up-loop", f"leave out of the training loop: f ({place})", 2.0, 1.8, 2.2)
    text = draw_diagnosis(replace(diagnosis, split=shares, findings=(reasons,), remedies=(remedy,)))
    assert "  item train.py:62\n" in text
    assert "augment (train.py:62) has 77% of the looks: y = 1" in text
    assert "leave out of the training loop: f (train.py:62)" in text


def test_the_line_that_has_most_of_the_workers_time_stands_in_the_short_report() -> None:
    hot = HotLine("/home/ada/project/d_h5.py:9", "__getitem__", "worker", 0.95, "return self.h['images'][i]")
    diagnosis = replace(make_storage_bound(), hot_lines=(hot,))
    assert "hot line  95% of the workers' time: d_h5.py:9: return self.h['images'][i]" in draw_diagnosis(
        diagnosis
    )
    in_the_loop = replace(diagnosis, hot_lines=(replace(hot, where="main"),))
    assert "hot line" not in draw_diagnosis(in_the_loop)


def test_evidence_for_which_the_short_report_has_no_room_hides_no_line_of_the_workers() -> None:
    hot = HotLine("/home/ada/project/d_h5.py:9", "__getitem__", "worker", 0.95, "return self.h['images'][i]")
    diagnosis = replace(make_storage_bound(), hot_lines=(hot,))
    named = f"95% of the looks at the workers: {hot.place}: {hot.source}"

    def draw(*evidence: str) -> str:
        return draw_diagnosis(
            replace(diagnosis, findings=(replace(diagnosis.findings[0], evidence=evidence),))
        )

    assert "hot line  95% of the workers' time: d_h5.py:9" in draw(*["a long sentence " * 8] * 2, named)
    assert "hot line" not in draw(named)
