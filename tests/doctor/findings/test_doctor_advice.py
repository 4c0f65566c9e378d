# SPDX-License-Identifier: Apache-2.0
"""What the doctor advises: on the user's own code, with commands that exist, in words that fit the run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_doctor_findings import LOCAL, run_steps

from feedrate.cli import make_parser
from feedrate.doctor.analyse.data_files import time_keeping, time_kept
from feedrate.doctor.analyse.machine_summary import DataFiles, MachineSummary
from feedrate.doctor.analyse.metrics import KernelTime
from feedrate.doctor.analyse.records import read_run
from feedrate.doctor.analyse.stacks import count_looks, is_library
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.results import Diagnosis, Finding, Remedy
from support.doctor_runs import MS, FakeLoop, FakeProcess
from support.judged_runs import judge

COLLATE = "/env/lib/python3.11/site-packages/torch/utils/data/_utils/collate.py:275@3 collate_tensor_fn"
FETCH = "/env/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py:54@9 _MapDatasetFetcher.fetch"
SCIPY = "/env/lib/python3.11/site-packages/scipy/signal/_spectral.py:800@5 spectrogram"
MINE = "/home/ada/data.py:31@7 Sounds.__getitem__"
SCRIPT = "/home/ada/train.py:12@2 <module>"
EXIT = "/usr/lib/python3.11/weakref.py:666@1 finalize._exitfunc"


def look(process: FakeProcess, frames: list[str], *, times: int, in_fetch: bool, bits: int = 0) -> None:
    for number in range(times):
        bits |= layout.ON_CPU | (layout.IN_FETCH if in_fetch else 0)
        process.record(layout.STACK, ";".join(frames), (1000 + number) * MS, 0, a=bits)


def judge_looks(folder: Path, *, worker: list[list[str]], main: list[list[str]]) -> Diagnosis:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40, other=20)
    fetching = loop.fetches(200, 20, cpu=100)
    for frames in worker:
        look(fetching, frames, times=20, in_fetch=True)
    for frames in main:
        look(loop.main, frames, times=20, in_fetch=False)
    fetching.write(folder)
    loop.main.write(folder)
    return judge(folder, MachineSummary(cores=2.0))[1]


def find(diagnosis: Diagnosis, name: str) -> Remedy | None:
    return next((remedy for remedy in diagnosis.remedies if remedy.name == name), None)


def test_nobody_is_told_to_rewrite_a_library(tmp_path: Path) -> None:
    diagnosis = judge_looks(tmp_path, worker=[[COLLATE, FETCH, SCRIPT], [FETCH, SCRIPT]], main=[[EXIT]])
    assert find(diagnosis, "vectorise-transform") is None
    assert find(diagnosis, "speed-up-loop") is None
    said = [line for finding in diagnosis.findings for line in finding.evidence]
    assert not [line for line in said if "site-packages" in line or "weakref" in line]


def test_what_a_line_does_in_order_to_write_goes_with_the_writing(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(40):
        # 20 ms of a step are drawing, and 60 saving, on one line.
        loop.step(wait=0.2, other=80)
        loop.main.record(layout.WRITE, "PIL.save /home/ada/train.py:30", loop.now - 60 * MS, 60 * MS)
    look(loop.main, ["/home/ada/train.py:30@9 preview"], times=80, in_fetch=False)
    loop.main.write(tmp_path)
    remedy = find(judge(tmp_path, MachineSummary(cores=2.0))[1], "write-less")
    assert remedy is not None
    assert remedy.predicted_speedup == pytest.approx(90 / 14, rel=0.05)


def test_the_line_that_calls_the_model_is_not_blamed_for_the_model(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 0.2, other=20)
    look(loop.main, [SCIPY, SCRIPT], times=60, in_fetch=False, bits=layout.IN_MODEL)
    look(loop.main, [SCIPY, "/home/ada/metrics.py:7@2 count"], times=20, in_fetch=False)
    loop.main.write(tmp_path)
    diagnosis = judge(tmp_path, MachineSummary(cores=2.0))[1]
    assert diagnosis.findings[0].code == "main-thread-bound"
    assert "count (/home/ada/metrics.py:7) has 100% of the looks" in diagnosis.findings[0].evidence[1]
    remedy = find(diagnosis, "speed-up-loop")
    assert remedy is not None
    assert "/home/ada/metrics.py:7" in remedy.title


def test_what_a_batch_needs_before_its_forward_pass_can_be_done_by_workers(tmp_path: Path) -> None:
    loop = FakeLoop(workers=1)
    run_steps(loop, 0.2, before=15)
    look(loop.main, ["/home/ada/train.py:24@2 encode", SCRIPT], times=60, in_fetch=False)
    loop.fetches(200, 20, cpu=1).write(tmp_path)
    loop.main.write(tmp_path)
    diagnosis = judge(tmp_path, MachineSummary(cores=4.0))[1]
    assert diagnosis.findings[0].code == "main-thread-bound"
    moved, faster = find(diagnosis, "move-to-workers"), find(diagnosis, "speed-up-loop")
    assert moved is not None
    assert moved in diagnosis.findings[0].remedies
    assert moved.low < 25.2 / 10.2 < moved.high
    assert "num_workers=2" in (moved.change or "")
    assert faster is not None
    assert faster.title == "use array operations in encode (/home/ada/train.py:24)"


def test_the_one_worker_that_has_no_time_left_takes_no_more_work_for_nothing(tmp_path: Path) -> None:
    loop = FakeLoop(workers=1)
    run_steps(loop, 0.2, before=15)
    loop.fetches(200, 20, cpu=1).write(tmp_path)
    loop.main.write(tmp_path)
    # One core for all: it does not matter who prepares the batches.
    moved = find(judge(tmp_path, MachineSummary(cores=1.0))[1], "move-to-workers")
    assert moved is not None
    assert moved.predicted_speedup == pytest.approx(1.0, abs=0.1)


def test_what_comes_after_the_forward_pass_is_no_work_for_workers(tmp_path: Path) -> None:
    loop = FakeLoop(workers=1)
    run_steps(loop, 0.2, other=15)
    loop.fetches(200, 20, cpu=1).write(tmp_path)
    loop.main.write(tmp_path)
    assert find(judge(tmp_path, MachineSummary(cores=4.0))[1], "move-to-workers") is None


TRAIN = """\
def iou(a, b):
    return max(a[0], b[0])

