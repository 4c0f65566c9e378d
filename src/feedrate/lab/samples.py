# SPDX-License-Identifier: Apache-2.0
"""What a sample costs, measured on some of them: decoded by Pillow and by a Loader, and packed.

Pillow is tried as a DataLoader uses it, in processes: from memory in one and in as many as there are cores;
and on files where they lie, in as many as the script has workers. They are forked by a process of its own,
which imports this module and has no threads; so what else is needed here is imported where it is used.
"""

from __future__ import annotations

import io
import json
import math
import mmap
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Any

import numpy as np

from feedrate.figures import MEASURED, Figure

BATCH = 256
_ALONE_S, _TOGETHER_S, _IN_PLACE_S = 1.1, 0.9, 2.0
_MOST_TURNS = 100  # of each image
_WARM_UP = 3  # images; the first ones load what Pillow needs
_PACK_S = 0.5
_CACHED = 48  # images that are decoded whole
_MOST_READERS, _MOST_AGAIN, _RESIDENT = 64, 10, 0.02
_TIMEOUT_S = 60.0
_LEAST_ERROR = 0.04  # of a time: from one measurement to the next


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a sample; None: no images, or it could not be tried, which a note says.

    Attributes:
        pillow_s, feedrate_s: CPU time for one sample on one core, from memory, a random crop of `crop`
            pixels: Pillow as DataLoader workers use it (collating included), and our kernel from a pack's
            entry points.
        pillow_cores, feedrate_cores: what all cores of this machine gave, divided by what one gave.
        pack_s: CPU time to pack one sample: read from memory, scan, checksum, write.
        whole_s, cached_s: CPU time of our kernel to decode a whole image, and to cut a crop out of one that
            is decoded.
        pillow_wait_s: what a DataLoader's worker waits for a file that is not in memory, beside that CPU
            time, while the others read as well; None: all of it is in memory, or there are no files.
        pillow_read_s, server_s: CPU time that such a file takes more than one in memory: of who reads it, and
            of a process that serves the file system on this node.
    """

    pillow_s: Figure | None
    feedrate_s: Figure | None
    pillow_cores: float
    feedrate_cores: float
    pack_s: Figure
    whole_s: Figure | None = None
    cached_s: Figure | None = None
    pillow_wait_s: Figure | None = None
    pillow_read_s: Figure | None = None
    server_s: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class PillowTimes:
    """What Pillow took, by image: alone, and in as many processes as there are cores.

    `waits`, `more`: of files where they lie, waiting and CPU time beyond that of decoding; `why`: it failed.
    """

    alone: dict[str, list[float]] = field(default_factory=dict)
    together: dict[str, list[float]] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    more: list[float] = field(default_factory=list)
    why: str = ""


def find_missing(count: float, total: float) -> float:
    """Return the part of a standard error that is left where a sample is much of the whole."""
    return math.sqrt(max(1 - count / total, 0.0))


def measure_costs(
    samples: Sequence[tuple[str, bytes]],
    *,
    has_images: bool,
    total: float,
    side: int,
    lying: Sequence[str] = (),
    workers: int = 1,
) -> Costs:
    """Measure on some of `total` samples: suffix and content of each; crops become `side` pixels wide.

    Args:
        lying: files of the dataset, which `workers` read at a time where they are.

    Raises:
        StorageError: there is no room for the samples.
    """
    from feedrate.machine.cpu import count_usable_cores, measure_usable_cores

    cores = measure_usable_cores()
    with _in_memory(samples) as (folder, names):
        pack_s = _measure_packing(folder, names, [len(data) for _, data in samples], has_images)
        if not has_images:
            return Costs(None, None, cores, cores, pack_s)
        times, server_s = _run_pillow(folder, count_usable_cores(), side, lying, workers)
        pillow_s, gain = _sum_up_pillow(times, count_usable_cores(), total)
        paths = [os.path.join(folder, name) for name in names]
        feedrate_s, feedrate_gain, why = _measure_loader(paths, side)
        whole_s, cached_s = (None, None) if feedrate_s is None else _measure_caching(paths, side)
    if feedrate_s is not None and pillow_s is not None:
        # The images that a Loader decoded are the same, so its mean is as sure.
        by = feedrate_s.value / pillow_s.value
        feedrate_s = replace(feedrate_s, low=pillow_s.low * by, high=pillow_s.high * by)
    # What could not be tried is guessed from the other, and so is what more cores give it.
    gain, feedrate_gain = (
        feedrate_gain if pillow_s is None else gain, gain if feedrate_s is None else feedrate_gain,
    )  # fmt: skip
    note = f"{len(times.waits):,} files, {min(max(workers, 1), _MOST_READERS)} at a time"
    more_s = math.fsum(times.more) / len(times.more) if times.more else 0.0
    waiting = Figure.of_mean(times.waits, note, least=_LEAST_ERROR) if len(times.waits) > 2 else None
    return Costs(
        pillow_s, feedrate_s, min(gain, cores), min(feedrate_gain, cores), pack_s, whole_s, cached_s,
        pillow_wait_s=waiting,
        pillow_read_s=waiting and Figure.within(max(more_s, 0.0), 1.3, MEASURED, note),
        server_s=server_s if waiting else 0.0,
        notes=tuple(one for one in (times.why, why) if one),
    )  # fmt: skip


@contextmanager
def _in_memory(samples: Sequence[tuple[str, bytes]]) -> Iterator[tuple[str, list[str]]]:
    """Yield a folder with the samples as files, in memory where there is room for it, and their names."""
    from feedrate.errors import StorageError
    from feedrate.files.own_folder import own_folder
    from feedrate.machine.disk import measure_room

    size_bytes, shared = sum(len(data) for _, data in samples), "/dev/shm"
    has_room = os.access(shared, os.W_OK) and measure_room(shared).free_bytes > 3 * size_bytes
    names = [f"{number}{suffix}" for number, (suffix, _) in enumerate(samples)]
    with own_folder(shared if has_room else tempfile.gettempdir(), "feedrate-plan-") as inside:
        folder = os.path.join(inside, "samples")
        try:
            os.mkdir(folder)
            for name, (_, data) in zip(names, samples, strict=True):
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(data)
        except OSError as error:
            raise StorageError(
                f"no room for {size_bytes:,} bytes of samples in {folder}: {error.strerror}",
                hint="name another folder for temporary files: TMPDIR=DIR feedrate plan ...",
            ) from error
        yield folder, names


def _measure_packing(folder: str, names: Sequence[str], sizes: Sequence[int], has_images: bool) -> Figure:
    """Return the CPU time of what packing does with a sample: read, look at, lay out, check, write."""
    from feedrate import kernel
    from feedrate.format.containers.tar import member_header
    from feedrate.format.index import ByteStrings
    from feedrate.kernel import pillow

    paths = ByteStrings.of([name.encode() for name in names])
    times: list[float] = []
    began = time.perf_counter()
    memory = np.empty(4 * max(sizes) + 4096, np.uint8)
    with tempfile.TemporaryFile(dir=folder) as out:
        for number in range(len(names)):
            before = time.thread_time()
            one = paths[number : number + 1]
            if has_images:
                members = kernel.make_members(
                    folder.encode(), *one.pack(), np.array(sizes[number : number + 1], np.int64),
                    np.zeros(1, np.int64), header=member_header("", 0), memory=memory,
                )  # fmt: skip
                data: Any = members.buffer.data
                is_left = bool(members.facts["left"][0])
            else:
                data, is_left = _read(folder, names[number]), False
            if is_left:  # to Pillow, which decodes it whole
                data = _read(folder, names[number])
                kernel.scan(data)
                try:
                    pillow.check(data)
                except pillow.Undecodable:
                    continue
            kernel.crc32c(data)
            out.seek(0)
            out.write(data)
            times.append(time.thread_time() - before)
            if time.perf_counter() - began > _PACK_S and len(times) >= 8:
                break
    return Figure.of_mean(times or [0.0], f"{len(times):,} samples", least=_LEAST_ERROR)


def _read(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def _measure_loader(paths: Sequence[str], side: int) -> tuple[Figure | None, float, str]:
    from feedrate.lab.trial import TrialOptions, try_loader
    from feedrate.loader.image import RandomResizedCrop

    trial, why = try_loader(paths, TrialOptions(RandomResizedCrop(side), 0.5, BATCH))
    if trial is None:
        return None, 1.0, why
    figure = Figure.within(trial.alone_cpu_s, 1 + _LEAST_ERROR, "measured", f"{trial.images:,} images")
    # By CPU time: others may have had the cores meanwhile.
    return figure, max(trial.busy_threads * trial.alone_cpu_s / trial.cpu_s, 1.0), ""


def _measure_caching(paths: Sequence[str], side: int) -> tuple[Figure | None, Figure | None]:
    """Return what decoding whole images takes, and a crop of one; None: that failed."""
    from feedrate.errors import FeedrateError
    from feedrate.lab.decode import open_files
    from feedrate.lab.trial import try_cache

    try:
        with open_files(paths[:_CACHED], in_memory=True) as samples:
            whole_s, cached_s = try_cache(samples, side)
    except (FeedrateError, OSError, ValueError, MemoryError):
        return None, None
    note = f"up to {_CACHED} images"
    return Figure.within(whole_s, 1.15, "measured", note), Figure.within(cached_s, 1.15, "measured", note)


def _run_pillow(
    folder: str, cores: int, side: int, lying: Sequence[str], workers: int
) -> tuple[PillowTimes, float]:
    """Let Pillow try files; return what it took, and what a server of their file system took for each."""
    from feedrate.lab.child import RunFailed, run_in_process
    from feedrate.lab.store import measure_servers
    from feedrate.machine.disk import describe_storage

    untried = "Pillow could not be tried, and is taken to be six times slower: "
    is_fuse = bool(lying) and describe_storage(lying[0]).is_fuse
    served = measure_servers() if is_fuse else 0.0
    arguments = {"folder": folder, "cores": cores, "side": side, "lying": list(lying), "workers": workers}
    times = {"alone_s": _ALONE_S, "together_s": _TOGETHER_S}
    try:
        found, _ = run_in_process("feedrate.lab.samples:try_pillow", arguments | times, timeout_s=_TIMEOUT_S)
    except (RunFailed, OSError) as error:
        return PillowTimes(why=untried + str(error).splitlines()[-1].strip()), 0.0
    done = PillowTimes(**found)
    if not done.alone:
        done.why = f"{untried}it decodes none of these images"
    server_s = (measure_servers() - served) / max(len(done.waits), 1) if is_fuse else 0.0
    return done, max(server_s, 0.0)


def _sum_up_pillow(times: PillowTimes, cores: int, total: float) -> tuple[Figure | None, float]:
    """Return the CPU time of an image, and what all cores give by what one gives."""
    if not times.alone:
        return None, 1.0
    means = {number: math.fsum(some) / len(some) for number, some in times.alone.items()}
    both = [(means[n], math.fsum(some) / len(some)) for n, some in times.together.items() if n in means]
    slower = math.fsum(b for _, b in both) / math.fsum(a for a, _ in both) if both else 1.0
    figure = Figure.of_mean(list(means.values()), f"{len(means):,} images", least=0.0)
    figure = figure.narrowed(find_missing(len(means), total))
    least, most = (figure.value * (1 + error) for error in (-_LEAST_ERROR, _LEAST_ERROR))
    figure = replace(figure, low=min(figure.low, least), high=max(figure.high, most))
    return figure, max(cores / max(slower, 1.0), 1.0)


def try_pillow(
    folder: str, cores: int, side: int, lying: Sequence[str], workers: int, alone_s: float, together_s: float
) -> dict[str, Any]:
    """Return the CPU times of images by their names, and of files where they lie; see `PillowTimes`.

    Called in a process of its own, which has no threads when it forks.
    """
    from PIL import ImageFile  # noqa: F401 - imported before others are forked

    import feedrate.lab.loader  # noqa: F401

    names = sorted(os.listdir(folder), key=lambda name: int(name.partition(".")[0]))
    files = {name: _read(folder, name) for name in names}
    random.shuffle(names)
    for name in names[:_WARM_UP]:
        _decode(io.BytesIO(files[name]), side)
    alone = _decode_for(files, names, alone_s, side)
    together: dict[str, list[float]] = {}
    tried = [name for name in names if name in alone]
    readers = min(max(workers, 1), _MOST_READERS)
    # On the store first: later, what is tried from memory would have all of the cores.
    waits = list(_fork(lambda n: _decode_lying(lying[n::readers], side), readers)) if lying and tried else []
    if cores > 1 and tried:
        turns = [tried[n * len(tried) // cores :] + tried[: n * len(tried) // cores] for n in range(cores)]
        for times in _fork(lambda n: _decode_for(files, turns[n], together_s, side), cores):
            for name, some in times.items():
                together.setdefault(name, []).extend(some)
    return {
        "alone": alone, "together": together,
        "waits": [wait for times in waits for wait in times["waits"]],
        "more": [cpu for times in waits for cpu in times["more"]],
    }  # fmt: skip


def _fork(work: Callable[[int], dict[str, list[float]]], count: int) -> Iterator[dict[str, list[float]]]:
    """Do work in `count` processes at once, each with its number."""
    pipes = []
    for number in range(count):
        reading, writing = os.pipe()
        if not os.fork():
            try:
                found = work(number)
                with open(writing, "w") as pipe:
                    json.dump(found, pipe)
            finally:
                os._exit(0)
        os.close(writing)
        pipes.append(reading)
    for reading in pipes:
        with open(reading) as pipe:
            yield json.loads(pipe.read() or "{}")
    for _ in pipes:
        os.wait()


def _decode_lying(paths: Sequence[str], side: int) -> dict[str, list[float]]:
    """Decode files where they are, but for those in memory; return what each waited, for no core."""
    from feedrate.machine.memory import measure_open_residency
    from feedrate.machine.process import read_queued_s

    waits, more = list[float](), list[float]()
    until = time.perf_counter() + _IN_PLACE_S
    for path in paths:
        if time.perf_counter() > until:
            break
        try:
            began, cpu, queued = time.perf_counter(), time.process_time(), read_queued_s(os.getpid())
            with open(path, "rb") as file:
                resident = measure_open_residency(file.fileno(), path)
                if (resident is not None and resident > _RESIDENT) or _decode(file, side) is None:
                    continue
                cpu_s = time.process_time() - cpu
                wait_s = time.perf_counter() - began - cpu_s - (read_queued_s(os.getpid()) - queued)
                waits.append(max(wait_s, 0.0))
                if len(more) < _MOST_AGAIN:
                    file.seek(0)
                    data, cpu = io.BytesIO(file.read()), time.process_time()
                    _decode(data, side)
                    more.append(cpu_s - (time.process_time() - cpu))
                if resident is not None:  # else it may have been there before
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            continue  # gone since, or not readable
    return {"waits": waits[1:], "more": more[1:]}  # at first, what Pillow needs is loaded


def _decode_for(
    files: dict[str, bytes], names: list[str], seconds: float, side: int
) -> dict[str, list[float]]:
    """Return the CPU times of images by name, each with its part of what a batch takes to be put together."""
    times: dict[str, list[float]] = {}
    batch: list[Any] = []
    collate_s = list[float]()
    until, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < until and number < _MOST_TURNS * len(names):
        name = names[number % len(names)]
        number += 1
        before = time.process_time()
        pixels = _decode(io.BytesIO(files[name]), side)
        if pixels is None:
            continue
        times.setdefault(name, []).append(time.process_time() - before)
        batch.append(pixels)
        if len(batch) == BATCH:
            collate_s.append(_collate(batch))
            batch = []
    if batch and not collate_s:
        batch += [batch[number % len(batch)].copy() for number in range(BATCH - len(batch))]
        collate_s.append(_collate(batch))
    each_s = math.fsum(collate_s) / max(len(collate_s), 1) / BATCH
    return {name: [one + each_s for one in some] for name, some in times.items()}


def _collate(batch: list[Any]) -> float:
    """Return the CPU time of laying a batch into memory that processes share, as a worker hands it over.

    Its pages are new each time, which takes longer than the copy.
    """
    before = time.process_time()
    with mmap.mmap(-1, sum(pixels.nbytes for pixels in batch)) as shared:
        out = np.frombuffer(shared, np.uint8).reshape(len(batch), *batch[0].shape)
        np.stack(batch, out=out)
        del out
    return time.process_time() - before


def _decode(file: IO[bytes], side: int) -> Any:
    """Return what a DataLoader's worker makes of a file; None: Pillow does not decode it."""
    from feedrate.lab.loader import load_augmented

    try:
        return load_augmented(file, side)
    except Exception:  # whatever Pillow raises for a file that it does not decode
        return None
