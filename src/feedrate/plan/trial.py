# SPDX-License-Identifier: Apache-2.0
"""What samples cost, measured on some of them from memory: decoded by Pillow and by a Loader, and packed.

Pillow is tried as a DataLoader uses it: in processes, one at first, then as many as there are cores. They are
forked by a process of its own, which imports this module and has no threads; so what else is needed here is
imported where it is used.
"""

from __future__ import annotations

import io
import json
import math
import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feedrate.draws import draw_crop
from feedrate.figures import Figure

if TYPE_CHECKING:
    from PIL import Image

BATCH = 256
_ALONE_S, _TOGETHER_S = 1.1, 0.9
_MOST_TURNS = 100  # of each image
_WARM_UP = 3  # images; the first ones load what Pillow needs
_PACK_S = 0.5
_CACHED = 48  # images that are decoded whole
_WAITING_S, _MOST_WAITS, _MOST_AGAIN, _RESIDENT = 1.5, 120, 40, 0.02
_TIMEOUT_S = 60.0
_LEAST_ERROR = 0.04  # of a time: from one measurement to the next


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds of a sample, and how much all cores give together; None: no images, or not tried."""

    pillow_s: Figure | None
    feedrate_s: Figure | None
    pillow_cores: float
    feedrate_cores: float
    pack_s: Figure
    whole_s: Figure | None = None
    cached_s: Figure | None = None
    notes: tuple[str, ...] = ()


def find_missing(count: float, total: float) -> float:
    """Return the part of a standard error that is left where a sample is much of the whole."""
    return math.sqrt(max(1 - count / total, 0.0))


def measure_costs(
    samples: Sequence[tuple[str, bytes]], *, has_images: bool, total: float, side: int
) -> Costs:
    """Measure on some of `total` samples: suffix and content of each; crops become `side` pixels wide.

    Raises:
        StorageError: there is no room for them.
    """
    from feedrate.machine.cpu import count_usable_cores, measure_usable_cores

    cores = measure_usable_cores()
    with _in_memory(samples) as (folder, names):
        pack_s = _measure_packing(folder, names, [len(data) for _, data in samples], has_images)
        if not has_images:
            return Costs(None, None, cores, cores, pack_s)
        pillow_s, gain, notes = _measure_pillow(folder, count_usable_cores(), total, side)
        paths = [os.path.join(folder, name) for name in names]
        feedrate_s, feedrate_gain, why = _measure_loader(paths, side)
        whole_s, cached_s = (None, None) if feedrate_s is None else _measure_caching(paths, side)
    if feedrate_s is not None and pillow_s is not None:
        # The images that a Loader decoded are the same, so its mean is as sure.
        by = feedrate_s.value / pillow_s.value
        feedrate_s = replace(feedrate_s, low=pillow_s.low * by, high=pillow_s.high * by)
    # What could not be tried is guessed from the other, and so is what more cores give it.
    gain, feedrate_gain = (
        feedrate_gain if pillow_s is None else gain,
        gain if feedrate_s is None else feedrate_gain,
    )
    return Costs(
        pillow_s, feedrate_s, min(gain, cores), min(feedrate_gain, cores), pack_s, whole_s, cached_s,
        tuple(note for note in (notes, why) if note),
    )  # fmt: skip


@contextmanager
def _in_memory(samples: Sequence[tuple[str, bytes]]) -> Iterator[tuple[str, list[str]]]:
    """Yield a folder with the samples as files, in memory where there is room for it, and their names."""
    from feedrate.errors import StorageError
    from feedrate.files.own_folder import own_folder

    size_bytes, shared = sum(len(data) for _, data in samples), "/dev/shm"
    has_room = os.access(shared, os.W_OK) and _free_bytes(shared) > 3 * size_bytes
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


def _free_bytes(folder: str) -> int:
    info = os.statvfs(folder)
    return info.f_bavail * info.f_frsize


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
    from feedrate.loader.image import RandomResizedCrop
    from feedrate.loader.trial import TrialOptions, try_loader

    trial, why = try_loader(paths, TrialOptions(RandomResizedCrop(side), 0.5, BATCH))
    if trial is None:
        return None, 1.0, why
    figure = Figure.within(trial.alone_cpu_s, 1 + _LEAST_ERROR, "measured", f"{trial.images:,} images")
    # By CPU time: others may have had the cores meanwhile.
    return figure, max(trial.busy_threads * trial.alone_cpu_s / trial.cpu_s, 1.0), ""


def _measure_caching(paths: Sequence[str], side: int) -> tuple[Figure | None, Figure | None]:
    """Return what decoding whole images takes, and a crop of one; None: that failed."""
    from feedrate.errors import FeedrateError
    from feedrate.loader.samples import open_files
    from feedrate.loader.trial import try_cache

    try:
        with open_files(paths[:_CACHED], in_memory=True) as samples:
            whole_s, cached_s = try_cache(samples, side)
    except (FeedrateError, OSError, ValueError, MemoryError):
        return None, None
    note = f"up to {_CACHED} images"
    return Figure.within(whole_s, 1.15, "measured", note), Figure.within(cached_s, 1.15, "measured", note)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file that is not in memory costs more than one that is, in seconds.

    Attributes:
        wait_s: waiting for the file system, while Pillow opens and decodes it.
        cpu_s: CPU time of who reads it.
        server_s: CPU time of the process that serves the file system on this node (FUSE).
    """

    wait_s: Figure
    cpu_s: Figure
    server_s: float


