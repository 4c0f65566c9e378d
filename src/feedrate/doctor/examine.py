# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor`: run the command, read what was seen, and judge it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from feedrate.doctor.analyse.data_files import (
    describe_data,
    describe_pack,
    is_pack,
    time_kept,
    time_kernel,
    time_pack_images,
)
from feedrate.doctor.analyse.loader_call import find_call
from feedrate.doctor.analyse.loader_trial import CROPS, guess_options, options_of, try_loader
from feedrate.doctor.analyse.machine import MachineTrace, Means, read_machine
from feedrate.doctor.analyse.machine_summary import DataFiles, Surroundings, find_gpu, measure_growth
from feedrate.doctor.analyse.metrics import KernelTime, LoaderTrial, Measured, PackImages
from feedrate.doctor.analyse.records import Process, Recording, read_run
from feedrate.doctor.analyse.sample import PACK_LOADER
from feedrate.doctor.analyse.summarise import measure
from feedrate.doctor.analyse.timeline import Loop, build_loop, count_steps
from feedrate.doctor.findings.diagnose import diagnose
from feedrate.doctor.findings.fact_table import list_facts
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.no_result import check_seen, judge_death
from feedrate.doctor.results import LEAST_STEPS, Diagnosis, DoctorOptions
from feedrate.doctor.run.launch import Observed, run_command
from feedrate.errors import DoctorError, StorageError
from feedrate.machine.cpu import measure_usable_cores
from feedrate.machine.describe import describe_machine
from feedrate.machine.disk import find_scratch, measure_scratch

_GOOD_PART = 0.4  # of what others use: who has less does not explain it
_LEAST_CORES = 0.1


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
        machine=describe_machine(sys.argv),
        # The curves begin with the first sample of the machine; the steps are drawn over them.
        origin_ns=int(trace.times_ns[0]) if len(trace) else None,
    )
    if observed.standstill:
        unseen = (f"{observed.standstill}: it was ended (--seconds)", *diagnosis.run.unseen)
        diagnosis = replace(diagnosis, run=replace(diagnosis.run, unseen=unseen))
    return replace(diagnosis, curves=trace.curves(), facts=list_facts(measured, trace))


def measure_run(recording: Recording, trace: MachineTrace, options: DoctorOptions) -> Measured | None:
    main = next(iter(recording.mains), None)
    loop = build_loop(main, options.warmup_steps) if main is not None else None
    if main is None or loop is None:
        return None
    loader = next((f for f in main.facts_of("loader") if f.get("loader") == loop.loader), {})
    batch = next((f for f in main.facts_of("batch") if f.get("loader") == loop.loader), {})
    pack = _find_pack(main, loader)
    data = describe_data(recording, loader.get("dataset_len")) if pack is None else describe_pack(pack)
    around = look_around(main, loop, trace, data, loader, batch)
    around = _add_scratch(around, options.scratch)
    names = {p.name(r["name"]) for p in recording.processes for r in p.of(layout.PART)}
    crops = any(crop in name for name in names for crop in CROPS)
    at_once = min(max(int(loader.get("num_workers") or 0), 1), max(int(around.cores), 1))
    kernel = _time_kernel(data, batch, crops=crops, at_once=at_once)
    images = _time_images(pack, loader, batch)
    node = main.last("process").get("node")
    ranks = sum(process.last("process").get("node") == node for process in recording.mains)
    kept_s = time_kept(batch) if loader.get("class") != PACK_LOADER else None
    measured = measure(
        recording, around, warmup=options.warmup_steps, kernel=kernel, images=images, kept_s=kept_s
    )
    if measured is None:
        return None
    call = find_call(measured)
    trial, unseen = _try_loader(data, loader, batch, names, ranks, {} if call is None else call.options)
    if unseen:
        around = replace(around, notes=(*around.notes, unseen))
    return replace(measured, call=call, trial=trial, around=around)


