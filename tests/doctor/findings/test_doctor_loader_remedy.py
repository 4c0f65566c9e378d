# SPDX-License-Identifier: Apache-2.0
"""What feedrate.Loader would give in place of a DataLoader: predicted from a trial on the script's files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from test_doctor_advice import find
from test_doctor_findings import LOCAL, run_steps

from feedrate.cli import make_parser
from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.analyse.metrics import KernelTime, LoaderCall, Measured
from feedrate.doctor.findings.catalogue import list_remedies
from feedrate.doctor.findings.diagnose import find_causes
from feedrate.doctor.findings.feed import replace_loader
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.results import Diagnosis, Remedy
from feedrate.loader.results import LoaderTrial
from support.doctor_runs import MS, FakeLoop
from support.judged_runs import judge

TRIAL = LoaderTrial(
    images=200, threads=2, images_per_s=2000.0, busy_threads=2.0, cpu_s=0.001, alone_cpu_s=0.001,
    scan_s=0.0005,
)  # fmt: skip
HERE = MachineSummary(cores=2.0, data=LOCAL)
DECODING = {"decode:PIL": (98.0, 0.0)}


def judge_loop(
    folder: Path,
    *,
    parts: Mapping[str, tuple[float, float]] = DECODING,
    cpu: float = 100,
    blocked: float = 0,
    wait: float = 40,
    around: MachineSummary = HERE,
    trial: LoaderTrial = TRIAL,
    device: str = "cpu",
) -> Diagnosis:
    """Judge a loop that computes for 10 ms a batch of 8 and has two workers; times in ms a batch."""
    loop = FakeLoop(workers=2)
    loop.main.fact("module", **{"class": "Net", "device": device})
    loop.main.fact("copy-rates", pinned_bytes_per_s=5e10, pageable_bytes_per_s=1e10)
    run_steps(loop, wait)
    loop.fetches(200, 20, cpu=cpu, blocked=blocked, parts=parts).write(folder)
    loop.main.write(folder)
    return judge(folder, around, trial=trial)[1]


def loader_of(diagnosis: Diagnosis) -> Remedy:
    remedy = find(diagnosis, "loader")
    assert remedy is not None
    return remedy


def test_a_loader_is_predicted_by_its_trial_beside_the_training(tmp_path: Path) -> None:
    """Of 110 ms of two cores a batch, 8.9 ms of making and 10 of computing stay: the computing limits."""
    diagnosis = judge_loop(tmp_path)
    remedy = loader_of(diagnosis)
    assert remedy.predicted_speedup == pytest.approx(5.0, rel=0.1)
    assert remedy.high / remedy.low <= 1.5
    assert remedy.next_bottleneck == "device-bound"


def test_it_gives_more_than_the_same_decoder_in_the_dataloader(tmp_path: Path) -> None:
    """The collating, 20 of 118 ms, goes with the workers."""
    loop = FakeLoop(workers=2)
    run_steps(loop, 48)
    parts = {"decode:PIL": (98.0, 0.0), "collate:default_collate": (20.0, 0.0)}
    loop.fetches(200, 20, cpu=118, parts=parts).write(tmp_path)
    loop.main.write(tmp_path)
    kernel = KernelTime(TRIAL.cpu_s, taken=8, tried=8)
    first = judge(tmp_path, HERE, kernel=kernel, trial=TRIAL)[1].findings[0]
    assert first.code == "decode-bound"
    names = [remedy.name for remedy in first.remedies]
    assert names.index("loader") < names.index("faster-decode")


def test_its_command_exists_and_its_note_says_what_was_tried_and_what_packing_takes(tmp_path: Path) -> None:
    remedy = loader_of(judge_loop(tmp_path))
    assert remedy.command == "feedrate pack /data PACK"
    make_parser().parse_args(shlex.split(remedy.command)[1:])
    assert remedy.change == "feedrate.Loader('PACK', ...) in the place of the DataLoader: see docs/loader.md"
    # 10,000 files of 100 KB, each 1.08 times 0.5 ms of scanning and 0.118 ms of what tar does, on two cores.
    assert remedy.note == (
        "2,000 images/s on 2 cores, tried with 200 of these files; "
        "packing takes about 3.34 s, and 1.00 GB of disk"
    )


def test_a_recognised_call_is_the_code_and_no_line_is_guessed(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=100, parts=DECODING).write(tmp_path)
    loop.main.write(tmp_path)
    measured, _ = judge(tmp_path, HERE, trial=TRIAL)
    call = LoaderCall({}, "loader = 1\n", ("a flip",))
    remedy = replace_loader(replace(measured, tried=replace(measured.tried, call=call)))
    assert remedy is not None
    assert (remedy.code, remedy.left_out, remedy.change) == ("loader = 1\n", ("a flip",), None)


def test_what_a_library_does_and_a_loader_does_not_is_counted_and_no_reason_against_it(
    tmp_path: Path,
) -> None:
    """RandAugment, 28 of 98 ms a batch: in one thread beside the Loader it is the limit."""
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    parts = {"decode:PIL": (70.0, 0.0), "transform:RandAugment": (28.0, 0.0)}
    loop.fetches(200, 20, cpu=100, parts=parts).write(tmp_path)
    loop.main.write(tmp_path)
    measured, _ = judge(tmp_path, HERE, trial=TRIAL)
    call = LoaderCall({}, "loader = 1\n", (), dropped=("RandAugment",))
    remedy = replace_loader(replace(measured, tried=replace(measured.tried, call=call)))
    assert remedy is not None
    assert remedy.code == "loader = 1\n"
    assert 1.4 < remedy.predicted_speedup < 2.2  # of 5 without it
    assert "RandAugment, 3.50 ms a sample, counts as done in one thread beside it" in (remedy.note or "")
    unknown = replace_loader(measured)
    assert unknown is not None
    assert "code of your own (RandAugment)" in (unknown.note or "")


def validated(folder: Path, wait: float) -> Measured:
    """Measure steps of 50 ms; after ten, four batches of validation that take `wait` and 5 ms each."""
    loop = FakeLoop(workers=2)
    for number in range(40):
        loop.step(wait=40)
        for batch in range(5 if number % 10 == 9 else 0):
            wall = round(wait * MS) if batch < 4 else 0
            loop.main.record(
                layout.WAIT, "loader-1", loop.now, wall, a=8 if batch < 4 else -1, b=batch, c=layout.PROBED
            )
            loop.now += wall + 5 * MS
    loop.fetches(200, 20, cpu=100, parts=DECODING).write(folder)
    loop.main.write(folder)
    return judge(folder, HERE, trial=TRIAL)[0]


def test_validation_that_gets_a_loader_counts(tmp_path: Path) -> None:
    """Of 102 ms a step 40 are waits of validation, whose 3.2 images take 1.6 ms in 2 ms of computing."""
    measured = validated(tmp_path, wait=100)
    call = LoaderCall({}, "loader = 1\n", ())
    alone = replace_loader(replace(measured, tried=replace(measured.tried, call=call)))
    both = replace(measured, tried=replace(
        measured.tried, call=replace(call, validation={}, validates="loader-1")
    ))  # fmt: skip
    remedy = replace_loader(both)
    assert alone is not None
    assert remedy is not None
    assert remedy.predicted_speedup > 3 * alone.predicted_speedup
    assert "validation with a Loader of its own is counted" in (remedy.note or "")
    finding = next(one for one in find_causes(both, list_remedies(both)) if one.code == "validation-bound")
    assert finding.remedies[0].name == "loader"


def test_validation_that_only_computes_stays(tmp_path: Path) -> None:
    measured = validated(tmp_path, wait=0)
    call = LoaderCall({}, "loader = 1\n", ())
    fed = replace(call, validation={}, validates="loader-1")
    gains = [
        remedy.predicted_speedup
        for one in (call, fed)
        if (remedy := replace_loader(replace(measured, tried=replace(measured.tried, call=one)))) is not None
    ]
    assert gains[0] == gains[1]


def test_the_cores_that_the_training_needs_are_not_the_loaders(tmp_path: Path) -> None:
    """An image takes 5 ms: a batch 41 ms of making and 10 of computing, on two cores."""
    slow = replace(TRIAL, cpu_s=0.005, alone_cpu_s=0.005, images_per_s=400.0)
    remedy = loader_of(judge_loop(tmp_path, trial=slow))
    assert remedy.predicted_speedup == pytest.approx(110 / 52, rel=0.15)
    assert remedy.next_bottleneck == "decode-bound"


def test_workers_that_crowd_the_computing_go_with_what_they_cost_it(tmp_path: Path) -> None:
    """Of 55 ms a step 50 are computing, which takes 10 on batches that are there."""
    loop = FakeLoop(workers=2)
    run_steps(loop, 5, forward=15, backward=30, optimizer=5)
    for _ in range(20):
        loop.step(wait=0.01, phase=layout.REPLAY)
    loop.fetches(200, 20, cpu=100, parts=DECODING).write(tmp_path)
    loop.main.write(tmp_path)
    remedy = loader_of(judge(tmp_path, HERE, trial=TRIAL)[1])
    assert remedy.predicted_speedup == pytest.approx(55 / 10.2, rel=0.03)


def test_the_computing_beside_a_loader_is_what_its_layout_was_seen_to_take(tmp_path: Path) -> None:
    """Planar batches take 10 ms a step; those that lie as a Loader's take 7, and no batch is waited for."""
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    for _ in range(20):
        loop.step(wait=0.01, phase=layout.REPLAY)
    for _ in range(20):
        loop.step(wait=0.01, forward=2, backward=4, optimizer=1, phase=layout.REPLAY_LOADER_LAYOUT)
    loop.fetches(200, 20, cpu=100, parts=DECODING).write(tmp_path)
    loop.main.write(tmp_path)
    measured, diagnosis = judge(tmp_path, HERE, trial=replace(TRIAL, cpu_s=0.0005, alone_cpu_s=0.0005))
    assert measured.device_s == pytest.approx(0.010, rel=0.01)
    assert measured.as_loaded_s == pytest.approx(0.007, rel=0.01)
    assert loader_of(diagnosis).predicted_speedup == pytest.approx(50 / 7.2, rel=0.05)