def precision(boxes):
    for box in boxes:
        iou(box, box)

def scale(images):
    return images / 255

for epoch in range(9):
    for images, boxes in loader:
        scale(images)
        precision(boxes)
"""


def hot_places(folder: Path, *stacks: str, asked_at: str = "train.py:12") -> dict[str, bool]:
    """Say of functions whether the looks, each `line function` innermost first, found Python loops there."""
    (folder / "train.py").write_text(TRAIN)
    process = FakeProcess(100, rank=0, role="main")
    for number, stack in enumerate(stacks):
        frames = [f"{folder}/train.py:{frame}" for frame in stack.split(";")]
        frames[0] = frames[0].replace(" ", f"@{number} ")
        look(process, frames, times=20, in_fetch=False, bits=layout.INTERPRETED)
    process.write(folder)
    looks = count_looks(read_run(folder).processes, in_fetch=False, asked_at=f"{folder}/{asked_at}")
    return {place.function: place.is_python for place in looks.places}


def test_a_small_function_that_a_loop_calls_belongs_to_the_loop(tmp_path: Path) -> None:
    assert hot_places(tmp_path, "2 iou;6 precision;14 <module>") == {"iou": True}


def test_the_training_loop_makes_no_hot_loop_of_what_it_calls(tmp_path: Path) -> None:
    assert hot_places(tmp_path, "9 scale;13 <module>") == {"scale": False}
    assert hot_places(tmp_path, "13 <module>") == {"<module>": False}


def test_a_loop_that_others_ask_batches_for_says_nothing_of_what_lies_inside(tmp_path: Path) -> None:
    assert hot_places(tmp_path, "9 scale;13 <module>", asked_at="prefetch.py:3") == {"scale": False}


def test_looks_share_out_the_loops_own_time_and_do_not_measure_it(tmp_path: Path) -> None:
    """A thread that is busy with Python gives way late: many looks fall into the optimizer, or beside it."""
    (tmp_path / "train.py").write_text(TRAIN)
    looped, stepped = (
        f"{tmp_path}/train.py:2@4 iou;{tmp_path}/train.py:6 precision",
        f"{tmp_path}/train.py:12",
    )
    loop = FakeLoop(workers=2)
    bits = layout.ON_CPU | layout.INTERPRETED
    for _ in range(40):
        loop.step(wait=0.2, forward=2, backward=2, optimizer=1, other=30)
        loop.main.record(layout.STACK, looped, loop.now - 10 * MS, 0, a=bits)
        for _ in range(3):
            loop.main.record(layout.STACK, f"{stepped} main", loop.now - round(30.5 * MS), 0, a=layout.ON_CPU)
        loop.main.record(layout.STACK, f"{stepped} main", loop.now - round(29.9 * MS), 0, a=layout.ON_CPU)
    loop.main.write(tmp_path)
    remedy = find(judge(tmp_path, MachineSummary(cores=2.0))[1], "speed-up-loop")
    assert remedy is not None
    assert "iou" in remedy.title
    assert remedy.predicted_speedup == pytest.approx(35.2 / (5.2 + 1.5), rel=0.03)


@pytest.mark.parametrize(("decode_s", "words"), [(0.001, "pack the files alone"), (0.02, "pack the files")])
def test_packing_is_not_called_useless_where_the_decoder_that_comes_with_it_helps(
    tmp_path: Path, decode_s: float, words: str
) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=100, parts={"decode:PIL": (90, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    kernel = KernelTime(decode_s, taken=8, tried=8)
    remedy = find(judge(tmp_path, MachineSummary(cores=2.0, data=LOCAL), kernel=kernel)[1], "pack")
    assert remedy is not None
    assert (remedy.title, remedy.note) == (words, "reads are 0% of the time")


def test_work_in_a_library_is_named_by_the_users_line_that_calls_it(tmp_path: Path) -> None:
    source = tmp_path / "data.py"
    source.write_text("def f(sounds):\n    for sound in sounds:\n        spectrogram(sound)\n")
    mine = f"{source}:3@7 Sounds.__getitem__"
    diagnosis = judge_looks(tmp_path, worker=[[COLLATE, FETCH], [SCIPY, mine, FETCH]], main=[[SCIPY, SCRIPT]])
    transform, loop = find(diagnosis, "vectorise-transform"), find(diagnosis, "speed-up-loop")
    assert transform is not None
    assert (
        transform.title == f"replace the Python loop in Sounds.__getitem__ ({source}:3) by array operations"
    )
    assert loop is not None
    assert "<module> (/home/ada/train.py:12)" in loop.title


@pytest.mark.parametrize(
    "text",
    [
        "def f(sound):\n    x = sound\n    return spectrogram(x)\n",
        "def f(sounds):\n    for sound in sounds:\n        yield spectrogram(sound)\n",
    ],
    ids=["one call", "a loop over samples"],
)
def test_array_operations_are_advised_only_instead_of_a_loop(tmp_path: Path, text: str) -> None:
    source = tmp_path / "data.py"
    source.write_text(text)
    diagnosis = judge_looks(tmp_path, worker=[[SCIPY, f"{source}:3@7 f", FETCH]], main=[])
    assert find(diagnosis, "vectorise-transform") is None


@pytest.mark.parametrize(
    "frame",
    [
        COLLATE,
        EXIT,
        "/usr/lib64/python3.9/random.py:5@1 gauss",
        "/opt/pypy/lib/pypy3.10/random.py:5@1 gauss",
        "/usr/lib/python3/dist-packages/numpy/core.py:5@1 dot",
        "/opt/lib/python311.zip/random.py:5@1 gauss",
        "<frozen importlib._bootstrap>:7@1 _load",
    ],
)
def test_a_librarys_code_is_known_wherever_it_is_installed(frame: str) -> None:
    assert is_library(frame)


@pytest.mark.parametrize(
    "frame",
    [MINE, "<string>:1@1 <module>", "/home/ada/lib/python/train.py:3@1 f", "/srv/lib/pythonic.py:3 f"],
)
def test_the_users_code_is_known_wherever_it_lies(frame: str) -> None:
    assert not is_library(frame)


def judge_slow_files(folder: Path, data: DataFiles, *, blocked: float = 95, cpu: float = 5) -> Diagnosis:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    parts = {"read:open": (1.0, blocked), "decode:PIL": (0.8 * cpu, 0.0)}
    loop.fetches(200, 20, cpu=cpu, blocked=blocked, parts=parts, from_disk=1.0).write(folder)
    loop.fetches(201, 20, cpu=cpu, blocked=1, phase=layout.AGAIN).write(folder)
    loop.main.fact("phase", phase=layout.DRAIN, start_ns=0, end_ns=1, batches=4)
    for phase in (layout.DRAIN, layout.AGAIN):
        for _ in range(12):
            loop.step(wait=40, phase=phase)
    loop.main.write(folder)
    around = MachineSummary(
        cores=2.0, data=data, scratch="/scr/ada b", scratch_bytes_per_s=1e9, memory_limit_bytes=64e9,
        decoded_bytes=1e9,
    )  # fmt: skip
    return judge(folder, around)[1]


def command_of(diagnosis: Diagnosis, name: str) -> str | None:
    remedy = find(diagnosis, name)
    assert remedy is not None
    return remedy.command


def test_staging_has_its_command_with_the_folders_quoted(tmp_path: Path) -> None:
    diagnosis = judge_slow_files(tmp_path, replace(LOCAL, folder="/data/my photos"))
    command = command_of(diagnosis, "stage")
    assert command == "feedrate stage '/data/my photos' --scratch '/scr/ada b'"
    make_parser().parse_args(shlex.split(command)[1:])


def test_keeping_samples_in_memory_has_its_line_of_python(tmp_path: Path) -> None:
    remedy = find(judge_slow_files(tmp_path, LOCAL), "cache-in-memory")
    assert remedy is not None
    assert remedy.change is not None
    assert remedy.change.startswith("DataLoader(feedrate.cached(dataset).map(augment), ...)")


def test_files_are_read_once_by_a_command_that_takes_them(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    files = command_of(judge_slow_files(tmp_path / "run", LOCAL), "warm-page-cache")
    assert files == "find /data -type f -exec cat {} + > /dev/null"
    (tmp_path / "pack.json").write_text("{}")
    pack = replace(LOCAL, folder=str(tmp_path))
    command = command_of(judge_slow_files(tmp_path / "run", pack), "warm-page-cache")
    assert command == f"feedrate stage {shlex.quote(str(tmp_path))} --warm"
    make_parser().parse_args(shlex.split(command)[1:])


def preprocess(folder: Path, suffix: str) -> Remedy | None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    parts = {"transform:scipy.spectrogram": (85.0, 0.0)}
    loop.fetches(200, 20, cpu=100, parts=parts).write(folder)
    loop.main.fact("phase", phase=layout.AGAIN, start_ns=0, end_ns=1, batches=20, detail={"same": True})
    loop.main.write(folder)
    around = MachineSummary(cores=2.0, data=replace(LOCAL, suffixes=(suffix,)))
    return find(judge(folder, around)[1], "preprocess-once")


def test_preprocessing_of_images_once_is_a_map_of_pack(tmp_path: Path) -> None:
    remedy = preprocess(tmp_path, ".png")
    assert remedy is not None
    assert remedy.command == "feedrate pack /data PACK --map MODULE:FUNCTION --raw"
    make_parser().parse_args(shlex.split(remedy.command)[1:])


def test_preprocessing_of_other_files_once_is_what_cached_keeps(tmp_path: Path) -> None:
    remedy = preprocess(tmp_path, ".npy")
    assert remedy is not None
    assert remedy.command is None
    assert remedy.change == 'DataLoader(feedrate.cached(dataset, disk="FOLDER:SIZE", key="NAME"), ...)'


def keep_samples(
    folder: Path, *, same: bool, undrawn: int = 0, drawn: int = 0, **kept: float
) -> tuple[Remedy, Remedy]:
    """Return what keeping samples gives, in memory and on a disk: 40 of 100 ms a batch read and decode."""
    loop = FakeLoop(workers=2)
    loop.main.fact("batch", loader="loader-0", samples=8, tensors=[{"bytes": 800_000}])
    run_steps(loop, 53, forward=0.4, backward=0.5, optimizer=0.1)
    parts = {"read:open": (10.0, 0.0), "decode:PIL": (30.0, 0.0), "collate:default_collate": (5.0, 0.0)}
    worker = loop.fetches(200, 20, cpu=100, parts=parts)
    known = layout.DRAWS_KNOWN
    look(worker, [MINE], times=undrawn, in_fetch=True, bits=known)
    look(worker, [MINE], times=drawn, in_fetch=True, bits=known | layout.RANDOM_DRAWN)
    worker.write(folder)
    loop.main.fact("phase", phase=layout.AGAIN, start_ns=0, end_ns=1, batches=20, detail={"same": same})
    loop.main.write(folder)
    diagnosis = judge(folder, MachineSummary(cores=2.0, data=LOCAL), **kept)[1]
    memory, disk = find(diagnosis, "cache-in-memory"), find(diagnosis, "preprocess-once")
    assert memory is not None
    assert disk is not None
    return memory, disk


def test_samples_that_are_kept_cost_the_taking_and_the_collating_wherever_they_lie(tmp_path: Path) -> None:
    memory, disk = keep_samples(tmp_path, same=True, kept_s=0.000125)
    # A batch and a step take 101 ms of two cores; then collating 5, taking 8 x 0.125, and the step.
    assert memory.predicted_speedup == pytest.approx(101 / 7, rel=0.1)
    assert disk.predicted_speedup == memory.predicted_speedup
    assert "cached(dataset)" in (memory.change or "")


def test_what_the_first_epoch_of_kept_samples_costs_is_told(tmp_path: Path) -> None:
    memory, disk = keep_samples(tmp_path, same=True, kept_s=0.000125, keeping_s=0.025)
    # 8 x 25 ms of storing to 101 ms of making and computing.
    assert "the first epoch, which fills it, takes 3.0 times as long as now" in memory.note
    assert "the first epoch, which fills it, takes 3.0 times as long as now" in disk.note


def test_a_first_epoch_that_takes_no_longer_is_told_so(tmp_path: Path) -> None:
    memory, _ = keep_samples(tmp_path, same=True, kept_s=0.000125, keeping_s=0.0001)
    assert "the first epoch, which fills it, takes as long as now" in memory.note


def judge_rows(
    folder: Path, *, cpu: float = 40.0, size: int = 8000, same: bool = True, **loader: Any
) -> Remedy | None:
    """Return what batch indexing would give to rows of a table: 100 a batch, of Python alone."""
    loop = FakeLoop(workers=2, batch=100, loader={"iterable": False, **loader})
    loop.main.fact("batch", loader="loader-0", samples=100, tensors=[{"bytes": size}])
    run_steps(loop, 25, forward=0.4, backward=0.5, optimizer=0.1)
    worker = loop.fetches(200, 20, cpu=cpu, parts={"collate:default_collate": (0.25 * cpu, 0.0)})
    look(worker, [MINE], times=30, in_fetch=True)
    worker.write(folder)
    loop.main.fact("phase", phase=layout.AGAIN, start_ns=0, end_ns=1, batches=20, detail={"same": same})
    loop.main.write(folder)
    return find(judge(folder, MachineSummary(cores=2.0))[1], "index-batches")


def test_rows_that_are_taken_one_by_one_are_better_taken_by_the_batch(tmp_path: Path) -> None:
    remedy = judge_rows(tmp_path)
    assert remedy is not None
    assert remedy.predicted_speedup > 8
    assert "100 samples" in remedy.title
    assert "__getitems__" in (remedy.code or "")
    compile(remedy.code or "", "code", "exec")


@pytest.mark.parametrize(
    "row",
    [{"cpu": 4000.0}, {"size": 80_000_000}, {"same": False}, {"iterable": True}, {"takes_batches": True}],
    ids=["they are not cheap", "they are not small", "they are random", "a stream", "it does so already"],
)
def test_nobody_is_told_to_index_batches_where_that_is_not_the_cost(
    row: dict[str, Any], tmp_path: Path
) -> None:
    assert judge_rows(tmp_path, **row) is None


def test_of_random_samples_what_comes_before_the_first_random_number_is_kept(tmp_path: Path) -> None:
    memory, disk = keep_samples(tmp_path, same=False, undrawn=30, drawn=10, kept_s=0.0)
    # Three quarters of 95 ms go.
    assert memory.predicted_speedup == pytest.approx(101 / (101 - 71.25), rel=0.05)
    assert disk.predicted_speedup == memory.predicted_speedup
    assert ".map(augment)" in (memory.change or "")


def test_what_a_kept_sample_takes_is_tried_where_it_was_not_measured() -> None:
    small, large = (time_kept({"samples": 4, "tensors": [{"bytes": n}]}) for n in (4_000, 40_000_000))
    assert small is not None
    assert large is not None
    assert 0 < small < large
    storing = time_keeping({"samples": 4, "tensors": [{"bytes": 4_000}]})
    assert storing is not None
    assert storing > 0
    assert time_kept({"samples": 4, "tensors": []}) is None
    assert time_kept({"samples": 1, "tensors": [{"bytes": 1 << 40}]}) is None


def find_decoding(folder: Path, crop: str) -> Finding:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    parts = {"decode:PIL": (85.0, 0.0), f"transform:{crop}": (10.0, 0.0)}
    loop.fetches(200, 20, cpu=100, parts=parts).write(folder)
    loop.main.write(folder)
    return judge(folder, MachineSummary(cores=2.0))[1].findings[0]


def test_a_crop_is_blamed_only_where_there_is_one(tmp_path: Path) -> None:
    assert "crop" in find_decoding(tmp_path, "RandomResizedCrop").cause
    assert "crop" not in find_decoding(tmp_path, "Normalize").cause


def test_contention_tells_of_the_computing_only_where_it_waits(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=40, queue=60, parts={"decode:PIL": (35, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0, cores_ours=0.9, cores_others=1.1))
    assert diagnosis.findings[0].code == "contended"
    assert not [line for line in diagnosis.findings[0].evidence if "forward" in line]


def test_a_handover_that_takes_less_than_the_making_is_not_said_to_take_more(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40, wait_cpu=2)
    loop.fetches(200, 20, cpu=100, parts={"collate:default_collate": (25, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0))
    handover = next(finding for finding in diagnosis.findings if finding.code == "handover-bound")
    assert "more than" not in f"{handover.title} {handover.cause}"
    assert "longer than" not in f"{handover.title} {handover.cause}"


def drain(loop: FakeLoop, period: float) -> None:
    for _ in range(12):
        loop.step(wait=period - 10, phase=layout.DRAIN)


@pytest.mark.parametrize(
    ("queue", "judged"), [(800.0, lambda share: share < 0.1), (0.0, lambda share: share > 0.2)]
)
def test_a_loader_that_waits_for_cores_is_not_taken_for_a_slow_handover(
    tmp_path: Path, queue: float, judged: Callable[[float], bool]
) -> None:
    """Drained, a batch comes every 300 ms: workers in want of cores explain that, an empty pipe does not."""
    loop = FakeLoop(workers=2)
    run_steps(loop, 450)
    drain(loop, 300)
    loop.fetches(200, 20, cpu=100, queue=queue).write(tmp_path)
    loop.main.write(tmp_path)
    around = MachineSummary(cores=2.0, cores_ours=0.4, cores_others=1.2 if queue else 0.0)
    _, diagnosis = judge(tmp_path, around)
    shares = {finding.code: finding.share for finding in diagnosis.findings}
    assert judged(shares.get("handover-bound", 0.0))
