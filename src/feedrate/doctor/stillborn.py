# SPDX-License-Identifier: Apache-2.0
"""A run that died before there were steps to measure, of a cause that the catalogue knows."""

from __future__ import annotations

import sys

from feedrate.doctor.causes_machine import is_shm_error
from feedrate.doctor.findings import entry_of
from feedrate.doctor.launch import Observed
from feedrate.doctor.machine import MachineTrace
from feedrate.doctor.records import Recording
from feedrate.probe.cpu import measure_usable_cores
from feedrate.probe.machine import describe_machine
from feedrate.results.doctor import Diagnosis, Finding, Remedy, RunFacts
from feedrate.units import format_bytes, format_count


def judge_death(observed: Observed, recording: Recording, trace: MachineTrace) -> Diagnosis | None:
    """Return a diagnosis of a run that a full /dev/shm ended; None for any other end."""
    error = next((str(f["error"]) for f in recording.facts_of("end") if f.get("error")), "")
    if not is_shm_error(error):
        return None
    loader = next(recording.facts_of("loader"), {})
    workers = int(loader.get("num_workers") or 0)
    size = trace.between(observed.started_ns, 2**62).shm_size if len(trace) else None
    holds = f"/dev/shm holds {format_bytes(size)}" if size is not None else "the size of /dev/shm is unknown"
    entry = entry_of("shm-too-small")
    remedy = Remedy(
        name="larger-shm",
        title="make /dev/shm larger, or use no workers",
        predicted_speedup=1.0,
        low=1.0,
        high=1.0,
        change="docker run --shm-size=8g ..., or DataLoader(..., num_workers=0)",
        note="it makes the run possible; how fast it then is cannot be told from here",
    )
    finding = Finding(
        code=entry.code,
        share=1.0,
        title=entry.title,
        cause=entry.cause,
        evidence=(
            f"the run ended with: {error.splitlines()[-1][:200]}",
            f"{format_count(workers, 'worker')}; {holds}",
        ),
        numbers={"workers": workers, "shm_bytes": size},
        remedies=(remedy,),
    )
    return Diagnosis(
        command=observed.command,
        verdict=f"{entry.title}; the run died of it.",
        findings=(finding,),
        remedies=(remedy,),
        run=_run_facts(observed, workers),
        split=(),
        sample=(),
        hot_lines=(),
        rates=(),
        timeline=(),
        curves=trace.curves(),
        facts=(),
        overhead=None,
        machine=describe_machine(sys.argv),
    )


def _run_facts(observed: Observed, workers: int) -> RunFacts:
    return RunFacts(
        mode="ended",
        exit_code=observed.exit_code,
        seconds=observed.seconds,
        steps=0,
        warmup_steps=0,
        samples_per_step=0.0,
        seconds_per_step=0.0,
        samples_per_s=0.0,
        exposed_wait_share=0.0,
        device="unknown",
        ranks=1,
        workers=workers,
        usable_cores=measure_usable_cores(),
        unseen=("the run ended before its first steps",),
        experiments=(),
    )
