# SPDX-License-Identifier: Apache-2.0
"""`Dataset`: a pack in the place of torchvision's ImageFolder, for those who keep their DataLoader."""

from __future__ import annotations

import operator
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import numpy as np

from feedrate.arrays import I64, U8
from feedrate.errors import UsageError
from feedrate.format.fields import Field, Kind
from feedrate.format.pack import Pack
from feedrate.kernel.depth import Depth
from feedrate.loader import options as asked
from feedrate.loader.arguments import Size, check_choice, check_depth, check_functions, check_whole, takes
from feedrate.loader.geometry import (
    FieldCrops,
    Geometry,
    Places,
    check_depths,
    check_size,
    decode_crops,
    decode_pixels,
)
from feedrate.loader.image import ImageOp, Resize, View
from feedrate.loader.options import Mode, Wanted
from feedrate.loader.order import find_parts, find_split, members, tell_parts
from feedrate.loader.packs import open_pack
from feedrate.loader.values import choose_output, explain_status, read_values

Output = Literal["pil", "numpy", "torch"]
_TOGETHER_BYTES = 256 << 10  # larger images take longer to copy than a call of the kernel does by itself


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """The arguments of `Dataset`, which says what each is for: names, types and defaults, and checks."""

    pack: str | os.PathLike[str]
    transform: Callable[[Any], Any] | None = None
    target_transform: Callable[[Any], Any] | None = None
    _: KW_ONLY
    fields: Sequence[str] | None = None
    image: ImageOp | None = None
    flip: bool | float = False
    seed: int | None = None
    output: Output = "pil"
    split: str | tuple[float, float] | None = None
    mode: Mode = "RGB"
    depth: Depth | None = None
    allow_addresses: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        asked.check_pack(self.pack)
        if isinstance(self.pack, Pack):  # its path travels to other processes
            addresses = self.allow_addresses or getattr(self.pack, "allow_addresses", ())
            object.__setattr__(self, "allow_addresses", addresses)
            object.__setattr__(self, "pack", self.pack.name)
        asked.check_image(self.image, self.flip, self.mode)
        check_whole("seed", self.seed, least=0, optional=True)
        check_functions(transform=self.transform, target_transform=self.target_transform)
        check_choice("output", self.output, "pil", "numpy", "torch")
        object.__setattr__(self, "depth", check_depth(self.depth))
        if self.depth == "uint16" and self.output == "pil" and self.mode == "RGB":
            raise UsageError(
                'depth="uint16": output="pil" has no images with three channels of 16 bits; add mode="L", or '
                'output="numpy" or "torch"'
            )
        if self.output == "torch":
            choose_output("torch", self.depth)
        if self.split is not None and not isinstance(self.split, str):
            asked.check_split(self.split)
        for name in self.fields or ():
            if isinstance(name, View):
                raise UsageError("Dataset has no views; use Loader, or resize in the transform")


