# SPDX-License-Identifier: Apache-2.0
"""What the user asked a loader for, checked: first on its own, then against the pack."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from feedrate import kernel
from feedrate.errors import BadSample, PackError, UsageError
from feedrate.filters import find_filters
from feedrate.format.fields import Field, Kind
from feedrate.format.pack import Pack
from feedrate.kernel import pillow
from feedrate.kernel.depth import Depth
from feedrate.loader.arguments import Size, check_choice, check_depth, check_functions, check_whole
from feedrate.loader.cache import Cache
from feedrate.loader.geometry import CropSampler, Places, check_size
from feedrate.loader.image import ImageOp, View

Output = Literal["torch", "numpy"]
Mode = Literal["RGB", "L"]
Decode = Literal["auto", "cpu", "gpu"]
BadSamplePolicy = Literal["raise", "skip"] | Callable[[BadSample], None]
INDEX_FIELDS = ("key", "number")


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `Loader`, which says what each is for: their names, types and defaults, and checks."""

    pack: str | os.PathLike[str] | Pack
    batch_size: int = 256
    _: KW_ONLY
    shuffle: bool = True
    seed: int = 0
    fields: Sequence[str | View] | None = None
    image: ImageOp | None = None
    flip: bool | float = False
    order: str | Sequence[int] | npt.NDArray[Any] | Callable[[int], Any] | None = None
    weights: str | Sequence[float] | npt.NDArray[Any] | None = None
    split: str | tuple[float, float] | None = None
    drop_last: bool = False
    pad: bool = False
    rank: int | None = None
    world_size: int | None = None
    transform: Callable[[dict[str, Any]], Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    cache: Cache | None = None
    threads: int | None = None
    prefetch: int | None = None
    on_bad_sample: BadSamplePolicy = "raise"
    output: Output | None = None
    scratch: str | os.PathLike[str] | None = None
    mode: Mode = "RGB"
    depth: Depth | None = None
    device: Any = None
    dtype: Any = None
    normalize: Any = None
    on_device: Any = None
    decode: Decode = "auto"
    allow_addresses: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        check_pack(self.pack)
        check_scratch(self.scratch)
        for name in ("batch_size", "threads", "prefetch", "world_size"):
            check_whole(name, getattr(self, name), least=1, optional=name != "batch_size")
        check_whole("seed", self.seed, least=0)
        for name in ("shuffle", "drop_last", "pad"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise UsageError(f"{name} must be True or False, got {getattr(self, name)!r}")
        check_image(self.image, self.flip, self.mode)
        object.__setattr__(self, "depth", check_depth(self.depth))
        self._check_ranks()
        self._check_order()
        check_functions(transform=self.transform, collate=self.collate)
        if not callable(self.on_bad_sample):
            check_choice("on_bad_sample", self.on_bad_sample, "raise", "skip", also="a function")
        if self.output is not None:
            check_choice("output", self.output, "torch", "numpy", also="None")
        check_choice("decode", self.decode, "auto", "cpu", "gpu")
        if self.cache is not None and not isinstance(self.cache, Cache):
            raise UsageError(
                f"cache must be a feedrate.Cache, got {self.cache!r}", hint='cache=feedrate.Cache(ram="auto")'
            )
        if isinstance(self.pack, Pack) and self.scratch is not None:
            raise UsageError("scratch needs the pack's path or address, not an opened pack")

    def _check_ranks(self) -> None:
        if (self.rank is None) != (self.world_size is None) and (self.rank, self.world_size) != (None, 1):
            raise UsageError(
                f"rank and world_size belong together, got rank={self.rank} and world_size={self.world_size}"
            )
        if self.rank is not None and self.world_size is not None:
            check_whole("rank", self.rank, least=0)
            if self.rank >= self.world_size:
                raise UsageError(f"rank must be below world_size ({self.world_size}), got {self.rank}")
        if self.drop_last and self.pad:
            raise UsageError("drop_last drops the last incomplete batch and pad fills it up: choose one")

    def _check_order(self) -> None:
        if isinstance(self.order, str) and self.order not in ("windowed", "staged", "shuffled"):
            raise UsageError(
                'order must be "windowed", "staged", "shuffled", positions or a function of the epoch, '
                f"got {self.order!r}",
                hint="without order, shuffle=True gives a full shuffle and shuffle=False the stored order",
            )
        if self.order is not None and self.weights is not None:
            raise UsageError("order says which samples come, and so does weights: give one of them")
        if self.split is not None and self.split != "all":
            if not isinstance(self.split, str):
                check_split(self.split)
            if self.order is not None and not (isinstance(self.order, str) and self.order != "windowed"):
                raise UsageError(
                    "order and split cannot be combined: a split is scattered over the whole pack",
                    hint="leave split out and give the positions you want as order",
                )


@dataclass(frozen=True, slots=True)
class Wanted:
    """One part of a batch. `field` is None for what the index itself holds: `key` and `number`."""

    name: str
    field: Field | None
    out_size: Size | None = None
    mode: Mode = "RGB"
    filters: tuple[int, ...] | None = None  # of a view; None: those of the image operation
    depth: Depth | None = None

    @property
    def channels(self) -> int:
        return 3 if self.mode == "RGB" and self.field is not None and self.field.kind is Kind.IMAGE else 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """What pixels are; masks have 8 bits in any case."""
        is_image = self.field is not None and self.field.kind is Kind.IMAGE
        return np.dtype(np.uint16 if is_image and self.depth == "uint16" else np.uint8)


def resolve_fields(
    pack: Pack, names: Sequence[str | View] | None, image: ImageOp | None, mode: Mode = "RGB",
    depth: Depth | None = None,
) -> tuple[Wanted, ...]:  # fmt: skip
    """Return what each batch is made of.

    Raises:
        UsageError: the pack has no such field, or its images need an operation that gives them one size.
    """
    if names is None:
        have = [f.name for f in pack.fields]
        label = "label" if "label" in have else "labels"
        names = [name for name in ("image", label) if name in have] or have
    if isinstance(names, (str, View)) or not len(names):
        raise UsageError(f'fields must be a tuple of names such as ("image", "label"), got {names!r}')
    wanted = tuple(replace(_resolve(pack, name, image), mode=mode, depth=depth) for name in names)
    for name in [w.name for w in wanted]:
        if sum(w.name == name for w in wanted) > 1:
            raise UsageError(
                f"fields names '{name}' twice", hint=f'for a second size: View("{name}", size=...)'
            )
    return wanted


def _resolve(pack: Pack, name: str | View, image: ImageOp | None) -> Wanted:
    if name in INDEX_FIELDS:
        return Wanted(str(name), None)
    field = find_field(pack, name.field if isinstance(name, View) else name)
    if isinstance(name, View):
        if not field.has_pixels:
            raise UsageError(f"View shows images and masks; field '{field.name}' is {field.kind}")
        filters = None if name.interpolation is None else find_filters(name)
        return Wanted(name.name, field, name.out_size, filters=filters)
    if not field.has_pixels:
        return Wanted(field.name, field)
    if image is not None:
        return Wanted(field.name, field, image.out_size)
    if field.shape is None:
        raise UsageError(
            f"the images of field '{field.name}' differ in size and a batch needs one size",
            hint="pass image=RandomResizedCrop(224), or another image operation",
        )
    if len(field.shape) < 2 or min(field.shape[:2]) < 1:
        raise PackError(f"{pack.name} is damaged: field '{field.name}' has images of shape {field.shape}")
    return Wanted(field.name, field, (field.shape[0], field.shape[1]))


def check_shapes(pack: Pack, wanted: Sequence[Wanted], batch_size: int) -> None:
    """Look, before memory is taken for a batch of whole images, whether they are as large as pack.json says.

    Raises:
        UsageError: they are larger than whole images may be.
        PackError: the pack's first sample has another size.
    """
    for one in wanted:
        if one.field is None or one.out_size is None or not len(pack):
            continue
        # A view has a size of its user's.
        if one.out_size != (one.field.shape or ())[:2]:
            continue
        height, width = one.out_size
        if height * width > pillow.most_pixels():
            words = pillow.say_too_large(width, height)
            raise UsageError(f"{pack.name}, field '{one.field.name}': {words}")
        if batch_size * height * width <= kernel.TRUSTED_PIXELS:
            continue
        first = np.zeros(1, np.int64)
        rows, statuses = pack.rows(first, [one.field.name])
        place = Places(pack, rows, first)
        if not statuses[0] and (reason := check_size(place, one.field, one.out_size, always=True)):
            raise PackError(f"{pack.name}: pack.json gives field '{one.field.name}' a wrong size: {reason}")


def find_field(pack: Pack, name: object) -> Field:
    have = [*(f.name for f in pack.fields), *INDEX_FIELDS]
    field = pack.manifest.field(name) if isinstance(name, str) else None
    if field is None:
        near = difflib.get_close_matches(str(name), have, n=1)
        raise UsageError(
            f"unknown field {name!r}: this pack has {', '.join(have)}",
            hint=f"did you mean '{near[0]}'?" if near else None,
        )
    return field


def find_label(pack: Pack) -> Field:
    """Return the field of labels: `label`, or `labels` where samples may have several classes."""
    return pack.manifest.field("label") or pack.manifest.field("labels") or find_field(pack, "label")


def make_sampler(
    pack: Pack, wanted: Sequence[Wanted], image: ImageOp | None, flip: bool | float, seed: int
) -> CropSampler | None:
    """Return what makes the draws, on the pack's first image, else its first mask; None: it has neither.

    The field does not depend on which ones are asked for, so two loaders with one seed cut the same part.
    """
    with_pixels = [f for kind in (Kind.IMAGE, Kind.MASK) for f in pack.fields if f.kind is kind]
    if with_pixels:
        return CropSampler(
            with_pixels[0], image, 0.5 if flip is True else float(flip), seed,
            is_shown=any(w.out_size is not None for w in wanted),
            has_choices=any(len(w.filters or ()) > 1 for w in wanted),
        )  # fmt: skip
    if image is not None or flip:
        raise UsageError(
            f"image and flip need a field of images; this pack has {', '.join(f.name for f in pack.fields)}"
        )
    return None


def check_pack(pack: object) -> None:
    if isinstance(pack, (str, os.PathLike, Pack)):
        return
    shown = repr(pack) if pack is None or isinstance(pack, (int, bytes)) else type(pack).__name__
    raise UsageError(
        f"the first argument must be the folder or the address of a pack, got {shown}: "
        "'feedrate pack FOLDER PACK' makes one of a dataset"
    )


def check_scratch(scratch: object) -> None:
    if isinstance(scratch, (str, os.PathLike)) or scratch is None:
        return
    instead = "leave it out" if scratch is False else 'write scratch="auto" to let one be found'
    raise UsageError(f'scratch must be a folder on a local disk, or "auto", got {scratch!r}: {instead}')


def check_image(image: object, flip: object, mode: object = "RGB") -> None:
    if mode not in ("RGB", "L"):
        raise UsageError(f'mode must be "RGB" or "L" (gray, one channel), got {mode!r}')
    is_operation = hasattr(image, "place") and hasattr(image, "out_size")
    if isinstance(image, type) or not (is_operation or image is None):
        name = getattr(image, "__name__", "")
        shown = f"the class {name}" if isinstance(image, type) else repr(image)
        call = f"call it with a size: image={name}(224)"
        others = "RandomResizedCrop(224), RandomCrop(...), CenterCrop(...) or Resize(...)"
        raise UsageError(
            f"image must be an image operation, got {shown}", hint=call if is_operation else others
        )
    find_filters(image)
    if not isinstance(flip, (bool, int, float, np.number)) or not 0 <= flip <= 1:
        raise UsageError(f"flip must be True, False or a probability from 0 to 1, got {flip!r}")


def check_split(split: Any) -> None:
    try:
        start, stop = split
        fits = 0 <= start < stop <= 1 and math.isfinite(start)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise UsageError(
            f"split must be two fractions with 0 <= start < stop <= 1, got {split!r}",
            hint="split=(0, 0.9), or split=\"train\" where 'feedrate split' made such a part",
        )
