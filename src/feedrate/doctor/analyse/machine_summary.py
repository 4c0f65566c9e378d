# SPDX-License-Identifier: Apache-2.0
"""What the machine and the storage did during the real steps, in a few numbers. None: unknown.

Two of them take thought: whether the run's own processes grow so steadily that they will fill the memory, and
which GPU of the machine is torch's `cuda:0`, where a job sees only some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from feedrate.doctor.analyse.data_folders import LoaderFacts, Place
from feedrate.doctor.analyse.machine import MachineTrace
from feedrate.doctor.analyse.readings import READINGS, GpuReadings, Readings, derived
from feedrate.doctor.analyse.records import Process
from feedrate.doctor.analyse.timeline import Loop
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.machine.cpu import measure_usable_cores

_GOOD_PART = 0.4  # of what others use: who has less does not explain it
_LEAST_CORES = 0.1
_LEAST_STEPS = 30
_LEAST_BYTES_PER_S = 1e6  # less is how any program breathes
_LEAST_PART = 0.02  # of what is left, while it was watched: the limit is at most 50 times as far away
_LEVELLING_OFF = 0.5  # of the whole growth, what the second half must still have
_LATE, _EARLY = 0.1, 0.2  # of the time watched: so late a process may come, and so early be done
_TELLING = 0.2  # of all growth: a process with less is not named


@dataclass(frozen=True, slots=True)
class Growth:
    """`where`: the processes that grow, in words."""

    bytes_per_step: float
    steps_to_limit: float
    where: str


def measure_growth(
    trace: MachineTrace, start_ns: int, end_ns: int, *, steps: int, left_bytes: float | None, main_pid: int
) -> Growth | None:
    """Return how the processes of this run grow over the steps; None: they do not, or it cannot be told.

    What other programs take, and the page cache, are not counted. Growth that slows down (buffers that fill,
    a program that warms up) ends by itself. `left_bytes`: inside the limit; None: unknown.
    """
    seconds = (end_ns - start_ns) / 1e9
    if steps < _LEAST_STEPS or not left_bytes or left_bytes < 0:
        return None
    late_ns, early_ns = (round(part * (end_ns - start_ns)) for part in (_LATE, _EARLY))
    # One that was started or ended meanwhile takes its memory along.
    staying = [
        pid
        for pid, process in trace.processes.items()
        if process.times_ns[0] <= start_ns + late_ns and process.times_ns[-1] >= end_ns - early_ns
    ]

    def slopes(start: int, end: int) -> dict[int, float]:
        return {pid: slope for pid in staying if (slope := trace.growth_per_s(pid, start, end)) is not None}

    middle = (start_ns + end_ns) // 2
    whole, early, late = slopes(start_ns, end_ns), slopes(start_ns, middle), slopes(middle, end_ns)
    per_s = sum(whole.values())
    if per_s < _LEAST_BYTES_PER_S or per_s * seconds < _LEAST_PART * left_bytes:
        return None
    if sum(early.values()) <= 0 or sum(late.values()) < _LEVELLING_OFF * per_s:
        return None
    growing = [pid for pid, slope in whole.items() if slope > _TELLING * per_s]
    workers = [pid for pid in growing if trace.processes[pid].parent == main_pid]
    named = ["the training process"] if main_pid in growing else []
    if workers:
        named.append("a worker" if len(workers) == 1 else f"{len(workers)} workers")
    per_step = per_s * seconds / steps
    return Growth(per_step, left_bytes / per_step, " and ".join(named) or "its processes")


def find_gpu(uuids: Sequence[str], ordinal: int, visible: str | None) -> int | None:
    """Return the driver's number of torch's GPU `ordinal`; None: unknown.

    Args:
        uuids: of the GPUs, in the driver's order.
        visible: CUDA_VISIBLE_DEVICES of the process; None: not set.
    """
    if visible is None:
        return ordinal if ordinal < len(uuids) else None
    entries = [entry.strip() for entry in visible.split(",")]
    entry = entries[ordinal] if ordinal < len(entries) else ""
    if entry.isdigit():
        number = int(entry)
        if number < len(uuids):
            return number
        # A scheduler that hides the other GPUs from the driver, too, may leave their numbers in place.
        return ordinal if len(entries) == len(uuids) else None
    # The beginning of a name is enough for CUDA, if it is the beginning of only one.
    matches = [number for number, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The files that samples come from.

    Attributes:
        folder: what they have in common; empty: nothing that could be named.
        place: what a pack for the samples is made of; None: they are in a pack.
        kind: of the file system ("ext4", "nfs4", "fuse.sshfs"); source: what is mounted there.
        resident: share of sampled pages in the page cache after the run.
        dataset_bytes: of the whole dataset, from the sizes seen and the number of samples.
    """

    folder: str
    kind: str
    source: str
    is_network: bool
    is_fuse: bool
    is_memory: bool
    is_rotational: bool | None
    files_seen: int
    mean_bytes: float
    suffixes: tuple[str, ...]
    resident: float | None
    dataset_bytes: float | None
    images: tuple[str, ...] = ()
    place: Place | None = None

    @property
    def shown_folder(self) -> str:
        return self.folder or "several places"

    @property
    def source_word(self) -> str:
        return (self.place or Place(self.folder)).word

    @property
    def pack_command(self) -> str:
        return (self.place or Place(self.folder)).pack_command()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSummary(Readings):
    """What the machine did over the real steps, and what is known of it and the data besides.

    Attributes:
        biggest_other: who has a good part of `cores_others`, in words; empty: nobody stands out.
        device_cpu_share: cores that the training process used while it replayed batches.
        memory_used_bytes: without the page cache.
        growth: of the run's own processes.
        gpu_others: processes that were there before, or stayed; `gpu_others_share`: of its time, theirs.
        decoded_bytes: of the whole dataset, decoded.
        copied_bytes: to the device, per step; `copies_are_beside`: on a stream of their own.
    """

    cores: float
    cores_others: float = 0.0
    steal_cores: float = 0.0
    major_faults_per_s: float = 0.0
    swap_bytes_per_s: float = 0.0
    biggest_other: str = ""
    busiest_core: float | None = None
    device_cpu_share: float | None = None
    memory_used_bytes: float | None = derived("B", "memory used")
    growth: Growth | None = None
    gpus: int = 0
    gpu_name: str = ""
    gpu_utilisation: float | None = derived("share", "GPU utilisation")
    gpu_memory_share: float | None = derived("share", "GPU memory")
    gpu_power_w: float | None = derived("W", "GPU power")
    gpu_others: int = 0
    gpu_others_share: float | None = derived("share", "GPU used by others")
    data: DataFiles | None = None
    scratch: str | None = None
    scratch_bytes_per_s: float | None = None
    decoded_bytes: float | None = None
    copied_bytes: float | None = None
    copied_element_bytes: int | None = None
    copies_are_pinned: bool = False
    copies_are_beside: bool = False
    notes: tuple[str, ...] = ()

    @property
    def is_busy(self) -> bool:
        """Whether others use a part of the cores that may be felt."""
        return self.cores_others + self.steal_cores >= 0.15 * self.cores