class Dataset:
    """Samples of a pack by position: `dataset[i]` is `(image, label)`.

    Positions count samples as they are stored in the pack; ask for the field "number" to learn a sample's
    place in the source. Pickles as its arguments alone; every process opens the pack for itself, so fork and
    spawn both work.

    Args:
        pack: the pack's folder, or its address ("s3://...").
        transform: called with the image, as ImageFolder does.
        target_transform: called with the label, or the labels.
        fields: what a sample is made of, in this order; None: image and label (or labels).
        image: an image operation: then only the part that is needed gets decoded. None: whole images.
        flip: mirror left to right; True: half of the samples; a number: that share.
        seed: fixes the draw of each sample per epoch (see `set_epoch`). None: every access draws anew from
            Python's `random`, which a DataLoader seeds in each of its workers.
        split: a part of the samples, as `Loader` takes it: positions then count its samples alone.
        output: images as "pil" (what torchvision's transforms expect), "numpy" (H,W,C) or "torch" (C,H,W).
        mode: "RGB", or "L": images with one channel, as Pillow's `convert("L")` makes it of the colours.
        depth: what becomes of gray of more than 8 bits, as `Loader` takes it; output="pil" has no three
            channels of "uint16", so that mode="L" belongs to it.
        allow_addresses: where files may be that the pack names, as `Loader` takes it.
    """

    @takes(DatasetOptions)
    def __init__(self, options: DatasetOptions) -> None:
        self._options, self.path = options, os.fspath(options.pack)
        self.transform, self.target_transform = options.transform, options.target_transform
        self._members: object = None  # what tells the split from one that has its name later
        self._epoch = 0
        self._opened: _Opened | None = None
        opened = self._open()
        if options.split is None and (parts := find_parts(opened.pack)):
            tell_parts(opened.pack.name, parts)

    def _open(self) -> _Opened:
        if self._opened is None or self._opened.process != os.getpid():
            opened = _Opened(self._options)
            if self._members is not None and opened.subset.identity() != self._members:
                raise UsageError(
                    f"the split {self._options.split!r} of {self.path} was made anew since this dataset was "
                    "opened",
                    hint="make the dataset again",
                )
            self._opened, self._members = opened, opened.subset.identity()
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __len__(self) -> int:
        return len(self._open().subset)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples; a DataLoader fetches its batches through this.

        Raises:
            BadSample: one of them is damaged.
            StorageError: the storage cannot be read, which is no fault of one sample.
        """
        opened = self._open()
        positions = opened.subset.positions(np.array([self._position(i) for i in indices], np.int64))
        columns = opened.read(positions, self._epoch)
        columns = [self._hand_out(w, c) for w, c in zip(opened.wanted, columns, strict=True)]
        samples = list(zip(*columns, strict=True))
        return samples if len(opened.wanted) > 1 else [sample[0] for sample in samples]

    def _position(self, index: int) -> int:
        position, n = operator.index(index), len(self)
        if not -n <= position < n:
            split = self._options.split
            whole = "pack" if split is None else f"split {split!r}"
            raise IndexError(f"sample {position} of a {whole} that has {n}")
        return position % n

    def _hand_out(self, wanted: Wanted, column: Sequence[Any]) -> list[Any]:
        if wanted.field is not None and wanted.field.has_pixels:
            pictures = [self._convert(pixels, wanted.field) for pixels in column]
            is_image = wanted.field.kind is Kind.IMAGE
            return [self.transform(p) for p in pictures] if self.transform and is_image else pictures
        if wanted.name == self._open().label_name and self.target_transform is not None:
            return [self.target_transform(value) for value in column]
        return list(column)

    def _convert(self, pixels: U8, field: Field) -> Any:
        if field.kind is Kind.MASK:
            pixels = pixels[..., 0]
        if self._options.output == "pil":
            from PIL import Image

            return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
        if self._options.output == "torch":
            import torch

            tensor = torch.from_numpy(pixels)
            return tensor.permute(2, 0, 1) if field.kind is Kind.IMAGE else tensor
        return pixels

    def set_epoch(self, epoch: int) -> None:
        """With a seed: draw other parts of the images from now on. Workers that already run do not see it."""
        check_whole("epoch", epoch, least=0)
        self._epoch = epoch

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of their labels."""
        return list(asked.find_label(self._open().pack).classes or ())

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[Any]:
        """Labels of all samples, by position: numbers from the index, or arrays; read at each call."""
        opened = self._open()
        return opened.read_labels(members(opened.subset))

    def __repr__(self) -> str:
        return f"Dataset({self.path!r}, {len(self)} samples)"