def _find_pack(main: Process, loader: Mapping[str, object]) -> str | None:
    """Return the folder of the pack that samples come from; None: they come from none on this machine."""
    name = loader.get("pack")
    if not isinstance(name, str):
        return None
    folder = os.path.join(str(main.last("process").get("cwd") or ""), name)
    return folder if is_pack(folder) else None


def _time_images(
    pack: str | None, loader: Mapping[str, object], batch: Mapping[str, object]
) -> PackImages | None:
    if pack is None or loader.get("class") != PACK_LOADER:
        return None
    return time_pack_images(pack, _image_size(batch), str(loader.get("image") or ""))


def _time_kernel(
    data: DataFiles | None, batch: Mapping[str, object], *, crops: bool, at_once: int
) -> KernelTime | None:
    if data is None or not data.images:
        return None
    return time_kernel(data.images, _image_size(batch), crops=crops, at_once=at_once)


def _try_loader(
    data: DataFiles | None, loader: Mapping[str, object], batch: Mapping[str, object], names: Collection[str],
    ranks: int, recognised: Mapping[str, object],
) -> tuple[LoaderTrial | None, str]:  # fmt: skip
    """Drain the script's image files as a feedrate.Loader would; without a trial, say why."""
    shape = _image_shape(batch)
    if data is None or not data.images or shape is None:
        return None, ""
    size, channels = shape
    wanted = loader.get("batch_size") or batch.get("samples")
    guessed = guess_options(names, size, wanted if isinstance(wanted, int) else 1, channels)
    return try_loader(data.images, options_of(recognised, guessed), ranks=ranks)


def _image_size(batch: Mapping[str, object]) -> tuple[int, int] | None:
    """Return height and width of the batch's images, if it holds any."""
    shape = _image_shape(batch)
    return None if shape is None else shape[0]


def _image_shape(batch: Mapping[str, object]) -> tuple[tuple[int, int], int] | None:
    """Return height and width of the batch's images, and their channels that are decoded: 1 or 3."""
    tensors = batch.get("tensors")
    for tensor in tensors if isinstance(tensors, list) else ():
        shape = [int(side) for side in tensor.get("shape") or ()]
        if len(shape) == 4 and shape[1] in (1, 3, 4):
            return (shape[2], shape[3]), 1 if shape[1] == 1 else 3
        if len(shape) == 4 and shape[3] in (1, 3, 4):
            return (shape[1], shape[2]), 1 if shape[3] == 1 else 3
    return None


def _add_scratch(around: Surroundings, asked: Path | None) -> Surroundings:
    """Measure the scratch folder, where reading is what takes the time or the user named one."""
    data = around.data
    is_slow_place = data is not None and (data.is_network or data.is_fuse or bool(data.is_rotational))
    folder = asked or (find_scratch() if is_slow_place else None)
    if folder is None:
        return around
    try:
        rate = measure_scratch(folder)
    except StorageError:
        if asked is not None:
            raise
        return around
    return replace(around, scratch=str(folder), scratch_bytes_per_s=rate.read_bytes_per_s)


