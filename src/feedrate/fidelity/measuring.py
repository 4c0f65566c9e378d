# SPDX-License-Identifier: Apache-2.0
"""What is looked at: images in files or in a pack, and the originals of a pack's images.

Pairs of pictures for people to look at: ours, theirs, and the difference made large enough to see.

`feedrate fidelity`: a sample decoded as the loader would and as Pillow does, and how far they differ.
"""

from __future__ import annotations

import io
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from feedrate.draws import pick
from feedrate.errors import NotFound, UsageError, suggest_path
from feedrate.fidelity.results import Comparison, Fidelity, ImageDifference, Picture, Pictures
from feedrate.filters import check_filter
from feedrate.format.manifest import is_pack
from feedrate.kernel import I32, U8, Status
from feedrate.kernel.pillow import Box
from feedrate.lab.decode import (
    LARGEST_DIFFERENCE,
    LOWEST_PSNR_DB,
    Difference,
    Samples,
    compare_pixels,
    decode_as_torchvision,
    decode_part,
    open_files,
    open_pack,
)
from feedrate.loader.geometry import Geometry
from feedrate.loader.packs import open_pack as open_anywhere
from feedrate.machine.describe import describe_machine
from feedrate.progress import Rejection, Tick
from feedrate.source.folders import find_images
from feedrate.units import printable

# Settings in pack.json that change pixels: such a pack is compared with its originals, too.
LOSSY_SETTINGS = ("resize", "max_side", "quality")


@dataclass(frozen=True, slots=True)
class Subject:
    """`original_paths` are of a pack's samples, relative to the folder it was made of."""

    source: str
    dataset_images: int
    samples: Samples
    lossy_settings: Mapping[str, object] = field(default_factory=dict)
    original_paths: tuple[bytes, ...] = ()

    @property
    def wanted(self) -> int:
        return len(self.samples) + len(self.samples.rejected)


@contextmanager
def open_subject(
    sources: Sequence[str],
    images: int,
    seed: int,
    originals: Path | None,
    allow_addresses: Sequence[str] = (),
) -> Iterator[Subject]:
    """Draw up to `images` images from a pack, or from folders and files.

    Raises:
        NotFound: there is nothing of that name, or no such folder of originals.
        SourceError: there are no images.
        UsageError: a pack among other sources, or originals of something that is no pack.
        PackError: the pack is damaged, or names files of a host that is not allowed.
    """
    packs = [source for source in sources if is_pack(source)]
    if packs and len(sources) > 1:
        raise UsageError(f"{packs[0]} is a pack: give it alone, or give files and folders without it")
    if originals is not None and not packs:
        raise UsageError(
            f"{sources[0]} is not a pack: --originals compares a pack with the files that it was made of"
        )
    if originals is not None and not originals.is_dir():
        raise NotFound(f"no folder of originals at {originals}", hint=suggest_path(originals))
    files = _open_files(sources, images, seed)
    with _open_pack(packs[0], images, seed, allow_addresses) if packs else files as subject:
        yield subject


@contextmanager
def _open_files(sources: Sequence[str], images: int, seed: int) -> Iterator[Subject]:
    paths = find_images(sources)
    numbers = pick(len(paths), images, seed)
    with open_files([paths[i] for i in numbers], numbers) as samples:
        more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
        yield Subject(printable(os.fsencode(sources[0])) + more, len(paths), samples)


@contextmanager
def _open_pack(source: str, images: int, seed: int, allow_addresses: Sequence[str]) -> Iterator[Subject]:
    pack = open_anywhere(source, allow_addresses=allow_addresses)
    try:
        positions = pick(len(pack), images, seed)
        with open_pack(pack, positions) as samples:
            settings = pack.manifest.settings
            lossy = {name: settings[name] for name in LOSSY_SETTINGS if settings.get(name)}
            paths = tuple(pack.texts("image.path", positions))
            yield Subject(printable(os.fsencode(source)), len(pack), samples, lossy, paths)
    finally:
        pack.close()


_LARGEST_GAIN = 64


@dataclass(frozen=True, slots=True)
class Pair:
    difference: ImageDifference
    ours: U8
    theirs: U8


def draw_pictures(pairs: list[Pair]) -> tuple[Picture, ...]:
    """Return them as PNG files. All differences of one list are multiplied alike, so that they compare."""
    gain = choose_gain(pairs)
    return tuple(
        Picture(pair.difference, _png(pair.ours), _png(pair.theirs), _png(amplify(pair, gain)), gain)
        for pair in pairs
    )


