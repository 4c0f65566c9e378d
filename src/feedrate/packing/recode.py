# SPDX-License-Identifier: Apache-2.0
"""Less to decode, by the user's choice: smaller pixels, a new JPEG quality, no coding at all, or what the
kernel takes.

Everything here changes what is stored, so nothing of it happens unless it was asked for, and it is counted.
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feedrate import kernel
from feedrate.errors import UsageError
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.raw import dump_raw
from feedrate.kernel import U8, pillow
from feedrate.packing.values import ImageFacts, set_upright, unusable
from feedrate.source.record import UnusableValue, dump_array

if TYPE_CHECKING:
    from feedrate.packing.results import Recoded

DEFAULT_QUALITY = 90
ALL_IMAGES, RESIZED_IMAGES = "all images", "resized images"  # the values of `encoded` in pack.json
# Photographs of 256 pixels at quality 90: halving the chroma saves 20 % of the bytes and 12 % of the decoding
# and costs 1.7 dB. Who asks for this much quality wants the colours too.
FULL_CHROMA_QUALITY = 95
# Where normalising cannot be done without loss: little of it.
NORMAL_QUALITY = pillow.NORMAL_QUALITY
PSNR_EVERY = 50

# To plan shards before an image is looked at: what a pixel takes as JPEG, what decoding makes of a byte.
_BYTES_PER_JPEG_PIXEL, _PIXEL_BYTES_PER_JPEG_BYTE = 0.3, 8
_IDENTICAL_DB = 99.0


@dataclass(frozen=True, slots=True)
class Recode:
    """What to do with pixels. At most one of `resize` (shorter side) and `max_side` (longer side) is given.

    With `quality` all images are encoded anew; without it only those that were resized, in DEFAULT_QUALITY.
    With `normalise` images that the kernel does not take, or that are on their side, become upright baseline
    JPEG: coefficient by coefficient where that is possible, else encoded anew in NORMAL_QUALITY.
    With `keep_truncated` images that end too early are stored as PNG, filled up as Pillow does it on request.
    """

    resize: int | None = None
    max_side: int | None = None
    quality: int | None = None
    raw: bool = False
    normalise: bool = False
    keep_truncated: bool = False

    def __post_init__(self) -> None:
        for name, side in (("resize", self.resize), ("max_side", self.max_side)):
            if side is not None and not 1 <= side <= 65_000:
                raise UsageError(f"{name} must be 1 to 65000 pixels, got {side}")
        if self.resize is not None and self.max_side is not None:
            raise UsageError("resize limits the shorter side, max_side the longer one: give one of them")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise UsageError(f"quality must be 1 to 100, got {self.quality}")
        if self.raw and self.quality is not None:
            raise UsageError(
                "raw pixels are not compressed, so they have no quality", hint="give --raw or --quality"
            )

    @property
    def limits_size(self) -> bool:
        return self.resize is not None or self.max_side is not None

    def settings(self) -> dict[str, object]:
        """Return what pack.json says about it; nothing when there is nothing to say."""
        settings: dict[str, object] = {}
        if self.resize is not None:
            settings["resize"] = self.resize
        if self.max_side is not None:
            settings["max_side"] = self.max_side
        if self.raw:
            settings["raw"] = True
        elif self.limits_size or self.quality is not None:
            settings["quality"] = self.quality or DEFAULT_QUALITY
            settings["encoded"] = RESIZED_IMAGES if self.quality is None else ALL_IMAGES
        if self.normalise:
            settings["normalise"] = "upright" if self.raw else f"quality {self.quality or NORMAL_QUALITY}"
        if self.keep_truncated:
            settings["keep_truncated"] = True
        return settings

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Recode:
        """Return the choice that a pack's settings tell of."""
        quality = settings.get("quality") if settings.get("encoded") == ALL_IMAGES else None
        sides = settings.get("resize"), settings.get("max_side")
        flags = bool(settings.get("raw")), "normalise" in settings, bool(settings.get("keep_truncated"))
        return cls(*sides, quality, *flags)

    def mark(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Return the fields with the coding that they will have."""
        return tuple(dataclasses.replace(field, coding=self._coding(field)) for field in fields)

    def _coding(self, field: Field) -> Coding:
        if field.kind is Kind.IMAGE:
            if self.raw:
                return Coding.RAW
            return Coding.RECODED if self.settings() else Coding.FILE
        return Coding.RECODED if field.kind is Kind.MASK and self.limits_size else Coding.FILE

    def new_size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height after the resize: torchvision's rule, but never larger than before."""
        short, long = min(width, height), max(width, height)
        if self.resize is not None and short > self.resize:
            short, long = self.resize, int(self.resize * long / short)
        elif self.max_side is not None and long > self.max_side:
            short, long = max(1, int(self.max_side * short / long)), self.max_side
        return (short, long) if width <= height else (long, short)

    def estimate_bytes(self, size_bytes: int) -> int:
        """Guess what an image file of this size will take, from its size alone: for planning shards."""
        pixels = math.inf
        if self.resize is not None:
            pixels = self.resize**2 * 4 / 3
        elif self.max_side is not None:
            pixels = self.max_side**2 * 3 / 4
        if self.raw:
            return int(min(3 * pixels, _PIXEL_BYTES_PER_JPEG_BYTE * size_bytes)) + 128
        return int(min(_BYTES_PER_JPEG_PIXEL * pixels, size_bytes))


class NewImage(NamedTuple):
    """An image as it will be stored.

    Attributes:
        pixels: those that were encoded; None: coefficients were written again, and nothing was encoded.
        normalised: it was not what the kernel takes, or lay on its side.
    """

    data: bytes
    width: int
    height: int
    pixels: U8 | None = None
    normalised: bool = False


def recode_image(recode: Recode, data: bytes, facts: ImageFacts, *, may_turn: bool = True) -> NewImage | None:
    """Return an image as the user wants it stored; None: as it is.

    `may_turn`: an image may be turned upright; not where masks or boxes follow its pixels as they are.

    Raises:
        UnusableValue: it cannot be decoded.
    """
    width, height = recode.new_size(facts.width, facts.height)
    is_same = (width, height) == (facts.width, facts.height) and recode.quality is None and not recode.raw
    orientation = facts.orientation if recode.normalise and may_turn else 1
    is_normal = orientation == 1 and facts.pillow_reason is None
    if facts.is_deep:
        return _recode_deep(recode, data, facts)
    # What is damaged stays as it is: a new coat of JPEG would hide that.
    if is_same and (not recode.normalise or is_normal or facts.damage):
        return None
    if is_same and (turned := _write_again(data, orientation)) is not None:
        return turned
    try:
        is_gray = pillow.is_gray(data) if facts.is_gray is None else facts.is_gray
        # What is made smaller goes through line by line, so that it may be larger than whole images may be.
        box = None if width * height >= facts.width * facts.height else (0, 0, facts.width, facts.height)
        pixels = kernel.decode_one(data, box=box, size=(height, width), mode="L" if is_gray else "RGB")
    except (ValueError, OSError) as error:
        raise unusable(str(error)) from error
    pixels = _turn(pixels[..., 0] if is_gray else pixels, orientation)
    height, width = pixels.shape[:2]
    is_normalised = recode.normalise and not is_normal
    if recode.raw:
        return NewImage(dump_raw(pixels), width, height, pixels, is_normalised)
    quality = recode.quality or (NORMAL_QUALITY if is_same else DEFAULT_QUALITY)
    encoded = pillow.encode_jpeg(
        pixels,
        quality=quality,
        full_chroma=quality >= FULL_CHROMA_QUALITY,
        orientation=1 if recode.normalise and may_turn else pillow.read_orientation(data),
    )
    return NewImage(encoded, width, height, pixels, is_normalised)


def _recode_deep(recode: Recode, data: bytes, facts: ImageFacts) -> NewImage | None:
    """Return gray of more than 8 bits in its new size; else as it is, since JPEG cannot hold its values."""
    if recode.raw:
        words = f"has more than 8 bits (mode {facts.mode}), and --raw stores 8: pack without it"
        raise UnusableValue(words, "deep")
    size = recode.new_size(facts.width, facts.height)
    if size == (facts.width, facts.height):
        return None
    try:
        return NewImage(pillow.resize_deep(data, size), *size)
    except (pillow.Undecodable, OSError) as error:
        raise unusable(str(error)) from error


def _write_again(data: bytes, orientation: int) -> NewImage | None:
    """Return the same coefficients as an upright baseline JPEG; None: not all of them would be the same."""
    written = kernel.to_baseline(data, orientation)
    if written is None:
        return None
    written = written if orientation == 1 else set_upright(written)
    scan = kernel.scan(written)
    return None if scan.reason else NewImage(written, scan.width, scan.height, normalised=True)


def _turn(pixels: U8, orientation: int) -> U8:
    """Return pixels the right way up, given the EXIF orientation of how they are."""
    if orientation >= 5:
        pixels = np.swapaxes(pixels, 0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def resize_mask(recode: Recode, data: bytes, size: tuple[int, int]) -> bytes | None:
    """Return a mask as PNG in its new size, by nearest neighbour; None: it is small enough as it is.

    Raises:
        UnusableValue: it cannot be decoded, or PNG cannot hold its values.
    """
    new = recode.new_size(*size)
    if new == size:
        return None
    try:
        return pillow.resize_mask(data, new)
    except pillow.Undecodable as error:
        raise unusable(str(error)) from error


def scale_boxes(data: bytes, before: tuple[int, int], after: tuple[int, int]) -> bytes:
    """Return the .npy of boxes, moved from an image of one width and height to one of another."""
    if before == after:
        return data
    boxes = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    boxes[:, [0, 2]] *= after[0] / before[0]
    boxes[:, [1, 3]] *= after[1] / before[1]
    return dump_array(boxes)


def measure_psnr(image: NewImage) -> float:
    """Return how far the encoded image is from the pixels that went in, in dB; 99: not at all."""
    assert image.pixels is not None
    mode = "L" if image.pixels.ndim == 2 else "RGB"
    decoded = kernel.decode_one(image.data, mode=mode).reshape(image.pixels.shape)
    error = float(np.mean((decoded.astype(np.int32) - image.pixels) ** 2))
    return min(_IDENTICAL_DB, round(10 * math.log10(255**2 / error), 2)) if error else _IDENTICAL_DB


class Tally:
    """Counts along what a shard's recoding did."""

    def __init__(self) -> None:
        self.images = self.resized = self.masks = self.kept = self.before_bytes = self.after_bytes = 0
        self.lossless = 0
        # Of those that were normalised: kind of image -> how many, without loss and encoded anew.
        self.rewritten: Counter[str] = Counter()
        self.encoded: Counter[str] = Counter()
        self.psnr_db: list[float] = []

    def add(
        self, before_bytes: int, image: NewImage | None, kind: str = "", *, is_resized: bool, is_raw: bool
    ) -> None:
        """Count an image; of every fiftieth that was encoded anew the loss is measured."""
        if image is None:
            self.kept += 1
            return
        self.lossless += image.normalised and image.pixels is None
        if image.pixels is not None and not is_raw and (self.images - self.lossless) % PSNR_EVERY == 0:
            self.psnr_db.append(measure_psnr(image))
        if image.normalised:
            (self.rewritten if image.pixels is None or is_raw else self.encoded)[kind] += 1
        self.images += 1
        self.resized += is_resized
        self.before_bytes += before_bytes
        self.after_bytes += len(image.data)

    def dump(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if value}


def sum_up(settings: Mapping[str, object], tallies: Sequence[Mapping[str, object]]) -> Recoded | None:
    """Return what recoding did to a whole pack; None: it was not asked for."""
    words = describe_pixels(settings)
    has_pixels = any(tally.get("images") or tally.get("masks") for tally in tallies)
    if not has_pixels and not _say_coding(settings):
        return None

    from feedrate.packing.results import Recoded  # packing begins sooner without all results of all commands

    def total(name: str) -> int:
        return sum(count for tally in tallies if isinstance(count := tally.get(name, 0), int))

    def total_by_kind(name: str) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for tally in tallies:
            if isinstance(here := tally.get(name), dict):
                counts.update(here)
        return dict(counts.most_common())

    psnr = [db for tally in tallies if isinstance(values := tally.get("psnr_db"), list) for db in values]
    counted = ("images", "resized", "masks", "kept", "before_bytes", "after_bytes", "lossless")
    return Recoded(
        words=words,
        **{name: total(name) for name in counted},
        rewritten=total_by_kind("rewritten"),
        encoded=total_by_kind("encoded"),
        mean_psnr_db=sum(psnr) / len(psnr) if psnr else None,
        psnr_images=len(psnr),
    )


def describe_pixels(settings: Mapping[str, object]) -> str:
    """Say what a pack's settings did to pixels: "lossy: shorter side 256, quality 90"; "": nothing."""
    merged = settings.get("merged")
    if isinstance(merged, list):
        words = [describe_pixels(one["settings"]) for one in merged]
        return "; or ".join(dict.fromkeys(word for word in words if word))
    function = settings.get("map")
    mapped = [f"mapped by {function.get('function')}"] if isinstance(function, dict) else []
    return "; ".join([*mapped, *([pixels] if (pixels := _say_coding(settings)) else [])])


def _say_coding(settings: Mapping[str, object]) -> str:
    sizes = [f"{word} {settings[name]}" for name, word in _SIDES.items() if name in settings]
    normal = settings.get("normalise")
    if settings.get("raw"):
        upright = ", turned upright" if normal else ""
        upright += ", truncated images filled up" if settings.get("keep_truncated") else ""
        return f"raw, lossy: {sizes[0]}{upright}" if sizes else f"raw: as decoded, uncompressed{upright}"
    words = "lossy: " + ", ".join([*sizes, f"quality {settings['quality']}"]) if "quality" in settings else ""
    filled = "truncated images filled up" if settings.get("keep_truncated") else ""
    normalised = f"normalised to baseline JPEG, {normal} where not lossless" if normal else ""
    return "; ".join(word for word in (words, normalised, filled) if word)


_SIDES = {"resize": "shorter side", "max_side": "longer side"}
