# SPDX-License-Identifier: Apache-2.0
"""A run that could not be examined: what it died of, or why there was nothing to see, in a sentence."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from feedrate.doctor.analyse.machine import MachineTrace, Means, read_machine
from feedrate.doctor.analyse.records import Recording, read_run
from feedrate.doctor.analyse.stacks import count_looks
from feedrate.doctor.analyse.timeline import PARTS
from feedrate.doctor.facts import read_facts
from feedrate.doctor.findings.catalogue import entry_of
from feedrate.doctor.findings.machine import is_shm_error
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.results import Diagnosis, Finding, Remedy, RunFacts
from feedrate.doctor.run.launch import Observed
from feedrate.doctor.run.standstill import LOADERS
from feedrate.errors import DoctorError
from feedrate.machine.command import read_python_call
from feedrate.machine.cpu import measure_usable_cores
from feedrate.machine.describe import describe_machine
from feedrate.units import format_bytes, format_count, format_seconds


def judge_death(observed: Observed, recording: Recording, trace: MachineTrace) -> Diagnosis | None:
    """Return a diagnosis of a run that a full /dev/shm ended; None for any other end."""
    error = next((str(f["error"]) for f in recording.facts_of("end") if f.get("error")), "")
    if not is_shm_error(error):
        return None
    loader = next(recording.facts_of("loader"), {})
    workers = int(loader.get("num_workers") or 0)
    size = trace.between(observed.started_ns, _END_NS).shm_size_bytes if len(trace) else None
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
    run = RunFacts(
        mode="ended", exit_code=observed.exit_code, seconds=observed.seconds, steps=0, warmup_steps=0,
        samples_per_step=0.0, seconds_per_step=0.0, samples_per_s=0.0, exposed_wait_share=0.0,
        device="unknown", ranks=1, workers=workers, usable_cores=measure_usable_cores(),
        unseen=("the run ended before its first steps",), experiments=(),
    )  # fmt: skip
    return Diagnosis(
        command=observed.command,
        verdict=f"{entry.title}; the run died of it.",
        findings=(finding,),
        remedies=(remedy,),
        run=run,
        curves=trace.curves(observed.started_ns, _END_NS),
        machine=describe_machine(),
    )


_END_NS = 2**62
_BUSY = 0.8  # of the time, or of the cores
_WAITING = 0.3  # of the time, in which some task waited for a disk
_LEAST_READINGS = 2
_WORTH_A_LINE = 0.2  # of the looks
_NEXT = {
    "tensorflow": (
        "TensorFlow",
        "TensorBoard's profiler (tf.profiler.experimental.start) shows what tf.data waits for; with "
        "feedrate.tensorflow.dataset(PACK) the doctor sees waits and stages",
    ),
    "jax": (
        "JAX",
        "jax.profiler.trace(FOLDER) shows when the device waits; with feedrate.jax.batches(PACK) the doctor "
        "sees waits and stages",
    ),
}


def explain_framework(observed: Observed, fact: Mapping[str, Any]) -> tuple[str, str]:
    """Return what could be seen of such a run and what could not, and what to do next."""
    name, next_step = _NEXT[str(fact["module"])]
    version = f" {fact['version']}" if fact.get("version") else ""
    message = (
        f"the command uses {name}{version}, and asked no {LOADERS} for a batch: its steps, what they wait "
        f"for and what a sample costs cannot be seen"
    )
    trace = read_machine(observed.run_folder)
    if len(trace) < _LEAST_READINGS:
        return (
            f"{message}; it was too short to see what it used of the machine",
            f"{_point_to_watch(observed)}; {next_step}",
        )
    means = trace.between(observed.started_ns, _END_NS)
    cores = measure_usable_cores()
    seen = f"from outside, in {format_seconds(observed.seconds)}: {_word_use(means, cores)}"
    return f"{message}; {seen}", f"{_judge(means, cores)}; {_point_to_watch(observed)}; {next_step}"


def _word_use(means: Means, cores: float) -> str:
    words = []
    if means.cores_ours is not None:
        words.append(f"it used {means.cores_ours:.1f} of {cores:g} cores")
    if means.disk_read_bytes_per_s is not None:
        busy = "" if means.disk_busy is None else f" (the busiest {means.disk_busy:.0%} of the time)"
        words.append(f"disks gave {format_bytes(means.disk_read_bytes_per_s)}/s{busy}")
    if means.network_bytes_per_s is not None:
        words.append(f"the network {format_bytes(means.network_bytes_per_s)}/s")
    gpus = [
        f"GPU {number} was {gpu.utilisation:.0%} busy"
        for number, gpu in enumerate(means.gpus)
        if gpu.utilisation is not None
    ]
    return ", ".join([*words, *(gpus or ["how busy a GPU was is not known"])])


def _judge(means: Means, cores: float) -> str:
    """Say what the readings leave as the limit; from outside that is no more than likely."""
    used = max((gpu.utilisation for gpu in means.gpus if gpu.utilisation is not None), default=None)
    if used is not None and used >= _BUSY:
        return "the GPU is busy, so data is hardly what it waits for"
    idle = "the GPU is idle for much of the time and " if used is not None else ""
    others = means.cores_others or 0.0
    if means.cores_ours is not None and means.cores_ours + others >= _BUSY * cores:
        with_whom = f", {others:.1f} of them with other processes" if others > means.cores_ours else ""
        return f"{idle}all cores are busy{with_whom}: they may be the limit"
    if (means.disk_busy or 0.0) >= _BUSY or (means.io_stall_share or 0.0) >= _WAITING:
        return f"{idle}disks are waited for: they may be the limit"
    if means.cores_ours is None or (means.disk_busy is None and means.io_stall_share is None):
        return f"{idle}it is not known how busy cores and disks are"
    return f"{idle}neither cores nor disks are busy: too little may be done side by side"


_LEAST_BYTES = 100_000  # for the first records and facts of a process
_DROPS_THE_ENVIRONMENT = {
    "sudo": "sudo drops the environment: put 'feedrate doctor --' after it",
    "docker": "a container does not get our environment: run feedrate doctor inside of it",
    "podman": "a container does not get our environment: run feedrate doctor inside of it",
    "apptainer": "the container must get our environment: leave --cleanenv and --containall out",
    "singularity": "the container must get our environment: leave --cleanenv and --containall out",
    "ssh": "another machine does not get our environment: run feedrate doctor there",
    "srun": "srun must pass the environment on (--export=ALL), and the nodes must share the working folder",
}


def check_seen(observed: Observed) -> None:
    """Do nothing when the command took at least one batch from a loader.

    Raises:
        DoctorError: it did not, in a sentence; carries the exit code for the shell.
    """
    last: dict[str, Mapping[str, Any]] = {}  # of each kind
    error: str | None = None
    for fact in read_facts(observed.run_folder):
        last[str(fact.get("kind"))] = fact
        if fact.get("kind") == "end" and fact.get("error"):
            error = str(fact["error"])
    if "batch" in last:
        return
    message, hint = _explain(observed, last.keys(), error)
    alone, framework, is_plain = last.get("no-loader"), last.get("framework"), "plain" in last
    if observed.interrupted or not (observed.exit_code or error):
        if alone is not None:
            message, hint = _explain_alone(observed, alone)
        elif framework is not None and "loader" not in last and (is_plain or observed.standstill is None):
            message, hint = explain_framework(observed, framework)
    if alone is not None or is_plain:
        message += _word_hottest(observed)
    raise DoctorError(message, hint=hint, exit_code=observed.exit_code or 1)


def _explain(observed: Observed, kinds: Collection[str], error: str | None) -> tuple[str, str | None]:
    at_loaders = f"the doctor examines programs that load data with a {LOADERS}; {_point_to_watch(observed)}"
    if observed.standstill is not None:
        hint = "a longer --seconds waits longer"
        if "plain" in kinds:
            hint = f"{at_loaders}; {hint}" if "torch" in kinds else at_loaders
        return f"{observed.standstill}; it was ended", hint
    is_told = observed.interrupted or error is not None
    if not is_told and shutil.disk_usage(observed.run_folder).free < _LEAST_BYTES:
        folder = observed.run_folder.parent
        return f"{folder} is full, so nothing could be recorded", "make room, or set TMPDIR to another folder"
    if not kinds:
        message = "no Python process of this command loaded the hook, so nothing was seen"
        if observed.interrupted:
            message = (
                "interrupted before a Python process of this command had loaded the hook: nothing was seen"
            )
        elif observed.exit_code:
            message += f"; the command {describe_end(observed)}"
        return message, f"{_suggest(observed.command)}; {_point_to_watch(observed)}"
    if observed.interrupted:
        return "interrupted before the first batch: there is nothing to say yet", None
    if observed.exit_code or error:
        first = next(iter((error or "").strip().splitlines()), "")
        because = f": {first if len(first) <= 300 else first[:300] + ' ...'}" if error else ""
        return f"the command {describe_end(observed)} before its first batch{because}", None
    if "torch" not in kinds:
        return "the command never imported torch, so there was no data loading to watch", at_loaders
    if "loader" not in kinds:
        return (
            f"the command never made a {LOADERS}, so there was no data loading to watch",
            f"how a script loads its data without them cannot be observed; {_point_to_watch(observed)}",
        )
    return "the command made a loader, but never took a batch from it", None


def _explain_alone(observed: Observed, alone: Mapping[str, Any]) -> tuple[str, str]:
    """Say what a training took whose data came from nowhere that can be seen."""
    steps, step_s = int(alone["optimizer_steps"]), float(alone["step_s"])
    message = (
        f"the command made {steps:,} optimizer steps, {format_seconds(step_s)} each, and asked no {LOADERS} "
        f"for a batch{_split_alone(observed)}"
    )
    hint = "how a script loads its data without them cannot be observed: give it to one of these"
    return message, f"{hint}; {_point_to_watch(observed)}"


def _split_alone(observed: Observed) -> str:
    """Say where the time of the timed steps went, in words; empty: too few were timed."""
    main = next(iter(read_run(observed.run_folder).mains), None)
    if main is None or len(steps := main.of(layout.OPTIMIZER, phase=layout.REAL)) < 2:
        return ""
    first, last = (int(step["start"] + step["wall"]) for step in (steps[0], steps[-1]))
    shares = {}
    for kind in (layout.FORWARD, layout.BACKWARD, layout.OPTIMIZER):
        records = main.of(kind, phase=layout.REAL)
        inside = records[(records["start"] >= first) & (records["start"] < last)]
        shares[PARTS[kind]] = float(inside["wall"].sum()) / max(last - first, 1)
    rest = max(1 - sum(shares.values()), 0.0)
    words = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return f": {words}, all else {rest:.0%}, what it does for its data included"


def _word_hottest(observed: Observed) -> str:
    """Name the line that most looks found a loop without a loader at; empty: there were few."""
    run = read_run(observed.run_folder)
    loops = [*run.mains[:1], *(process for process in run.processes if process.facts_of("plain"))][:1]
    # Of a training, what came before its first step (its imports, say) is not the loop.
    steps = [int(step["start"]) for loop in loops for step in loop.of(layout.OPTIMIZER)[:1]]
    places = count_looks(loops, in_fetch=False, unasked=True, timed=[(0, start) for start in steps]).places
    if not places or places[0].share < _WORTH_A_LINE:
        return ""
    hot = places[0]
    return f"; {hot.share:.0%} of the looks at it are at {hot.place} ({hot.function})"


def _point_to_watch(observed: Observed) -> str:
    return f"what can be seen from outside: {shlex.join(observed.command)} & feedrate watch $!"


def _suggest(command: Sequence[str]) -> str:
    call = read_python_call(command)
    blind = [letter for letter in "IES" if call is not None and letter in call.flags]
    if blind:
        return f"Python started with -{blind[0]} ignores it: leave that option out"
    if call is not None:
        return "is PYTHONPATH changed, or Python started again without it?"
    for word in command:
        if (name := os.path.basename(word)) in _DROPS_THE_ENVIRONMENT:
            return _DROPS_THE_ENVIRONMENT[name]
    return "give it the training command: feedrate doctor -- python train.py ..."


def describe_end(observed: Observed) -> str:
    """Return `ended with exit code 3`, `was ended by SIGKILL (out of memory?)`."""
    if observed.signal is None:
        return f"ended with exit code {observed.exit_code}"
    try:
        name = signal.Signals(observed.signal).name
    except ValueError:
        name = f"signal {observed.signal}"
    return f"was ended by {name}" + (" (out of memory?)" if observed.signal == signal.SIGKILL else "")
