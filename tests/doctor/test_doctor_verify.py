# SPDX-License-Identifier: Apache-2.0
"""Two runs of the doctor side by side: which remedy was applied, and whether it gave what was said."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from feedrate.doctor.compare import compare_runs
from feedrate.doctor.results import Diagnosis, Fact, Rate, Remedy, TimeShare, load_diagnosis
from feedrate.errors import UsageError
from feedrate.report.doctor_verify import draw_check, draw_gate, draw_verification
from support.diagnoses import (
    make_decode_bound,
    make_device_bound,
    make_ended_early,
    make_no_gpu,
    make_nothing_found,
    make_run,
    make_storage_bound,
    reread,
    rerun,
)


def set_fact(diagnosis: Diagnosis, name: str, value: str) -> tuple[Fact, ...]:
    return (*(one for one in diagnosis.facts if one.name != name), Fact(name, value))


def test_predicted_stands_against_actual() -> None:
    before = make_storage_bound()
    after = rerun(
        before,
        2.2,
        run={"workers": 32, "exposed_wait_share": 0.5},
        command=("srun", "--gpus=1", "python", "-m", "plankton.train", "fold=3", "workers=32"),
        findings=before.findings[1:4],
        rates=(Rate("real", "the run as it is", 429.4, 410.0, 450.0, 100),),
        split=(TimeShare("waiting for data", 0.3, 0.6, 0.29), *before.split[1:]),
    )
    verification = compare_runs(reread(before), after, "more-workers")
    assert verification.is_inside
    assert draw_verification(verification) == (
        "Faster: 2.2x the samples per second, inside the predicted 2.2x (1.8-2.6).\n"
        "\n"
        "before    195 samples/s (171 to 214)\n"
        "now       429 samples/s (410 to 450)\n"
        "predicted 2.2x (1.8-2.6) by 'use 32 workers instead of 8'\n"
        "actual    2.2x (by the spread of both runs 1.92x to 2.6x)\n"
        "idle      81% -> 50% of the time the device stands idle, waiting for data: better\n"
        "changed   workers: 8 -> 32\n"
        "          command: nothing -> workers=32\n"
        "a step    waiting for data: 1.07 s -> 300 ms\n"
        "findings  gone: storage-bound, contended, checkpoint-bound\n"
        "          still there: cold-cache, memory-pressure, epoch-start-pause\n"
        "note      other processes took the machine in one of the runs: measure again when it is quiet\n"
    )


def test_a_gain_outside_the_interval_is_called_so() -> None:
    before = make_storage_bound()
    verification = compare_runs(reread(before), rerun(before, 1.2, run={"workers": 32}), "more-workers")
    assert verification.is_inside is False
    assert ", outside the predicted 2.2x (1.8-2.6).\n" in draw_verification(verification)


def test_what_was_applied_is_named_and_never_guessed() -> None:
    before = make_storage_bound()
    verification = compare_runs(reread(before), rerun(before, 2.2, run={"workers": 32}))
    assert (verification.applied, verification.is_inside) == (None, None)
    assert verification.changed == ("workers: 8 -> 32",)
    assert "predicted --applied NAME says which remedy" in draw_verification(verification)


def test_a_remedy_that_the_earlier_run_did_not_predict_is_refused_with_those_that_it_did() -> None:
    before = replace(make_decode_bound(), remedies=(Remedy("stage", "do it", 1.5, 1.3, 1.7),))
    with pytest.raises(UsageError, match="predicted nothing for 'pack'") as caught:
        compare_runs(reread(before), before, "pack")
    assert caught.value.hint == "it predicted stage"
    with pytest.raises(UsageError, match="predicted nothing") as caught:
        compare_runs(reread(replace(before, remedies=())), before, "pack")
    assert caught.value.hint == "it predicted nothing: leave --applied out"


def test_the_same_run_again_is_no_difference() -> None:
    verification = compare_runs(reread(make_decode_bound()), make_decode_bound())
    text = draw_verification(verification)
    assert text.startswith("No difference beyond noise (1.00x).\n")
    assert "changed   nothing that the doctor can see\n" in text
    assert verification.applied is None
    assert (verification.gone, verification.new) == ((), ())


def test_a_run_without_findings_says_so() -> None:
    verification = compare_runs(reread(make_nothing_found()), make_nothing_found())
    assert "findings  none, as before\n" in draw_verification(verification)


def test_a_worse_wait_is_called_worse() -> None:
    before = make_device_bound()
    after = rerun(before, 0.7, run={"exposed_wait_share": 0.3})
    text = draw_verification(compare_runs(reread(before), after))
    assert text.startswith("Slower: 0.70x the samples per second.\n")
    assert "idle      0.3% -> 30% of the time the device stands idle, waiting for data: worse\n" in text


def test_runs_that_are_not_alike_are_compared_with_a_warning() -> None:
    notes = compare_runs(reread(make_decode_bound()), make_no_gpu()).notes
    assert any("the device is not the same" in note for note in notes)
    assert any("16 cores could be used before, 2 now" in note for note in notes)
    notes = compare_runs(reread(make_decode_bound()), make_ended_early()).notes
    assert any("saw 7 steps only" in note for note in notes)
    notes = compare_runs(reread(make_storage_bound()), make_decode_bound()).notes
    assert any("other processes took the machine" in note for note in notes)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "this is not a document of 'feedrate doctor --json'"),
        ([1, 2], "this is not a document of 'feedrate doctor --json'"),
        ({"traceEvents": []}, "this is not a document of 'feedrate doctor --json'"),
        ({"command": "bench", "schema_version": 1}, "of 'feedrate bench', not of 'feedrate doctor'"),
        (
            {"command": "doctor", "schema_version": 99},
            "schema version 99, and this feedrate reads version 1",
        ),
        (
            {"command": "doctor", "schema_version": 0},
            "schema version 0, and this feedrate reads version 1",
        ),
        ({"command": "doctor", "schema_version": 1}, "is not whole: it has no 'run'"),
        ({"command": "doctor", "schema_version": 1, "run": {"samples_per_s": None}}, "saw no whole step"),
        ({"command": "doctor", "schema_version": 1, "run": {"samples_per_s": 0}}, "saw no whole step"),
    ],
)
def test_a_document_that_cannot_be_compared_is_answered_in_a_sentence(document: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        compare_runs(load_diagnosis(document), make_decode_bound())
    assert caught.value.hint


def test_a_run_without_speed_cannot_be_compared() -> None:
    without = replace(make_decode_bound(), run=make_run(samples_per_s=float("nan")))
    with pytest.raises(UsageError, match="this run saw no whole step"):
        compare_runs(reread(make_decode_bound()), without)


def test_what_is_missing_from_an_older_document_is_unknown() -> None:
    document = {
        "command": "doctor",
        "schema_version": 1,
        "run": {"samples_per_s": 100.0},
        "remedies": [{}, 3],
    }
    text = draw_verification(compare_runs(load_diagnosis(document), make_decode_bound()))
    assert "idle      unknown in one of the runs\n" in text


@pytest.mark.parametrize(
    ("share", "limit", "text"),
    [
        (0.031, 0.05, "passed: the device stood idle, waiting for data, 3% of the time (limit 5%).\n"),
        (0.66, 0.05, "failed: the device stood idle, waiting for data, 66% of the time (limit 5%): "
                     "decode-bound, Pillow's decoding of JPEGs.\n"),
        (math.nan, 0.05, "failed: how long the device stood idle, waiting for data, is unknown (limit 5%): "
                         "decode-bound, Pillow's decoding of JPEGs.\n"),
    ],
)  # fmt: skip
def test_a_check_is_one_line(share: float, limit: float, text: str) -> None:
    diagnosis = replace(make_decode_bound(), run=make_run(exposed_wait_share=share))
    assert draw_check(diagnosis, limit) == text
    assert diagnosis.keeps_wait_below(limit) == text.startswith("passed")


def test_a_check_of_few_steps_says_so() -> None:
    assert "(limit 50%; only 7 steps seen)" in draw_check(make_ended_early(), 0.5)


def test_a_regression_beyond_the_limit_fails_the_gate() -> None:
    before = make_decode_bound()
    verification = compare_runs(reread(before), rerun(before, 0.9))
    assert draw_gate(verification, 0.05) == (
        "failed: 738 samples/s, 820 samples/s before: 10% slower (limit 5% slower).\n"
    )
    assert not verification.keeps_speed(0.05)
    assert draw_gate(verification, 0.15).startswith("passed: ")
    faster = compare_runs(reread(before), rerun(before, 2.5))
    assert draw_gate(faster, 0.0).endswith(": 2.5x as fast (limit 0% slower).\n")


def tell(script: str, *, model: str = "Net on cuda:0", dataset: str = "data.Photos, 9 samples",
         batch: str = "float32 8x3x224x224, int64 8") -> Diagnosis:  # fmt: skip
    facts = (Fact("model", model), Fact("dataset", dataset), Fact("batch", batch))
    seen = make_decode_bound()
    run = replace(seen.run, model=model.partition(" on ")[0])
    return replace(seen, command=("python", script), facts=facts, run=run)


BEFORE = tell("train.py")


@pytest.mark.parametrize(
    "after",
    [
        tell("/home/ada/train.py", model="Smaller on cuda:0", dataset="data.Cached, 9 samples"),
        tell("train_fast.py"),
        tell("train_fast.py", dataset="data.Cached, 9 samples"),
        tell("train_fast.py", model="torch._dynamo.OptimizedModule on cuda:0"),
        tell("train_fast.py", batch="uint8 64x224x224x3, int64 64"),
        tell(
            "train_feedrate.py", dataset="feedrate.loader.dataset.Dataset, 9 samples", model="DDP on cuda:0"
        ),
    ],
    ids=["edited", "copied", "wrapped", "compiled", "as bytes", "fed by feedrate"],
)
def test_a_remedy_that_was_applied_in_another_script_is_compared(after: Diagnosis) -> None:
    assert compare_runs(reread(BEFORE), after).differs == ()


@pytest.mark.parametrize(
    "after",
    [
        tell("b4.py", model="unknown on unknown", dataset="torch.Tensor, 40 samples", batch="float32 8"),
        tell("other.py", dataset="data.Photos, 50 samples", batch="float32 8x9, int64 8"),
        tell("train.py", model="Bert on cuda:0", dataset="data.Texts, 50 samples", batch="int64 8x512"),
    ],
    ids=["nothing alike", "another dataset of that name", "another task of one script"],
)
def test_a_run_of_something_else_is_not_comparable_and_passes_no_gate(after: Diagnosis) -> None:
    verification = compare_runs(reread(BEFORE), rerun(after, 5.0))
    assert verification.applied is None
    assert not verification.keeps_speed(0.5)
    assert draw_gate(verification, 0.5) == "failed: the two runs are not comparable.\n"


def test_what_makes_two_runs_incomparable_is_said() -> None:
    after = tell("b4.py", model="unknown on unknown", dataset="torch.Tensor, 40 samples", batch="float32 8")
    assert draw_verification(compare_runs(reread(BEFORE), after)) == (
        "Not comparable: the two runs are of different things (script: train.py -> b4.py; "
        "model: Net -> unknown; dataset: data.Photos, 9 samples -> torch.Tensor, 40 samples).\n"
        "Give --verify the document of an earlier run of this training.\n"
    )
