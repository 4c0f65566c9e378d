# SPDX-License-Identifier: Apache-2.0
"""The pack that a feedrate.Loader or Dataset reads: where it lies, and what some of its images cost."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean

from feedrate import kernel, pillow
from feedrate.doctor.data_files import is_deep, middle_box, time_pillow, time_stored
from feedrate.doctor.measured import PackImages
from feedrate.doctor.surroundings import DataFiles
from feedrate.errors import FeedrateError
from feedrate.format.manifest import FILE_NAME
from feedrate.format.pack import Pack
from feedrate.load.cache import Cache
from feedrate.load.image import CenterCrop, ImageOp, RandomCrop, RandomResizedCrop, Resize
from feedrate.load.loader import Loader
from feedrate.load.samples import open_pack, pick
from feedrate.probe.residency import measure_residency
from feedrate.probe.storage import describe_storage

_TIMED = 24
_PASSES, _ENOUGH_S = 2, 0.2  # of timing a Loader
_CACHE_BYTES = 1 << 29
_OPERATIONS: dict[str, Callable[[tuple[int, int]], ImageOp]] = {
    "RandomResizedCrop": RandomResizedCrop, "RandomCrop": RandomCrop, "CenterCrop": CenterCrop,
    "Resize": Resize,
}  # fmt: skip


def describe_pack(folder: str) -> DataFiles | None:
    """Describe where a pack lies on this machine; None: it does not, or cannot be read."""
    try:
        pack = Pack(folder)
    except (FeedrateError, OSError):
        return None
    try:
        paths = [str(pack.locate_file(shard)) for shard in pack.manifest.shards if not shard.is_elsewhere]
    finally:
        pack.close()
    sizes = [os.stat(path).st_size for path in paths if os.path.isfile(path)]
    if not sizes:
        return None
    storage = describe_storage(paths[0])
    return DataFiles(
        folder=os.path.abspath(folder),
        kind=storage.kind,
        source=storage.source,
        is_network=storage.is_network,
        is_fuse=storage.is_fuse,
        is_memory=storage.is_memory,
        is_rotational=None if storage.is_virtual_disk else storage.rotational,
        files_seen=len(sizes),
        mean_bytes=sum(sizes) / len(sizes),
        suffixes=tuple(s for s, _ in Counter(Path(path).suffix for path in paths).most_common(3)),
        resident=measure_residency(paths[:100]),
        dataset_bytes=float(sum(sizes)),
    )


def is_pack(folder: str) -> bool:
    return Path(folder, FILE_NAME).is_file()


def time_pack_images(folder: str, size: tuple[int, int] | None, image: str) -> PackImages | None:
    """Time some images of a pack as the loader decodes them; None: it has none, or cannot be read here.

    Args:
        size: of the batch's images; None: 224 x 224.
        image: the name of the Loader's operation.
    """
    size, share = size or (224, 224), 0.54 if image == "RandomResizedCrop" else 1.0
    decoding: list[float] = []
    left: list[bytes] = []
    pixels: list[int] = []
    reasons: Counter[str] = Counter()
    is_lossless = True
    with contextlib.ExitStack() as held, contextlib.suppress(FeedrateError, OSError):
        pack = Pack(folder)
        held.callback(pack.close)
        count = len(pack)
        samples = held.enter_context(open_pack(pack, pick(count, _TIMED, 0)))
        for number in range(len(samples)):
            with contextlib.suppress(ValueError, pillow.Undecodable):
                data = samples.read(number)
                found = kernel.scan_headers(data)
                if found.damaged:
                    continue
                if found.reason is None:
                    scan = kernel.scan(data)
                    box = middle_box(scan.width, scan.height, share)
                    timed = kernel.profile_decode(data, scan.entries, box=box, size=size, repeats=3)
                    decoding.append(sum(timed.values()))
                    pixels.append(scan.width * scan.height)
                elif not is_deep(data):
                    width, height, _ = pillow.measure(data)
                    pixels.append(width * height)
                    left.append(data)
                    reasons[found.reason.removeprefix("not a JPEG (").removesuffix(")")] += 1
                    is_lossless = is_lossless and kernel.to_baseline(data) is not None
        if not pixels:
            return None
        images = PackImages(
            tried=len(decoding) + len(left),
            left=len(left),
            decode_s=_mean(decoding),
            pillow_s=_mean([time_pillow(data, size, share) for data in left]),
            stored_s=_mean([time_stored(data, size, share) for data in left]),
            others=" or ".join(reason for reason, _ in reasons.most_common(2)),
            is_lossless=is_lossless,
            decoded_bytes=3.0 * mean(pixels) * count,
        )
        return replace(images, cached_share=_time_cache(folder, image, size, images.now_s))
    return None


def _time_cache(folder: str, image: str, size: tuple[int, int], each_s: float) -> float | None:
    """Load a few samples with a cache and without: only that tells what a sample in it still costs."""
    operation, count = _OPERATIONS.get(image), min(max(int(_ENOUGH_S / max(each_s, 1e-6)), 4), _TIMED)
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
        rank=0, world_size=1, threads=1, output="numpy",
    ) as loader:  # fmt: skip
        for _ in loader:  # fills the cache
            pass
        passes, began = 0, time.process_time()
        while passes < _PASSES or time.process_time() - began < _ENOUGH_S:
            passes += 1
            for _ in loader:
                pass
        return (time.process_time() - began) / passes


def _mean(seconds: list[float]) -> float:
    return mean(seconds) if seconds else 0.0
