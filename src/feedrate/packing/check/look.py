# SPDX-License-Identifier: Apache-2.0
"""`feedrate ls PACK --html PAGE`: small pictures of a pack's images, those that are odd first.

What packing found odd is looked up by its path. Some more are drawn at random, and those that are dark, blank
or blurred come before the others.
"""

from __future__ import annotations

import io
import os
from collections import defaultdict
from contextlib import closing

import numpy as np

from feedrate.arrays import F64
from feedrate.draws import pick
from feedrate.errors import FeedrateError
from feedrate.format.fields import Kind
from feedrate.format.pack import Pack
from feedrate.kernel import U8
from feedrate.loader.dataset import Dataset
from feedrate.packing.results import Picture, Quality, Sheet
from feedrate.units import printable

_DRAWN, _SHOWN, _SEED = 200, 60, 0
_MOST_OF_A_KIND = 10
_SIDE_PX, _JPEG_QUALITY = 160, 80
# Of the small picture, in levels of 255: its brightness, its deviation, and its steps from pixel to pixel.
_DARK, _BLANK, _BLURRED = 30, 4, 1.5
LOOKS = ("blank", "dark", "blurred")


def look(path: str | os.PathLike[str], quality: Quality | None) -> Sheet:
    """Make small pictures of images that are odd, and of others for comparison.

    Raises:
        NotFound: there is no pack.
        PackError: its index is damaged.
    """
    with closing(Pack(path)) as pack:
        image = pack.manifest.field("image")
        if image is None or image.kind is not Kind.IMAGE or not len(pack):
            return Sheet((), 0)
        odd = {} if quality is None else _find_odd(pack, quality)
        drawn = [p for p in pick(len(pack), _DRAWN, _SEED).tolist() if p not in odd]
        positions = np.array([*odd, *drawn], np.int64)
        names = [printable(name or key) for name, key in zip(
            pack.texts("image.path", positions), pack.texts("key", positions), strict=True
        )]  # fmt: skip
        label = pack.manifest.field("label")
        classes = () if label is None else label.classes or ()
        numbers = pack.checked_column("label")[positions].tolist() if classes else [-1] * len(positions)
    dataset = Dataset(path, fields=("image",), output="numpy", depth="clip", split="all")
    pictures: list[Picture] = []
    others: dict[str, list[Picture]] = defaultdict(list)
    for position, name, number in zip(positions.tolist(), names, numbers, strict=True):
        data, kind = _draw(dataset, position)
        class_name = classes[number] if 0 <= number < len(classes) else ""
        pictures += [Picture(name, class_name, code, detail, data) for code, detail in odd.get(position, ())]
        if position not in odd:
            others[kind].append(Picture(name, class_name, kind, "", data))
    for kind in LOOKS:
        pictures += others[kind][:_MOST_OF_A_KIND]
    return Sheet((*pictures, *others[""][:_SHOWN]), len(drawn))


def _find_odd(pack: Pack, quality: Quality) -> dict[int, list[tuple[str, str]]]:
    """Return the positions of samples that packing named, each with the codes and details of what is odd."""
    wanted: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for oddity in quality.oddities:
        for one in oddity.examples:
            if one.done != "rejected":
                wanted[one.path].append((oddity.code, one.detail))
    names = map(printable, pack.all_texts("image.path")) if wanted else ()
    return {position: wanted[name] for position, name in enumerate(names) if name in wanted}


def _draw(dataset: Dataset, position: int) -> tuple[bytes, str]:
    """Return a small picture as JPEG, and what it looks like; none where the sample cannot be loaded."""
    from PIL import Image

    try:
        image = Image.fromarray(dataset[position])
    except FeedrateError:
        return b"", ""
    image.thumbnail((_SIDE_PX, _SIDE_PX))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=_JPEG_QUALITY)
    return out.getvalue(), _judge(np.asarray(image))


def _judge(pixels: U8) -> str:
    gray: F64 = pixels.astype(np.float64).mean(axis=-1)
    if gray.mean() < _DARK:
        return "dark"
    if gray.std() < _BLANK:
        return "blank"
    steps = [np.abs(np.diff(gray, axis=axis)).mean() for axis in (0, 1) if gray.shape[axis] > 1]
    return "blurred" if steps and max(steps) < _BLURRED else ""
