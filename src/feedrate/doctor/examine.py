# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor`: run the command, read what was seen, and judge it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from feedrate.doctor.analyse.call_draft import find_images
from feedrate.doctor.analyse.data_files import (
    describe_data,
    describe_pack,
    is_pack,
    time_keeping,
    time_kept,
    time_kernel,
    time_pack_images,
)
from feedrate.doctor.analyse.data_folders import LoaderFacts
from feedrate.doctor.analyse.loader_call import find_call, list_others
from feedrate.doctor.analyse.machine import MachineTrace, read_machine
from feedrate.doctor.analyse.machine_summary import DataFiles, MachineSummary, look_around
from feedrate.doctor.analyse.metrics import Measured, Tried
from feedrate.doctor.analyse.records import Process, Recording, read_run
from feedrate.doctor.analyse.sample import PACK_LOADER
from feedrate.doctor.analyse.summarise import measure
from feedrate.doctor.analyse.timeline import build_loops, count_steps
from feedrate.doctor.findings.diagnose import diagnose
from feedrate.doctor.findings.fact_table import list_facts
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.no_result import check_seen, judge_death
from feedrate.doctor.options import LEAST_STEPS, DoctorOptions
from feedrate.doctor.results import Diagnosis
from feedrate.doctor.run.launch import Observed, run_command
from feedrate.errors import DoctorError, StorageError
from feedrate.lab.trial import CROPS, guess_options, options_of, try_loader
from feedrate.loader.results import LoaderTrial
from feedrate.machine.describe import describe_machine
from feedrate.machine.disk import find_scratch, measure_scratch


def examine(
    command: Sequence[str], options: DoctorOptions, *, watch: Callable[[str], None] = lambda _: None
) -> Diagnosis:
    """Run a training, evaluation or inference command and say why it is as slow as it is.

    Raises:
        UsageError, NotFound: the command cannot be run.
        DoctorError: it ran, but there was nothing to examine.
    """
    with run_command(command, options, watch=watch) as observed:
        recording, trace = read_run(observed.run_folder), read_machine(observed.run_folder)
        if judge_death(observed, recording, trace) is None:
            check_seen(observed)
        return judge_run(observed, recording, trace, options)


def judge_run(
    observed: Observed, recording: Recording, trace: MachineTrace, options: DoctorOptions
) -> Diagnosis:
    """Turn what was recorded into a diagnosis."""
    measured = measure_run(recording, trace, options)
    if measured is None:
        if (death := judge_death(observed, recording, trace)) is not None:
            return death
        steps = max((count_steps(process) for process in recording.mains), default=0)
        raise DoctorError(
            f"too few steps to judge: {steps} seen, at least {LEAST_STEPS} needed",
            hint=observed.standstill
            or "a step is a batch taken from the training loader: let the command run longer",
            exit_code=observed.exit_code or 1,
        )
    mode = "passive" if options.passive else "experiments" if observed.ended_by_doctor else "ended"
    diagnosis = diagnose(
        measured,
        command=observed.command,
        mode=mode,
        exit_code=None if observed.ended_by_doctor or observed.standstill else observed.exit_code,
        seconds=observed.seconds,
        machine=describe_machine(),
        # The curves begin with the first sample of the machine; the steps are drawn over them.
        origin_ns=int(trace.times_ns[0]) if len(trace) else None,
    )
    if observed.standstill:
        unseen = (f"{observed.standstill}: it was ended (--seconds)", *diagnosis.run.unseen)
        diagnosis = replace(diagnosis, run=replace(diagnosis.run, unseen=unseen))
    curves = trace.curves(measured.loop.start_ns, measured.loop.end_ns)
    return replace(diagnosis, curves=curves, facts=list_facts(measured, trace))