def look_around(
    main: Process, loop: Loop, trace: MachineTrace, data: DataFiles | None, facts: LoaderFacts
) -> MachineSummary:
    """Sum up the machine over the real steps."""
    known = {"cores": measure_usable_cores(), "data": data, **_describe_copies(main, loop)}
    length, samples = facts.get("dataset_len"), facts.batch.get("samples")
    if isinstance(length, int) and isinstance(samples, int) and samples and "tensors" in facts.batch:
        known["decoded_bytes"] = float(facts.batch_bytes) / samples * length
    if not len(trace):
        return MachineSummary(**known)
    means = trace.between(loop.start_ns, loop.end_ns)
    held, limit = means.memory_held_bytes, means.memory_limit_bytes
    used = None if held is None else held - (means.memory_cache_bytes or 0.0)
    growth = measure_growth(
        trace, loop.start_ns, loop.end_ns, steps=len(loop.steps), main_pid=main.pid,
        left_bytes=None if limit is None or used is None else limit - used,
    )  # fmt: skip
    other, load = means.biggest_other, (means.cores_others or 0.0) + (means.steal_cores or 0.0)
    biggest_other = ""
    if other is not None and other.cores >= max(_GOOD_PART * load, _LEAST_CORES):
        user = f" ({other.user})" if other.user else ""
        biggest_other = f"{other.cores:.1f} of them by {other.name}{user}"
    replay = next((f for f in main.facts_of("phase") if f.get("phase") == layout.REPLAY), None)
    if replay is not None:
        start_ns, end_ns = int(replay["start_ns"]), int(replay["end_ns"])
        known["device_cpu_share"] = trace.process_cores(main.pid, start_ns, end_ns)
    # The number of this rank's GPU, by its module's device.
    _, _, index = str(main.last("module").get("device") or "").partition(":")
    visible = main.last("torch").get("visible_devices")
    number = find_gpu(trace.gpu_uuids, int(index) if index.isdigit() else 0, visible)
    gpu = means.gpus[number] if number is not None and number < len(means.gpus) else GpuReadings()
    readings = {name: getattr(means, name) for name in READINGS}
    return MachineSummary(
        **{name: value for name, value in readings.items() if value is not None},
        **known,
        swap_bytes_per_s=(means.swap_in_bytes_per_s or 0.0) + (means.swap_out_bytes_per_s or 0.0),
        biggest_other=biggest_other,
        busiest_core=means.busiest_core,
        memory_used_bytes=used,
        growth=growth,
        gpus=len(trace.gpu_names),
        gpu_name=trace.gpu_names[0] if trace.gpu_names else "",
        gpu_utilisation=gpu.utilisation,
        gpu_memory_share=gpu.memory_used_bytes / gpu.memory_bytes
        if gpu.memory_used_bytes is not None and gpu.memory_bytes
        else None,
        gpu_power_w=gpu.power_w,
        gpu_others=sum(gpu == number for gpu, _ in trace.gpu_others),
        gpu_others_share=gpu.others_share,
    )


def _describe_copies(main: Process, loop: Loop) -> dict[str, Any]:
    """Return what is copied to the device in a step; of the largest copy how, and the size of a number."""
    copies = main.of(layout.COPY, phase=layout.REAL)
    copies = copies[copies["start"] >= loop.start_ns]
    probed = sum(step.is_probed for step in loop.steps)
    if not len(copies) or not probed:
        return {}
    largest = copies[int(copies["a"].argmax())]
    bits = int(largest["b"])
    return {
        "copied_bytes": float(copies["a"].sum()) / probed,
        "copied_element_bytes": int(largest["c"]),
        "copies_are_pinned": bool(bits & 1),
        "copies_are_beside": bool(bits & 4),
    }