def choose_gain(pairs: list[Pair]) -> int:
    """Return the power of two that makes what differs bright, and whitens no more than single pixels."""
    large = max((float(np.percentile(_difference(pair), 99.5)) for pair in pairs), default=0)
    gain = _LARGEST_GAIN
    while gain > 1 and gain * large > 255:
        gain //= 2
    return gain


def amplify(pair: Pair, gain: int) -> U8:
    """Return the difference of each channel times `gain`, black where there is none."""
    amplified: U8 = np.minimum(_difference(pair) * gain, 255).astype(np.uint8)
    return amplified


def _difference(pair: Pair) -> I32:
    difference: I32 = np.abs(pair.ours.astype(np.int32) - pair.theirs.astype(np.int32))
    return difference


def _png(pixels: U8) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", optimize=True)
    return out.getvalue()


_WORST = 6  # named in the result and shown on the page

Watch = Callable[[Tick], None]


@dataclass(frozen=True, slots=True)
class FidelityOptions:
    images: int = 200
    seed: int = 0
    side: int = 224
    originals: Path | None = None
    allow_addresses: tuple[str, ...] = ()
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        check_filter(self.interpolation, "fidelity")
        for name, flag in (("images", "--images"), ("side", "--size")):
            if getattr(self, name) < 1:
                raise UsageError(f"{flag} must be at least 1, got {getattr(self, name)}")


def measure_fidelity(
    sources: Sequence[str], options: FidelityOptions, *, watch: Watch = lambda _: None
) -> tuple[Fidelity, Pictures]:
    """Compare a sample of a pack, or of folders and files.

    Args:
        watch: told how far it is.

    Raises:
        NotFound, SourceError, UsageError, PackError: as `open_subject`.
    """
    wanted = (options.images, options.seed, options.originals, options.allow_addresses)
    with open_subject(sources, *wanted) as subject:
        look = _Look(subject, options)
        total, total_bytes = len(subject.samples), int(subject.samples.images.length.sum())
        for number in range(total):
            watch(Tick("comparing", number, total, total_bytes=total_bytes))
            look.at(number)
    result = Fidelity(
        source=subject.source,
        dataset_images=subject.dataset_images,
        sampled=subject.wanted,
        seed=options.seed,
        image_side=options.side,
        lowest_psnr_limit_db=LOWEST_PSNR_DB,
        largest_difference_limit=LARGEST_DIFFERENCE,
        pillow=look.pillow.sum_up(lossy=False),
        by_pillow=dict(look.by_pillow.most_common()),
        originals=look.originals.sum_up(lossy=bool(subject.lossy_settings)),
        originals_folder=None if options.originals is None else str(options.originals),
        settings=subject.lossy_settings,
        not_compared=(*subject.samples.rejected, *look.not_compared),
        refused=tuple(look.refused),
        missing=tuple(look.missing),
        machine=describe_machine(),
        interpolation=options.interpolation,
    )
    return result, Pictures(draw_pictures(look.pillow.worst), draw_pictures(look.originals.worst))


@dataclass
class _Tally:
    """Sums up one comparison as it goes, and keeps the pixels of the worst pairs only."""

    psnrs: list[float | None] = field(default_factory=list)
    levels: list[tuple[int, int, int, int]] = field(default_factory=list)
    largest: int = 0
    outside: int = 0
    worst: list[Pair] = field(default_factory=list)

    def add(self, pair: Pair, found: Difference) -> None:
        self.psnrs.append(found.psnr_db)
        self.levels.append(found.levels)
        self.largest = max(self.largest, found.largest)
        self.outside += not found.is_rounding
        self.worst = sorted([*self.worst, pair], key=_psnr)[:_WORST]

    def sum_up(self, *, lossy: bool) -> Comparison | None:
        if not self.psnrs:
            return None
        differing = [psnr for psnr in self.psnrs if psnr is not None]
        shares = np.array(self.levels, np.float64).sum(axis=0)
        zero, one, two, more = (shares / shares.sum()).tolist()
        return Comparison(
            images=len(self.psnrs),
            equal_images=len(self.psnrs) - len(differing),
            mean_psnr_db=sum(differing) / len(differing) if differing else None,
            lowest_psnr_db=min(differing, default=None),
            largest_difference=self.largest,
            level_shares=(zero, one, two, more),
            worst=tuple(pair.difference for pair in self.worst if pair.difference.psnr_db is not None),
            outside=self.outside,
            lossy=lossy,
        )