def measure_run(recording: Recording, trace: MachineTrace, options: DoctorOptions) -> Measured | None:
    """Sum up a recording, with what is tried of the script's own files now; None: too few steps were made."""
    loops = build_loops(recording, options.warmup_steps)
    if not loops:
        return None
    main, loop = recording.main_of(min(loops)), loops[min(loops)]
    facts = LoaderFacts.of(main, loop.loader)
    pack = _find_pack(main, facts)
    data = describe_data(recording, loop.loaders, facts) if pack is None else describe_pack(pack)
    machine = _add_scratch(look_around(main, loop, trace, data, facts), options.scratch)
    names = {p.name(r["name"]) for p in recording.processes for r in p.of(layout.PART)}
    tried = _try_parts(data, pack, facts, names, machine)
    measured = measure(recording, loops, machine, tried)
    call = find_call(measured, list_others(recording, main, loop.loaders))
    node = main.last("process").get("node")
    ranks = sum(process.last("process").get("node") == node for process in recording.mains)
    trial, unseen = _try_loader(data, facts, names, ranks, {} if call is None else call.options)
    notes = [unseen] if unseen else []
    if data is not None and not data.folder:
        shown = " and ".join(dict.fromkeys(os.path.dirname(path) for path in (data.images or ())[:1]))
        where = f" ({shown}, for one)" if shown else ""
        notes.insert(0, (
            f"which folder to pack: files were read in several places{where}, and IMAGES stands for it"
        ))  # fmt: skip
    machine = replace(machine, notes=(*machine.notes, *notes))
    return replace(measured, tried=replace(tried, call=call, trial=trial), machine=machine)


def _try_parts(
    data: DataFiles | None, pack: str | None, facts: LoaderFacts, names: Collection[str],
    machine: MachineSummary,
) -> Tried:  # fmt: skip
    """Time our decoder on the script's files, and samples like its own in our cache."""
    shape = find_images(facts.batch)
    size = None if shape is None else (shape.height, shape.width)
    kernel = images = None
    if data is not None and data.images:
        crops = any(crop in name for name in names for crop in CROPS)
        at_once = min(max(int(facts.get("num_workers") or 0), 1), max(int(machine.cores), 1))
        kernel = time_kernel(data.images, size, crops=crops, at_once=at_once)
    if facts.get("class") != PACK_LOADER:
        return Tried(kernel, kept_s=time_kept(facts.batch), keeping_s=time_keeping(facts.batch))
    if pack is not None:
        images = time_pack_images(pack, size, str(facts.get("image") or ""))
    return Tried(kernel, images)


def _find_pack(main: Process, facts: LoaderFacts) -> str | None:
    """Return the folder of the pack that samples come from; None: they come from none on this machine."""
    name = facts.get("pack")
    if not isinstance(name, str):
        return None
    folder = os.path.join(str(main.last("process").get("cwd") or ""), name)
    return folder if is_pack(folder) else None


def _try_loader(
    data: DataFiles | None, facts: LoaderFacts, names: Collection[str], ranks: int,
    recognised: Mapping[str, object],
) -> tuple[LoaderTrial | None, str]:  # fmt: skip
    """Drain the script's image files as a feedrate.Loader would; without a trial, say why."""
    shape = find_images(facts.batch)
    if data is None or not data.images or shape is None:
        return None, ""
    wanted = facts.get("batch_size") or facts.batch.get("samples")
    batch, channels = wanted if isinstance(wanted, int) else 1, 1 if shape.channels == 1 else 3
    guessed = guess_options(names, (shape.height, shape.width), batch, channels)
    return try_loader(data.images, options_of(recognised, guessed), ranks=ranks)


def _add_scratch(machine: MachineSummary, asked: Path | None) -> MachineSummary:
    """Measure the scratch folder, where reading is what takes the time or the user named one."""
    data = machine.data
    is_slow_place = data is not None and (data.is_network or data.is_fuse or bool(data.is_rotational))
    folder = asked or (find_scratch() if is_slow_place else None)
    if folder is None:
        return machine
    try:
        rate = measure_scratch(folder)
    except StorageError:
        if asked is not None:
            raise
        return machine
    return replace(machine, scratch=str(folder), scratch_bytes_per_s=rate.read_bytes_per_s)
