# SPDX-License-Identifier: Apache-2.0
"""Write small packs straight with `format`, so that tests of the loader do not need the pack command."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from feedrate import kernel
from feedrate.format import index, manifest
from feedrate.format.containers.tar import Tar
from feedrate.format.fields import Field, Kind, row_dtype

IMAGE = Field("image", Kind.IMAGE)
LABEL = Field("label", Kind.NUMBER, dtype="int64", classes=("cat", "dog", "emu"))


def make_image(seed: int, width: int, height: int) -> np.ndarray:
    """Return smooth colours that differ from seed to seed: JPEG keeps them within a few levels."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encode_image(pixels: np.ndarray, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def encode_array(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def write_pack(
    folder: Path, fields: Sequence[Field], samples: Sequence[Mapping[str, Any]], *, shards: int = 2
) -> Path:
    """Write samples (field -> bytes, or a number) to a pack whose shards are the bytes end to end."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = list(range(len(samples)))
    pieces = [numbers[i * len(numbers) // shards : (i + 1) * len(numbers) // shards] for i in range(shards)]
    written = tuple(_write_shard(folder, i, fields, piece, samples) for i, piece in enumerate(pieces))
    (folder / "pack.json").write_bytes(manifest.dump_manifest(manifest.Manifest(tuple(fields), written, {})))
    return folder


def make_index(name: str, size_bytes: int, crc32c: int, columns: Mapping[str, Any]) -> manifest.IndexPart:
    return manifest.IndexPart(name=name, size_bytes=size_bytes, crc32c=crc32c, columns=columns)


def make_shard(
    name: str, size_bytes: int, crc32c: int, samples: int, index_part: manifest.IndexPart
) -> manifest.Shard:
    return manifest.Shard(name=name, size_bytes=size_bytes, crc32c=crc32c, samples=samples, index=index_part)


def _write_shard(
    folder: Path,
    shard: int,
    fields: Sequence[Field],
    numbers: Sequence[int],
    samples: Sequence[Mapping[str, Any]],
) -> manifest.Shard:
    rows = np.zeros(len(numbers), row_dtype(fields))
    rows["number"] = numbers
    variable: dict[str, list[bytes]] = {"key": [b"sample-%05d" % n for n in numbers]}
    for field in fields:
        variable |= {column: [] for column in field.variable_columns()}
    content = bytearray()
    for row, number in zip(rows, numbers, strict=True):
        for field in fields:
            _add_value(row, variable, content, field, samples[number][field.name], number)
    index.fill_derived(rows, variable)
    part = index.dump_part(fields, index.Part(rows, variable, {}))
    name, index_name = Tar().shard_name(shard), manifest.index_name(shard)
    (folder / name).write_bytes(content)
    (folder / index_name).write_bytes(part)
    index_part = make_index(index_name, len(part), kernel.crc32c(part), index.locate_columns(part))
    return make_shard(name, len(content), kernel.crc32c(bytes(content)), len(numbers), index_part)


def _add_value(
    row: Any, variable: dict[str, list[bytes]], content: bytearray, field: Field, value: Any, number: int
) -> None:
    name = field.name
    if field.kind is Kind.NUMBER:
        row[name] = value
        return
    row[f"{name}.offset"], row[f"{name}.length"] = len(content), len(value)
    row[f"{name}.crc32c"] = kernel.crc32c(value)
    content += value
    variable[f"{name}.path"].append(b"source/%05d.%s" % (number, name.encode()))
    if field.has_pixels:
        with Image.open(io.BytesIO(value)) as image:
            row[f"{name}.width"], row[f"{name}.height"] = image.size
    if field.kind is Kind.IMAGE:
        variable[f"{name}.entries"].append(kernel.scan(value).entries)


def write_images(folder: Path, count: int = 20, side: int | None = 16, **options: Any) -> Path:
    """Write `count` images with labels 0, 1, 2, 0 ...; `side` x `side`, or of many sizes when it is None."""
    field = Field("image", Kind.IMAGE, shape=None if side is None else (side, side))
    samples = []
    for i in range(count):
        width, height = (side, side) if side else (24 + 7 * i % 40, 20 + 11 * i % 30)
        samples.append({"image": encode_image(make_image(i, width, height), quality=90), "label": i % 3})
    return write_pack(folder, (field, LABEL), samples, **options)


def make_noise(seed: int, width: int, height: int) -> np.ndarray:
    """Return an image that takes many bytes as a JPEG, so that it has several entry points."""
    noise = np.random.default_rng(seed).integers(-40, 40, (height, width, 3))
    return np.clip(make_image(seed, width, height).astype(int) + noise, 0, 255).astype(np.uint8)


_MIXED: list[tuple[str, dict[str, Any]]] = [
    ("JPEG", {"subsampling": "4:2:0"}), ("JPEG", {"subsampling": "4:4:4", "optimize": True}),
    ("JPEG", {"subsampling": "4:2:2", "restart_marker_blocks": 5}), ("JPEG", {}),
    ("JPEG", {"progressive": True}), ("PNG", {}),
]  # fmt: skip


def encode_mixed(seed: int) -> bytes:
    """Return an image file: of six in a row, JPEGs of three samplings, gray, progressive, and a PNG."""
    kind, options = _MIXED[seed % len(_MIXED)]
    pixels = make_noise(seed, 70 + 17 * seed % 90, 60 + 29 * seed % 80)
    return encode_image(pixels[..., 0] if seed % len(_MIXED) == 3 else pixels, kind, **options)


def write_mixed(folder: Path, count: int) -> Path:
    """Write images of many sizes and kinds (`encode_mixed`), with labels."""
    return write_pack(
        folder, (IMAGE, LABEL), [{"image": encode_mixed(i), "label": i % 3} for i in range(count)]
    )


def write_multi_label(folder: Path, count: int = 8, side: int = 16) -> Path:
    """Write images of which each may have several of three classes: the bits of its number."""
    fields = (
        Field("image", Kind.IMAGE, shape=(side, side)),
        Field("labels", Kind.ARRAY, dtype="uint8", shape=(3,), classes=("cat", "dog", "emu")),
    )
    samples = [
        {
            "image": encode_image(make_image(i, side, side)),
            "labels": encode_array(np.array([i & 1, i >> 1 & 1, i >> 2 & 1], np.uint8)),
        }
        for i in range(count)
    ]
    return write_pack(folder, fields, samples)


def write_numbers(folder: Path, count: int, **options: Any) -> Path:
    """Write a pack with no file content at all: labels only. Cheap, for tests of order and state."""
    return write_pack(folder, (LABEL,), [{"label": i % 3} for i in range(count)], **options)


def write_everything(folder: Path, count: int = 12) -> Path:
    """Write a pack with a field of every kind."""
    fields = (
        Field("image", Kind.IMAGE), Field("small", Kind.IMAGE), Field("mask", Kind.MASK), LABEL,
        Field("weight", Kind.NUMBER, dtype="float64"), Field("points", Kind.ARRAY, dtype="float32", shape=(2,
        3)), Field("ragged", Kind.ARRAY), Field("caption", Kind.TEXT), Field("meta", Kind.JSON), Field("blob",
        Kind.BYTES), Field("boxes", Kind.BOXES),
    )  # fmt: skip
    return write_pack(folder, fields, [_everything(i) for i in range(count)])


def _everything(i: int) -> dict[str, Any]:
    width, height = 40 + 2 * i, 32 + 4 * i
    pixels = make_image(i, width, height)
    mask = (np.add.outer(np.arange(height), np.arange(width)) // 5 % 7).astype(np.uint8)
    boxes = np.array([[2, 3, 20, 15, 7], [30, 20, 39, 31, 8], [0, 0, 1, 1, 9]], np.float32)[: 1 + i % 3]
    return {
        "image": encode_image(pixels, quality=95), "small": encode_image(pixels[::2, ::2], quality=95),
        "mask": encode_image(mask, "PNG"), "label": i % 3, "weight": i / 4,
        "points": encode_array(np.full((2, 3), i, np.float32)), "ragged": encode_array(np.arange(i % 3 + 1)),
        "caption": f"image číslo {i}".encode(), "meta": json.dumps({"i": i}).encode(), "blob": bytes([i]) * i,
        "boxes": encode_array(boxes),
    }  # fmt: skip
