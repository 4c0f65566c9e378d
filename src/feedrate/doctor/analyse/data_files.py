# SPDX-License-Identifier: Apache-2.0
"""The files, or the pack, that samples come from: where they are, how big they are, what is timed of them.

How fast our decoder is on some of them, and how fast samples like these would come from our cache.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

import numpy as np

from feedrate import kernel
from feedrate.doctor.analyse.data_folders import LoaderFacts, find_place, list_images, list_opened
from feedrate.doctor.analyse.machine_summary import DataFiles
from feedrate.doctor.analyse.metrics import KernelTime, PackImages
from feedrate.doctor.analyse.records import Recording
from feedrate.draws import pick
from feedrate.errors import FeedrateError
from feedrate.filters import BILINEAR
from feedrate.format.manifest import FILE_NAME
from feedrate.format.pack import Pack
from feedrate.kernel import U8, depth, pillow
from feedrate.lab.decode import IMAGE, Samples, open_files, open_pack
from feedrate.loader.cache import Cache
from feedrate.loader.cached import cached
from feedrate.loader.geometry import Geometry, read_sides
from feedrate.loader.image import CenterCrop, ImageOp, RandomCrop, RandomResizedCrop, Resize
from feedrate.loader.loader import Loader
from feedrate.machine.disk import describe_storage
from feedrate.machine.memory import measure_residency
from feedrate.stats import median

_SIZED_FILES = 400
_TIMED_FILES = 24
_ENOUGH_S = 2.0  # of timing one kind of files
_LONGEST_S = 0.5  # an image; of those that take longer one is tried
_CROPPED = 0.54  # of an image's area: RandomResizedCrop's mean
_MOST_KEPT_BYTES = 64 << 20  # of samples that are made up to be kept
_COPIES = 20
_PASSES, _BATCH = 6, 8  # over those that our decoder takes, and images in a call of it
_LOADER_PASSES, _LOADER_ENOUGH_S = 2, 0.2  # of timing a Loader
_CACHE_BYTES = 1 << 29
_OPERATIONS: tuple[Callable[[tuple[int, int]], ImageOp], ...] = (
    RandomResizedCrop, RandomCrop, CenterCrop, Resize,
)  # fmt: skip


def describe_data(recording: Recording, loaders: Sequence[str], facts: LoaderFacts) -> DataFiles | None:
    """Look at the files that were opened while samples of the training were made; None: there were none.

    Args:
        loaders: that feed the training; facts: of the first.
    """
    # Threads of the script's own open files outside of all waits.
    paths = list_opened(recording, loaders) or list_opened(recording)
    if not paths:
        return None
    sizes = []
    for path in paths[:_SIZED_FILES]:
        with contextlib.suppress(OSError):
            sizes.append(os.stat(path).st_size)
    if not sizes:
        return None
    dataset_len = facts.get("dataset_len")
    # One file per sample, or few big ones: then the sum of what was seen is the better guess.
    is_per_sample = dataset_len is not None and len(paths) > min(50, dataset_len / 2)
    whole = sum(sizes) / len(sizes) * dataset_len if is_per_sample and dataset_len else float(sum(sizes))
    place = find_place(paths, facts)
    return replace(
        _describe_files(place.folder, paths, sizes),
        files_seen=len(paths),
        dataset_bytes=whole,
        images=list_images(paths),
        place=place,
    )


def _describe_files(folder: str, paths: Sequence[str], sizes: Sequence[int]) -> DataFiles:
    storage = describe_storage(paths[0])
    suffixes = Counter(Path(path).suffix.lower() for path in paths)
    return DataFiles(
        folder=folder,
        kind=storage.kind,
        source=storage.source,
        is_network=storage.is_network,
        is_fuse=storage.is_fuse,
        is_memory=storage.is_memory,
        is_rotational=None if storage.is_virtual_disk else storage.rotational,
        files_seen=len(sizes),
        mean_bytes=sum(sizes) / len(sizes),
        suffixes=tuple(suffix for suffix, _ in suffixes.most_common(3)),
        resident=measure_residency(paths[:100]),
        dataset_bytes=float(sum(sizes)),
    )


@dataclass
class _Sorted:
    """Images by who decodes them: places of those for the kernel, and what is left to Pillow, with why."""

    taken: list[int] = field(default_factory=list)
    left: list[bytes] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    deep: int = 0  # of those left
    is_lossless: bool = True  # to store those as the kernel likes them changes no pixel

    def add(self, at: int, data: bytes) -> None:
        """Take an image; one that is damaged is left out. Raises ValueError where it is none."""
        found = kernel.scan_headers(data)
        if found.reason is None:
            self.taken.append(at)
        elif not found.damaged:
            self.left.append(data)
            self.reasons[found.reason.removeprefix("not a JPEG (").removesuffix(")")] += 1
            self.deep += is_deep(data)
            self.is_lossless = self.is_lossless and kernel.to_baseline(data) is not None

    @property
    def others(self) -> str:
        return " or ".join(reason for reason, _ in self.reasons.most_common(2))


def time_kernel(
    images: Sequence[str], size: tuple[int, int] | None, *, crops: bool, at_once: int = 1
) -> KernelTime | None:
    """Time our decoder on some of the user's image files, where they are, as a Dataset of a pack calls it.

    Where it does not take all of them, what it takes is weighed by Pillow's time for each kind, and what the
    others would take once they are stored as it likes them is timed, too.

    Args:
        size: of the batch's images; None: 224 x 224.
        crops: the user's code takes random crops: a part of each image, as RandomResizedCrop draws it.
        at_once: so many decode beside each other, as workers do.
    """
    size, share = size or (224, 224), _CROPPED if crops else 1.0
    paths, found = _choose(images), _Sorted()
    for at, path in enumerate(paths):
        with contextlib.suppress(ValueError, OSError):
            found.add(at, Path(path).read_bytes())
    taken, tried = [paths[at] for at in found.taken], len(found.taken) + len(found.left)
    ours_s = _time_dataset(taken, size, share, at_once) if taken else 0.0
    if not tried or (taken and not ours_s):
        return None
    if not found.left:
        return KernelTime(ours_s, len(taken), tried)
    held = [Path(path).read_bytes() for path in taken]
    theirs = [
        len(kind) * _mean_time(kind, lambda data: _time_pillow(data, size, share))
        for kind in (held, found.left)
    ]
    return KernelTime(
        cpu_s_per_image=ours_s,
        taken=len(taken),
        tried=tried,
        taken_share=theirs[0] / max(sum(theirs), 1e-9),
        others=found.others,
        stored_cpu_s=_mean_time(found.left, lambda data: _time_stored(data, size, share)),
        stored_by="--map MODULE:FUNCTION --raw" if found.deep > len(found.left) / 2 else "--normalise",
        deep=found.deep,
        is_lossless=found.is_lossless,
    )


def time_pack_images(folder: str, size: tuple[int, int] | None, image: str) -> PackImages | None:
    """Time some images of a pack as the loader decodes them; None: it has none, or cannot be read here.

    Args:
        size: of the batch's images; None: 224 x 224.
        image: the name of the Loader's operation.
    """
    size, share = size or (224, 224), _CROPPED if image == "RandomResizedCrop" else 1.0
    decoding: list[float] = []
    pixels: list[int] = []
    with contextlib.ExitStack() as held, contextlib.suppress(FeedrateError, OSError):
        pack = Pack(folder)
        held.callback(pack.close)
        count, found = len(pack), _Sorted()
        samples = held.enter_context(open_pack(pack, pick(count, _TIMED_FILES, 0)))
        for number in range(len(samples)):
            with contextlib.suppress(ValueError, pillow.Undecodable):
                data = samples.read(number)
                if is_deep(data):
                    continue
                found.add(number, data)
                if number in found.taken:
                    scan = kernel.scan(data)
                    box = _middle_box(scan.width, scan.height, share)
                    timed = kernel.profile_decode(data, scan.entries, box=box, size=size, repeats=3)
                    decoding.append(sum(timed.values()))
                    pixels.append(scan.width * scan.height)
        pixels += [math.prod(pillow.measure(data)[:2]) for data in found.left]
        if not pixels:
            return None
        images = PackImages(
            tried=len(decoding) + len(found.left),
            left=len(found.left),
            decode_s=mean(decoding or [0.0]),
            pillow_s=_mean_time(found.left, lambda data: _time_pillow(data, size, share)),
            stored_s=_mean_time(found.left, lambda data: _time_stored(data, size, share)),
            others=found.others,
            is_lossless=found.is_lossless,
            decoded_bytes=3.0 * mean(pixels) * count,
        )
        return replace(images, cached_share=_time_cache(folder, image, size, images.now_s))
    return None


def _choose(images: Sequence[str]) -> list[str]:
    """Return the files to time: with each suffix as often as among all, which chance alone would not give."""
    mixed = random.Random(0).sample(list(images), len(images))
    mixed.sort(key=lambda path: Path(path).suffix.lower())
    count = min(_TIMED_FILES, len(mixed))
    return [mixed[number * len(mixed) // count] for number in range(count)]


def cpu_s(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _mean_time(images: Sequence[bytes], time_one: Callable[[bytes], float]) -> float:
    """Return the mean of a time over images: of as many as can be timed soon; 0: of none."""
    began, seconds = time.thread_time(), []
    for data in images:
        if time.thread_time() - began > _ENOUGH_S:
            break
        with contextlib.suppress(ValueError, OSError):
            seconds.append(time_one(data))
    return mean(seconds) if seconds else 0.0


def _time_dataset(paths: Sequence[str], size: tuple[int, int], share: float, at_once: int) -> float:
    """Return the CPU time that a Dataset takes per image: all of them in turn, and all once more; 0: unknown.

    An image that is decoded again and again is in the caches, its branches are known, and no neighbour uses
    the other half of the core: that takes a third less than it does in a run.
    """
    with (
        contextlib.suppress(FeedrateError, OSError, ValueError, MemoryError),
        open_files(paths) as samples,
        ThreadPoolExecutor(at_once) as pool,
    ):
        widths, heights = read_sides(IMAGE, samples.rows)
        boxes = [_middle_box(*sides, share) for sides in zip(widths.tolist(), heights.tolist(), strict=True)]
        flips = np.zeros(len(samples), np.bool_)
        geometry = Geometry(np.array(boxes, np.int32), flips, (widths, heights))
        passes = pool.map(lambda _: _time_passes(samples, geometry, size), range(at_once))
        return mean(passes) / max(len(samples), 1)
    return 0.0


def _time_passes(samples: Samples, geometry: Geometry, size: tuple[int, int]) -> float:
    """Return the CPU time of one pass over all images, in this thread."""
    from PIL import Image

    def make(first: int, count: int) -> None:
        at = np.arange(first, min(first + count, len(samples)))
        out = np.empty((len(at), *size, 3), np.uint8)
        samples.decode_chosen(at, geometry.take(at), out)
        for pixels in out:
            Image.fromarray(pixels.copy())

    def make_all() -> None:
        for first in range(0, len(samples), _BATCH):
            make(first, _BATCH)

    if (each_s := cpu_s(lambda: make(0, 1))) > _LONGEST_S:
        return each_s * len(samples)  # to try them all would keep the user waiting
    seconds: list[float] = []
    while len(seconds) < _PASSES and sum(seconds) < _ENOUGH_S:
        seconds.append(cpu_s(make_all))
    return median(seconds[1:] or seconds)  # the first opens the files


def _time_pillow(data: bytes, size: tuple[int, int], share: float) -> float:
    box = _middle_box(*pillow.measure(data)[:2], share)
    return _time_call(lambda: pillow.decode(data, box, (*size, 3)))


def _time_stored(data: bytes, size: tuple[int, int], share: float) -> float:
    """Return what our decoder takes for an image that was stored as it likes it."""
    width, height, _ = pillow.measure(data)
    whole, box = (0, 0, width, height), _middle_box(width, height, share)
    if is_deep(data):
        rows = pillow.decode(data, whole, (height, width, 1))[..., 0]
        return _time_call(lambda: pillow.crop_rows(rows, box, (*size, 1), BILINEAR))
    stored = kernel.to_baseline(data)
    if stored is None:
        is_gray = pillow.is_gray(data)
        rows = pillow.decode(data, whole, (height, width, 1 if is_gray else 3))
        rows = rows[..., 0] if is_gray else rows
        stored = pillow.encode_jpeg(rows, quality=pillow.NORMAL_QUALITY, full_chroma=True, orientation=1)
    entries = kernel.scan(stored).entries
    return _time_call(lambda: kernel.decode_one(stored, box=box, size=size, entries=entries))


def _time_call(work: Callable[[], object]) -> float:
    """Return the CPU time of the quicker of two calls: the first may find cold caches."""
    return min(cpu_s(work) for _ in range(2))


def is_deep(data: bytes) -> bool:
    """Whether an image holds more than 8 bits a channel: those `--normalise` leaves alone."""
    return depth.is_deep(pillow.measure(data)[2])


def _middle_box(width: int, height: int, share: float) -> tuple[int, int, int, int]:
    side = share**0.5
    w, h = max(round(width * side), 1), max(round(height * side), 1)
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def time_kept(batch: Mapping[str, object]) -> float | None:
    """Return the CPU time of taking a sample from what `feedrate.cached` keeps, by made-up ones of its size.

    None: the batch holds no tensors, or it cannot be tried here.
    """
    tried = _try_cached(batch, lambda samples, take: _time_copies(take) - _time_copies(lambda: samples))
    return max(tried[0], 0.0) if tried else None


def time_keeping(batch: Mapping[str, object]) -> float | None:
    """Return the CPU time of storing a sample in what `feedrate.cached` keeps, tried in the same way."""
    seconds = _try_cached(batch, lambda _, take: cpu_s(take), times=3)
    return median(seconds) if seconds else None


_Samples = Sequence[tuple[U8, ...]]


def _try_cached(
    batch: Mapping[str, object],
    measure: Callable[[_Samples, Callable[[], _Samples]], float],
    times: int = 1,
) -> list[float]:
    """Return what was measured, per sample, of some of a batch's size and of taking them from a new cache."""
    count, tensors = batch.get("samples"), batch.get("tensors")
    if not isinstance(count, int) or not isinstance(tensors, list) or count < 1:
        return []
    sizes = [int(tensor.get("bytes") or 0) // count for tensor in tensors]
    if not 0 < sum(sizes) <= _MOST_KEPT_BYTES:
        return []
    seconds, made = [], range(min(_BATCH, _MOST_KEPT_BYTES // sum(sizes)))
    samples = [tuple(np.zeros(size, np.uint8) for size in sizes) for _ in made]
    for _ in range(times):
        with (
            contextlib.suppress(FeedrateError, OSError),
            contextlib.closing(cached(samples, ram=4 * _MOST_KEPT_BYTES)) as kept,
        ):
            seconds.append(measure(samples, functools.partial(kept.__getitems__, made)) / len(made))
    return seconds


def _time_copies(take: Callable[[], _Samples]) -> float:
    """Return the CPU time of taking some samples and copying each, as collating does: memory that is mapped
    costs when it is read."""
    into = [np.empty_like(part) for part in take()[0]]

    def copy() -> None:
        for sample in take():
            for target, part in zip(into, sample, strict=True):
                np.copyto(target, part)

    return median([cpu_s(copy) for _ in range(_COPIES)])


def _time_cache(folder: str, image: str, size: tuple[int, int], each_s: float) -> float | None:
    """Load a few samples with a cache and without: only that tells what a sample in it still costs."""
    operation = next((one for one in _OPERATIONS if one.__name__ == image), None)
    count = min(max(int(_LOADER_ENOUGH_S / max(each_s, 1e-6)), 4), _TIMED_FILES)
    if operation is None:
        return None
    try:
        with Cache(ram=_CACHE_BYTES) as cache:
            cached_s, plain_s = (_time_loader(folder, operation(size), count, one) for one in (cache, None))
    except (FeedrateError, OSError, ValueError):
        return None
    return cached_s / plain_s if plain_s else None


def _time_loader(folder: str, operation: ImageOp, count: int, cache: Cache | None) -> float:
    """Return the CPU time of one pass over some samples, all threads together; the first is left out."""
    with contextlib.closing(Pack(folder)) as pack, Loader(
        pack, count, order=pick(len(pack), count, 0), image=operation, fields=("image",), cache=cache,
        rank=0, world_size=1, threads=1, output="numpy", depth="clip",  # timed, and seen by nobody
    ) as loader:  # fmt: skip
        for _ in loader:  # fills the cache
            pass
        passes, began = 0, time.process_time()
        while passes < _LOADER_PASSES or time.process_time() - began < _LOADER_ENOUGH_S:
            passes += 1
            for _ in loader:
                pass
        return (time.process_time() - began) / passes


def describe_pack(folder: str) -> DataFiles | None:
    """Describe where a pack is on this machine; None: it is not here, or cannot be read."""
    try:
        with contextlib.closing(Pack(folder)) as pack:
            paths = [str(pack.locate_file(shard)) for shard in pack.manifest.shards if not shard.is_remote]
    except (FeedrateError, OSError):
        return None
    sizes = [os.stat(path).st_size for path in paths if os.path.isfile(path)]
    return _describe_files(os.path.abspath(folder), paths, sizes) if sizes else None


def is_pack(folder: str) -> bool:
    return Path(folder, FILE_NAME).is_file()