def look_around(
    main: Process,
    loop: Loop,
    trace: MachineTrace,
    data: DataFiles | None,
    loader: Mapping[str, object],
    batch: Mapping[str, object],
) -> Surroundings:
    """Sum up the machine over the real steps."""
    cores = measure_usable_cores()
    decoded = _decoded_bytes(loader, batch)
    copied, element, is_pinned, is_beside = _copied(main, loop)
    if not len(trace):
        return Surroundings(
            cores, data=data, decoded_bytes=decoded, copied_bytes=copied, copied_element_bytes=element
        )
    means = trace.between(loop.start_ns, loop.end_ns)
    gpu = _find_gpu(main, trace)
    used = None if means.mem_used is None else means.mem_used - (means.mem_cache or 0.0)
    left = None if means.mem_limit is None or used is None else means.mem_limit - used
    growth = measure_growth(
        trace, loop.start_ns, loop.end_ns, steps=len(loop.steps), left_bytes=left, main_pid=main.pid
    )
    replay = next((f for f in main.facts_of("phase") if f.get("phase") == layout.REPLAY), None)
    return Surroundings(
        cores=cores,
        cores_ours=means.cores_busy_ours,
        cores_others=means.cores_busy_others or 0.0,
        biggest_other=_name_other(means),
        steal_cores=means.steal or 0.0,
        busiest_core=means.busiest_core,
        device_cpu_share=None
        if replay is None
        else trace.process_cores(main.pid, int(replay["start_ns"]), int(replay["end_ns"])),
        memory_limit_bytes=means.mem_limit,
        memory_used_bytes=used,
        memory_cache_bytes=means.mem_cache,
        swap_bytes_per_s=means.swap_rate or 0.0,
        major_faults_per_s=means.majflt_rate or 0.0,
        memory_stall_share=means.psi_memory,
        io_stall_share=means.psi_io,
        growth=growth,
        disk_read_bytes_per_s=means.disk_read_rate,
        disk_busy=means.disk_busy,
        network_bytes_per_s=means.net_rx_rate,
        shm_size_bytes=means.shm_size,
        throttled_share=means.throttled_share,
        gpus=len(trace.gpu_names),
        gpu_name=trace.gpu_names[0] if trace.gpu_names else "",
        gpu_utilisation=_of_gpu(means.gpu_util, gpu),
        gpu_memory_share=_share(_of_gpu(means.gpu_memory, gpu), _of_gpu(means.gpu_memory_limit, gpu)),
        gpu_power_w=_of_gpu(means.gpu_power, gpu),
        gpu_others=sum(other.gpu == gpu for other in trace.gpu_others),
        gpu_others_share=_of_gpu(means.gpu_others, gpu),
        data=data,
        decoded_bytes=decoded,
        copied_bytes=copied,
        copied_element_bytes=element,
        copies_are_pinned=is_pinned,
        copies_are_beside=is_beside,
    )


def _name_other(means: Means) -> str:
    """Return who is a good part of what others use, in words; empty: nobody stands out."""
    other, load = means.biggest_other, (means.cores_busy_others or 0.0) + (means.steal or 0.0)
    if other is None or other.cores < max(_GOOD_PART * load, _LEAST_CORES):
        return ""
    return f"{other.cores:.1f} of them by {other.name}{f' ({other.user})' if other.user else ''}"


def _find_gpu(main: Process, trace: MachineTrace) -> int | None:
    """Return the number of this rank's GPU, by its module's device."""
    _, _, index = str(main.last("module").get("device") or "").partition(":")
    visible = main.last("torch").get("visible_devices")
    return find_gpu(trace.gpu_uuids, int(index) if index.isdigit() else 0, visible)


def _of_gpu(values: Sequence[float | None], gpu: int | None) -> float | None:
    return values[gpu] if gpu is not None and gpu < len(values) else None


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _decoded_bytes(loader: Mapping[str, object], batch: Mapping[str, object]) -> float | None:
    length, samples, tensors = loader.get("dataset_len"), batch.get("samples"), batch.get("tensors")
    if (
        not isinstance(length, int)
        or not isinstance(samples, int)
        or not isinstance(tensors, list)
        or not samples
    ):
        return None
    return sum(float(t.get("bytes") or 0) for t in tensors) / samples * length


def _copied(main: Process, loop: Loop) -> tuple[float | None, int | None, bool, bool]:
    """Return the bytes copied to the device in a step; of the largest: a number's size, pinned, beside."""
    copies = main.of(layout.COPY, phase=layout.REAL)
    copies = copies[copies["start"] >= loop.start_ns]
    probed = sum(step.is_probed for step in loop.steps)
    if not len(copies) or not probed:
        return None, None, False, False
    largest = copies[int(copies["a"].argmax())]
    bits = int(largest["b"])
    return float(copies["a"].sum()) / probed, int(largest["c"]), bool(bits & 1), bool(bits & 4)
