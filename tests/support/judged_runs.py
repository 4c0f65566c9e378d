# SPDX-License-Identifier: Apache-2.0
"""Diagnoses of run folders as `doctor_runs` makes them."""

from __future__ import annotations

from pathlib import Path

from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.analyse.metrics import KernelTime, Measured, Tried
from feedrate.doctor.analyse.records import read_run
from feedrate.doctor.analyse.summarise import measure
from feedrate.doctor.analyse.timeline import build_loops
from feedrate.doctor.findings.diagnose import diagnose
from feedrate.doctor.results import Diagnosis
from feedrate.loader.results import LoaderTrial
from feedrate.machine.describe import describe_machine

MACHINE = describe_machine(["feedrate", "doctor"])


def measure_folder(
    folder: Path, around: MachineSummary, tried: Tried | None = None, *, warmup: int = 2
) -> Measured:
    recording = read_run(folder)
    return measure(recording, build_loops(recording, warmup), around, tried)


def judge(
    folder: Path,
    around: MachineSummary | None = None,
    *,
    mode: str = "experiments",
    kernel: KernelTime | None = None,
    trial: LoaderTrial | None = None,
    kept_s: float | None = None,
    keeping_s: float | None = None,
) -> tuple[Measured, Diagnosis]:
    around = around or MachineSummary(cores=8.0)
    measured = measure_folder(folder, around, Tried(kernel, trial=trial, kept_s=kept_s, keeping_s=keeping_s))
    return measured, diagnose(
        measured,
        command=["python", "train.py"],
        mode=mode,
        exit_code=None,
        seconds=10.0,
        machine=MACHINE,
    )