def _psnr(pair: Pair) -> float:
    return math.inf if pair.difference.psnr_db is None else pair.difference.psnr_db


class _Look:
    """One pass over the sample, image by image."""

    def __init__(self, subject: Subject, options: FidelityOptions) -> None:
        self.subject = subject
        self.options = options
        self.geometry: Geometry = subject.samples.draw(options.side, options.seed, options.interpolation)
        self.pillow, self.originals = _Tally(), _Tally()
        self.by_pillow: Counter[str] = Counter()
        self.not_compared: list[Rejection] = []
        self.refused: list[Rejection] = []
        self.missing: list[Rejection] = []

    def at(self, number: int) -> None:
        side, samples = self.options.side, self.subject.samples
        ours, report = samples.decode_one(number, self.geometry, (side, side))
        reason = next(iter(report.reasons.values()), None)
        theirs = self._ask_pillow(number)
        is_damage = report.statuses[0] == Status.CORRUPT
        if reason is not None and (isinstance(theirs, np.ndarray) or not is_damage):
            self.refused.append(self._reject(number, reason))
        elif isinstance(theirs, str):
            self.not_compared.append(self._reject(number, reason or f"Pillow does not decode it: {theirs}"))
        elif report.by_pillow:
            self.by_pillow.update(report.pillow_reasons or {})
        else:
            self._compare(self.pillow, number, ours, theirs)
        if self.options.originals is not None and reason is None:
            self._compare_with_original(number, ours)

    def _ask_pillow(self, number: int) -> U8 | str:
        left, top, right, bottom = self.geometry.boxes[number].tolist()
        flip = bool(self.geometry.flips[number])
        try:
            file = self.subject.samples.read(number)
            return self._decode(file, (left, top, right, bottom), flip)
        except MemoryError:  # no fault of the image
            raise
        except Exception as error:  # Pillow's readers raise whatever damage leads them into
            return _words(error)

    def _compare(self, tally: _Tally, number: int, ours: U8, theirs: U8) -> None:
        left, top, right, bottom = self.geometry.boxes[number].tolist()
        found = compare_pixels(ours, theirs)
        difference = ImageDifference(
            name=self.subject.samples.names[number],
            width=int(self.geometry.sides[0][number]),
            height=int(self.geometry.sides[1][number]),
            box=(left, top, right, bottom),
            flip=bool(self.geometry.flips[number]),
            psnr_db=found.psnr_db,
            largest_difference=found.largest,
            identical_share=found.levels[0] / sum(found.levels),
        )
        tally.add(Pair(difference, ours, theirs), found)

    def _compare_with_original(self, number: int, ours: U8) -> None:
        assert self.options.originals is not None
        path = self.subject.original_paths[number]
        # A pack may come from a stranger.
        if path.startswith(b"/") or b".." in path.split(b"/"):
            self.missing.append(self._reject(number, "its path leads out of the folder: refused"))
            return
        try:
            with open(os.path.join(os.fsencode(self.options.originals), path), "rb") as file:
                theirs = self._decode_original(number, file.read())
        except FileNotFoundError:
            self.missing.append(self._reject(number, "is not there"))
        except MemoryError:
            raise
        except Exception as error:  # as above, and the disk's
            self.missing.append(self._reject(number, _words(error)))
        else:
            self._compare(self.originals, number, ours, theirs)

    def _decode_original(self, number: int, file: bytes) -> U8:
        from feedrate.kernel import pillow

        left, top, right, bottom = self.geometry.boxes[number].tolist()
        stored = int(self.geometry.sides[0][number]), int(self.geometry.sides[1][number])
        flip, side = bool(self.geometry.flips[number]), self.options.side
        width, height, _ = pillow.measure(file)
        if (width, height) == stored:
            return self._decode(file, (left, top, right, bottom), flip)
        # A resized copy: its pixels are between those of the original, and so do the edges of the crop.
        across, down = width / stored[0], height / stored[1]
        box = (left * across, top * down, right * across, bottom * down)
        return decode_part(file, box, side, flip, self.geometry.filters[0])

    def _decode(self, file: bytes, box: Box, flip: bool) -> U8:
        return decode_as_torchvision(file, box, self.options.side, flip, self.geometry.filters[0])

    def _reject(self, number: int, reason: str) -> Rejection:
        return Rejection(self.subject.samples.names[number], "image", reason)


def _words(error: Exception) -> str:
    # Pillow names the object in memory that it could not identify, which says nothing to anybody.
    text = " ".join(str(error).split())
    return text if text and "0x" not in text else type(error).__name__