def measure_reading(paths: Sequence[str]) -> Reading | None:
    """Let Pillow read files where they are.

    It reads small pieces, so that this cannot be told from files that are read at once. Waiting for a core
    does not count. None: all of these files are in memory, or none is an image.
    """
    from PIL import Image

    from feedrate.machine.disk import describe_storage
    from feedrate.machine.memory import measure_open_residency

    waits: list[float] = []
    more: list[float] = []
    is_fuse = bool(paths) and describe_storage(paths[0]).is_fuse
    served = _measure_servers() if is_fuse else 0.0
    until = time.perf_counter() + _WAITING_S
    for path in random.sample(list(paths), len(paths)):
        if time.perf_counter() > until or len(waits) >= _MOST_WAITS:
            break
        try:
            began, cpu, queued = time.perf_counter(), time.thread_time(), _read_queued_s()
            with open(path, "rb") as file:
                resident = measure_open_residency(file.fileno(), path)
                if resident is not None and resident > _RESIDENT:
                    continue
                Image.open(file).convert("RGB")
                cpu_s = time.thread_time() - cpu
                wait_s = time.perf_counter() - began - cpu_s - (_read_queued_s() - queued)
                waits.append(max(wait_s, 0.0))
                if len(more) < _MOST_AGAIN:
                    more.append(cpu_s - _decode_again(file))
                if resident is not None:  # else it may have been there before
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except Exception:  # whatever Pillow raises, and files that are gone
            continue
    if len(waits) < 3:
        return None
    waiting = Figure.of_mean(waits[1:], f"{len(waits) - 1:,} files", least=_LEAST_ERROR)
    reading_s = max(math.fsum(more[1:]) / (len(more) - 1), 0.0)
    server_s = (_measure_servers() - served) / len(waits) if is_fuse else 0.0
    return Reading(waiting, Figure.within(reading_s, 1.3, "measured", waiting.note), server_s)


def _decode_again(file: Any) -> float:
    """Return the CPU time of decoding a file that is open, from memory."""
    from PIL import Image

    file.seek(0)
    data = io.BytesIO(file.read())
    began = time.thread_time()
    Image.open(data).convert("RGB")
    return time.thread_time() - began


def _measure_servers() -> float:
    """Return the CPU time so far of processes that serve file systems on this node, as far as one may see."""
    from feedrate.machine.process import find_openers, read_stat

    found = (read_stat(pid) for pid in find_openers("/dev/fuse"))
    return math.fsum(stat.cpu_s for stat in found if stat is not None)


def _read_queued_s() -> float:
    """Return how long this thread was ready to run and had no core."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read(100).split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


def _measure_pillow(folder: str, cores: int, total: float, side: int) -> tuple[Figure | None, float, str]:
    """Return the CPU time of an image, and what all cores give by what one gives."""
    from feedrate.machine.isolated import isolated_command

    untried = "Pillow could not be tried, and is taken to be six times slower: "
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = isolated_command(
        "feedrate.plan.trial:try_pillow", folder, *map(str, (cores, _ALONE_S, _TOGETHER_S, side))
    )
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, env=environ
        )
        alone, together = json.loads(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        words = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        return None, 1.0, f"{untried}{words[-1] if words else error}"
    if not alone:
        return None, 1.0, f"{untried}it decodes none of these images"
    means = {number: math.fsum(times) / len(times) for number, times in alone.items()}
    both = [
        (means[number], math.fsum(times) / len(times))
        for number, times in together.items()
        if number in means
    ]
    slower = math.fsum(b for _, b in both) / math.fsum(a for a, _ in both) if both else 1.0
    figure = Figure.of_mean(list(means.values()), f"{len(means):,} images", least=0.0)
    figure = figure.narrowed(find_missing(len(means), total))
    least, most = (figure.value * (1 + error) for error in (-_LEAST_ERROR, _LEAST_ERROR))
    figure = replace(figure, low=min(figure.low, least), high=max(figure.high, most))
    return figure, max(cores / max(slower, 1.0), 1.0), ""


def try_pillow() -> None:
    """Print the CPU times of images by their names: in one process, then in one per core at once.

    Called in a process of its own, which has no threads when it forks.
    """
    from PIL import Image, ImageFile  # noqa: F401 - imported before others are forked

    folder, cores, alone_s, together_s, side = sys.argv[1:]
    names = sorted(os.listdir(folder), key=lambda name: int(name.partition(".")[0]))
    files = {name: _read(folder, name) for name in names}
    random.shuffle(names)
    for name in names[:_WARM_UP]:
        _decode(files[name], int(side))
    alone = _decode_for(files, names, float(alone_s), int(side))
    together: dict[str, list[float]] = {}
    tried = [name for name in names if name in alone]
    if int(cores) > 1 and tried:
        for times in _fork(files, tried, int(cores), float(together_s), int(side)):
            for name, some in times.items():
                together.setdefault(name, []).extend(some)
    os.write(1, json.dumps([alone, together]).encode())  # to the pipe of who called


def _fork(
    files: dict[str, bytes], names: list[str], cores: int, seconds: float, side: int
) -> Iterator[dict[str, list[float]]]:
    """Decode in `cores` processes at once, each in another order."""
    pipes = []
    for number in range(cores):
        reading, writing = os.pipe()
        if not os.fork():
            try:
                at = number * len(names) // cores
                found = _decode_for(files, names[at:] + names[:at], seconds, side)
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
        pixels = _decode(files[name], side)
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


def _decode(data: bytes, side: int) -> Any:
    """Return what a DataLoader's worker makes of a file; None: Pillow does not decode it."""
    from PIL import Image

    try:
        image: Image.Image = Image.open(io.BytesIO(data)).convert("RGB")
        image = image.crop(draw_crop(*image.size)).resize((side, side), Image.Resampling.BILINEAR)
    except Exception:  # whatever Pillow raises for a file that it does not decode
        return None
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(image)