def test_without_a_trial_of_its_layout_the_computing_is_that_of_kept_batches(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=100, parts=DECODING).write(tmp_path)
    loop.main.write(tmp_path)
    measured = judge(tmp_path, HERE, trial=TRIAL)[0]
    assert measured.as_loaded_s == measured.device_s


def test_on_a_gpu_a_layout_that_computes_faster_is_not_held_up_by_the_other(tmp_path: Path) -> None:
    """By the GPU's own clock 10 ms a step are computing, planar; as a Loader's lie, steps take 6."""
    loop = FakeLoop(workers=2)
    loop.main.fact("module", **{"class": "Net", "device": "cuda:0"})
    run_steps(loop, 40)
    for n in range(20):
        loop.main.record(layout.DEVICE, "", n * MS, 10 * MS)
    for phase, each in ((layout.REPLAY, 10), (layout.REPLAY_LOADER_LAYOUT, 6)):
        loop.main.fact("phase", phase=phase, start_ns=0, end_ns=20 * each * MS, batches=20, detail={})
    loop.fetches(200, 20, cpu=100, parts=DECODING).write(tmp_path)
    loop.main.write(tmp_path)
    around = replace(HERE, cores=16.0, gpus=1, gpu_name="H200", gpu_utilisation=0.2, device_cpu_share=1.0)
    trial = replace(TRIAL, threads=16, busy_threads=16.0, images_per_s=16000.0)
    assert loader_of(judge(tmp_path, around, trial=trial)[1]).predicted_speedup == pytest.approx(
        50 / 6.2, rel=0.05
    )