class _Opened:
    """The part of a dataset that belongs to one process."""

    def __init__(self, options: DatasetOptions) -> None:
        self.process = os.getpid()
        self.pack = pack = open_pack(options.pack, allow_addresses=options.allow_addresses)
        self.subset = find_split(pack, options.split)
        self.image = options.image
        # Unlike in a batch, whole images may differ in size here: any operation stands in for "some size".
        some = Resize(1) if self.image is None else self.image
        self.wanted = asked.resolve_fields(pack, options.fields, some, options.mode, options.depth)
        self.sampler = asked.make_sampler(pack, self.wanted, self.image, options.flip, options.seed or 0)
        self.label_name = "label" if pack.manifest.field("label") else "labels"
        self._draws_anew = self.sampler is not None and self.sampler.is_random and options.seed is None

    def read(self, positions: I64, epoch: int) -> list[Sequence[Any]]:
        """Return one column per field."""
        places = self._find(positions, self.wanted)
        geometry = self._draw(places, epoch)
        return [self._read_column(wanted, places, geometry) for wanted in self.wanted]

    def read_labels(self, positions: I64) -> list[Any]:
        label = asked.find_label(self.pack)
        if label.kind is Kind.NUMBER:
            numbers: list[Any] = self.pack.checked_column(label.name)[positions].tolist()
            return numbers
        wanted = Wanted(label.name, label)
        return list(self._read_column(wanted, self._find(positions, (wanted,)), None))

    def _find(self, positions: I64, wanted: tuple[Wanted, ...]) -> Places:
        rows, statuses = self.pack.rows(positions, [w.name for w in wanted])
        for i in np.flatnonzero(statuses):
            reason = f"its row of the index cannot be used: {explain_status(statuses[i])}"
            raise self.pack.describe_bad(int(positions[i]), wanted[0].name, None, reason)
        return Places(self.pack, rows, positions)

    def _draw(self, places: Places, epoch: int) -> Geometry | None:
        if self.sampler is None:
            return None
        seed = random.getrandbits(63) if self._draws_anew else self.sampler.seed
        geometry = replace(self.sampler, seed=seed).draw(epoch, places.rows, None)
        for i, reason in geometry.refused.items():
            raise places.describe_bad(i, self.sampler.reference.name, reason)
        return geometry

    def _read_column(self, wanted: Wanted, places: Places, geometry: Geometry | None) -> Sequence[Any]:
        kind = None if wanted.field is None else wanted.field.kind
        if kind in (Kind.IMAGE, Kind.MASK):
            assert geometry is not None
            assert wanted.field is not None
            geometry = replace(geometry, depth=wanted.depth)
            return self._decode(wanted, FieldCrops(places, wanted.field, geometry))
        read = read_values(wanted, places, None)
        for i, reason in read.bad.items():
            raise places.describe_bad(i, wanted.name, reason)
        if kind is Kind.BOXES and self.sampler is not None and geometry is not None:
            self.sampler.move_boxes(read.data, geometry)
        is_number = kind is Kind.NUMBER or wanted.name == "number"
        column: Sequence[Any] = read.data.tolist() if is_number else list(read.data)
        return column

    def _decode(self, wanted: Wanted, crops: FieldCrops) -> list[U8]:
        """Decode the images or masks of some samples, small ones of a size together."""
        pixels: dict[int, U8] = {}
        for (height, width), at in self._find_sizes(wanted, crops).items():
            # One call takes as long as a small image does. A sample has its own memory all the same: whoever
            # keeps one of them must not keep them all.
            is_small = height * width * wanted.channels * wanted.dtype.itemsize <= _TOGETHER_BYTES
            for some in [at] if is_small else [[i] for i in at]:
                part = crops if len(some) == len(crops) else crops.take(np.array(some))
                decoded = self._decode_alike(wanted, part, (height, width))
                pixels.update(zip(some, decoded if len(some) == 1 else map(np.copy, decoded), strict=True))
        return [pixels[i] for i in range(len(crops))]

    def _find_sizes(self, wanted: Wanted, crops: FieldCrops) -> dict[Size, list[int]]:
        """Return which samples come out at each size."""
        assert wanted.out_size is not None
        if self.image is not None:
            return {wanted.out_size: list(range(len(crops)))}
        sizes: dict[Size, list[int]] = {}
        for i, (left, top, right, bottom) in enumerate(crops.boxes.tolist()):
            size = bottom - top, right - left
            if (reason := check_size(crops.places.take([i]), crops.field, size)) is not None:
                raise crops.places.describe_bad(i, wanted.name, reason)
            sizes.setdefault(size, []).append(i)
        return sizes

    def _decode_alike(self, wanted: Wanted, crops: FieldCrops, size: Size) -> U8:
        out = np.empty((len(crops), *size, wanted.channels), wanted.dtype)
        # No pool: a DataLoader's workers are the parallelism here.
        report = decode_crops(decode_pixels, self.image, crops, out, None)
        check_depths(report, crops)
        if report.statuses.any():
            i = int(np.flatnonzero(report.statuses)[0])
            reason = report.reasons.get(i) or explain_status(report.statuses[i])
            raise crops.places.describe_bad(i, wanted.name, reason)
        return out
