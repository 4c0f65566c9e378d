# SPDX-License-Identifier: Apache-2.0
"""The verdicts that the documents show, drawn by the program.

docs/doctor.md explains that of a run which is written down here, README.md shows that of a run whose document
is committed. `PYTHONPATH=tests python -m support.doctor_sample` puts both there anew; look at the difference
before committing.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import tempfile
import types
import typing
from pathlib import Path
from typing import Any

from feedrate.doctor.analyse.machine_summary import DataFiles, MachineSummary
from feedrate.doctor.analyse.metrics import KernelTime, Tried
from feedrate.doctor.findings.diagnose import diagnose
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.results import Diagnosis
from feedrate.loader.results import LoaderTrial
from feedrate.report.doctor import draw_diagnosis
from support.bench_results import MACHINE
from support.doctor_runs import MS, FakeLoop
from support.judged_runs import measure_folder
from support.paths import ROOT

PAGE = ROOT / "docs" / "doctor.md"
BLOCK = re.compile(r"(?<=## Reading the verdict\n\n```text\n).*?(?=```\n)", re.DOTALL)
README = ROOT / "README.md"
README_BLOCKS = re.compile(r"(?<=```text\n).*?(?=```\n)", re.DOTALL)  # the verdict, and further down the code
EXAMPLE = ROOT / "benchmarks" / "results" / "doctor-example.json"
CORES = 16
FILES = DataFiles(
    folder="/data/imagenet/train", kind="ext4", source="/dev/nvme0n1", is_network=False, is_fuse=False,
    is_memory=False, is_rotational=False, files_seen=1000, mean_bytes=1.1e5, suffixes=(".jpg",), resident=1.0,
    dataset_bytes=1.4e11,
)  # fmt: skip


def make_sample() -> Diagnosis:
    """Return what the doctor finds in a run of 110 steps on a GPU, whose 16 workers decode with Pillow."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _record(folder)
        around = MachineSummary(
            cores=CORES, cores_ours=15.6, cores_others=2.9, biggest_other="2.5 of them by simulate (ada)",
            data=FILES, gpus=1, gpu_name="NVIDIA H200", gpu_utilisation=0.31, memory_limit_bytes=1.28e11,
            memory_used_bytes=1.9e10, decoded_bytes=7.7e11,
        )  # fmt: skip
        kernel = KernelTime(0.0011, taken=24, tried=24)
        trial = LoaderTrial(
            images=256, threads=CORES, images_per_s=11_200.0, busy_threads=15.7, cpu_s=0.0014,
            alone_cpu_s=0.0011, scan_s=0.0006,
        )  # fmt: skip
        measured = measure_folder(folder, around, Tried(kernel=kernel, trial=trial), warmup=10)
    return diagnose(
        measured,
        command=["python", "train.py"],
        mode="experiments",
        exit_code=None,
        seconds=71.0,
        machine=MACHINE,
    )


def _record(folder: Path) -> None:
    loader = {"class": "DataLoader", "dataset": "data.Photos", "pin_memory": True, "prefetch_factor": 2}
    loop = FakeLoop(workers=CORES, batch=256, loader=loader)
    loop.main.fact("torch", version="2.13.0", cuda=True, threads=CORES)
    loop.main.fact("module", **{"class": "ResNet", "device": "cuda:0"})
    for number in range(110):
        loop.step(wait=214, forward=28, backward=52, optimizer=5, other=13, probed=number % 8 < 6)
    parts = {
        "read:open": (20.0, 40.0), "decode:PIL": (3150.0, 0.0), "transform:RandomResizedCrop": (400.0, 0.0),
        "transform:ColorJitter": (640.0, 0.0), "collate:default_collate": (150.0, 0.0),
    }  # fmt: skip
    for pid in range(200, 200 + CORES):
        loop.fetches(pid, 6, cpu=4500, queue=450, blocked=40, parts=parts).write(folder)
    # The device alone, and the run with another number of workers and once more as it is.
    for phase, step, detail in (
        (layout.REPLAY, 97, {}), (layout.TRIAL, 316, {"workers": 8}), (layout.TRIAL, 312, {"workers": CORES}),
        (layout.REPLAY_HALF_PRECISION, 58, {"dtype": "bfloat16"}),
    ):  # fmt: skip
        loop.main.fact("phase", phase=phase, start_ns=0, end_ns=30 * step * MS, batches=30, detail=detail)
    loop.main.write(folder)


def draw_sample() -> str:
    return draw_diagnosis(make_sample())


def draw_example() -> list[str]:
    """Return the verdict, and the code to paste."""
    document = json.loads(EXAMPLE.read_text())
    text = draw_diagnosis(_read(Diagnosis, {**document, "command": document["argv"]}))
    verdict, _, code = text.partition("\nThe code to")
    return [verdict, f"The code to{code}"]


def _read(hint: Any, value: Any) -> Any:
    """Return what a result's document was made of, by the types of its fields."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return None
    if origin in (typing.Union, types.UnionType):
        return _read(next(one for one in arguments if one is not type(None)), value)
    if origin is tuple:
        hints = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(map(_read, hints, value))
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        known = [field.name for field in dataclasses.fields(hint) if field.name in value]
        return hint(**{name: _read(hints[name], value[name]) for name in known})
    return value


if __name__ == "__main__":
    for page, block, texts in ((PAGE, BLOCK, [draw_sample()]), (README, README_BLOCKS, draw_example())):
        left = iter(texts)
        page.write_text(block.sub(lambda _, left=left: next(left), page.read_text()))
        sys.stdout.writelines(texts)