@pytest.mark.parametrize(
    ("cpu_s", "device", "is_said"), [(0.02, "cuda:0", True), (0.001, "cuda:0", False), (0.02, "cpu", False)]
)
def test_that_a_gpu_may_decode_too_is_said_where_decoding_would_limit(
    tmp_path: Path, cpu_s: float, device: str, is_said: bool
) -> None:
    around = replace(HERE, cores=4.0, device_cpu_share=1.0)
    trial = replace(
        TRIAL, cpu_s=cpu_s, alone_cpu_s=cpu_s, threads=4, busy_threads=4.0, images_per_s=4 / cpu_s
    )
    parts = {"decode:PIL": (395.0, 0.0)}
    diagnosis = judge_loop(
        tmp_path, around=around, trial=trial, device=device, wait=190, cpu=400, parts=parts
    )
    remedy = loader_of(diagnosis)
    assert ("what the GPU decodes beside them" in remedy.note) is is_said


def test_threads_that_find_nothing_to_do_are_not_counted(tmp_path: Path) -> None:
    half = replace(TRIAL, cpu_s=0.005, alone_cpu_s=0.005, images_per_s=200.0, busy_threads=1.0)
    whole = replace(half, busy_threads=2.0)
    predicted = [
        loader_of(judge_loop(folder, trial=trial)).predicted_speedup
        for folder, trial in ((tmp_path / "half", half), (tmp_path / "whole", whole))
        if folder.mkdir() is None
    ]
    assert predicted[0] < 0.8 * predicted[1]


def test_on_a_gpu_its_batches_arrive_beside_the_computing(tmp_path: Path) -> None:
    """Of 10 ms a step, 4 are a copy of 40 MB from pageable memory, which a Loader hides."""
    around = replace(
        HERE,
        cores=16.0,
        gpus=1,
        gpu_name="H200",
        gpu_utilisation=0.2,
        copied_bytes=4e7,
        copied_element_bytes=4,
    )
    trial = replace(TRIAL, threads=16, busy_threads=16.0, images_per_s=16000.0)
    remedy = loader_of(judge_loop(tmp_path, device="cuda:0", around=around, trial=trial))
    assert remedy.predicted_speedup == pytest.approx(50 / 6.2, rel=0.15)


def test_code_of_the_users_own_keeps_its_workers(tmp_path: Path) -> None:
    remedy = loader_of(
        judge_loop(tmp_path, parts={"decode:PIL": (66.0, 0.0), "transform:AddRain": (32.0, 0.0)})
    )
    assert remedy.predicted_speedup == 1.0
    assert remedy.note.startswith(
        "4.00 ms a sample are code of your own (AddRain), which would run in one thread"
    )
    assert "feedrate.Dataset in the DataLoader" in remedy.note


@pytest.mark.parametrize(("device", "is_predicted"), [("cpu", False), ("cuda:0", True)])
def test_colours_are_changed_on_the_gpu_and_nowhere_else(
    tmp_path: Path, device: str, is_predicted: bool
) -> None:
    parts = {"decode:PIL": (66.0, 0.0), "transform:ColorJitter": (32.0, 0.0)}
    remedy = loader_of(judge_loop(tmp_path, parts=parts, device=device))
    assert (remedy.predicted_speedup > 1.5) is is_predicted


def test_what_the_kernel_does_on_its_way_is_no_code_of_the_users_own(tmp_path: Path) -> None:
    parts = {
        f"transform:{name}": (15.0, 0.0)
        for name in ("RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize")
    }
    remedy = loader_of(judge_loop(tmp_path, parts={"decode:PIL": (40.0, 0.0), **parts}))
    assert remedy.predicted_speedup > 3


def test_storage_that_is_waited_for_is_still_waited_for(tmp_path: Path) -> None:
    """Of 800 ms that a batch of small files waits in each of two workers, a pack leaves a quarter."""
    remedy = loader_of(
        judge_loop(tmp_path, cpu=20, blocked=800, wait=400, parts={"decode:PIL": (19.0, 800.0)})
    )
    assert remedy.predicted_speedup == pytest.approx(410 / 100, rel=0.1)
    assert "'feedrate stage'" in remedy.note


def test_a_step_of_two_loaders_is_not_predicted_from_a_trial_of_one(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    loop.main.fact("loader", loader="loader-1", num_workers=2, batch_size=8)
    for number in range(40):
        loop.main.record(layout.WAIT, "loader-1", loop.now, 9 * MS, a=8, b=number, c=layout.PROBED)
        loop.now += 9 * MS
        loop.step(wait=40)
    loop.fetches(200, 20, cpu=100, parts=DECODING).write(tmp_path)
    loop.main.write(tmp_path)
    remedy = loader_of(judge(tmp_path, HERE, trial=TRIAL)[1])
    assert remedy.predicted_speedup == 1.0
    assert "2 loaders" in remedy.note


def test_samples_of_two_files_cost_two_images(tmp_path: Path) -> None:
    """The workers read 100 KB a sample: two files of 50 KB."""
    slow = replace(TRIAL, cpu_s=0.005, alone_cpu_s=0.005, images_per_s=400.0)
    pairs = replace(HERE, data=replace(LOCAL, mean_bytes=5e4))
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = loader_of(judge_loop(tmp_path / "one", trial=slow)).predicted_speedup
    two = loader_of(judge_loop(tmp_path / "two", trial=slow, around=pairs)).predicted_speedup
    assert two == pytest.approx(one * 51 / 91, rel=0.1)


def test_without_a_trial_nothing_is_said(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=100, parts=DECODING).write(tmp_path)
    loop.main.write(tmp_path)
    assert find(judge(tmp_path, HERE)[1], "loader") is None
