# SPDX-License-Identifier: Apache-2.0
"""Datasets as other programs write them, small, and how to look at what a pack has of them."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedrate.format.containers.tfrecord import masked_crc32c
from feedrate.format.fields import Kind
from feedrate.format.pack import Pack
from support.packs import encode_image, make_image


def jpeg(seed: int, width: int = 40, height: int = 32) -> bytes:
    return encode_image(make_image(seed, width, height), quality=90)


def png_mask(seed: int) -> bytes:
    return encode_image((make_image(seed, 40, 32)[:, :, 0] // 64), "PNG")


def write_zip(path: Path, files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_tar(
    path: Path, files: Mapping[str, bytes], mode: Any = "w", format: int = tarfile.PAX_FORMAT
) -> Path:
    with tarfile.open(path, mode, format=format) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


Features = Mapping[str, Sequence[bytes] | Sequence[int] | Sequence[float]]


def dump_example(features: Features, *, packed: bool = True) -> bytes:
    """Return the bytes of a tf.train.Example, written as the protobuf documentation says."""
    entries = b""
    for name, values in features.items():
        if values and isinstance(values[0], bytes):
            inner, number = b"".join(_field(1, value) for value in values), 1
        elif values and isinstance(values[0], float):
            floats = struct.pack(f"<{len(values)}f", *values)
            pieces = [floats[i : i + 4] for i in range(0, len(floats), 4)]
            inner, number = (
                (_field(1, floats) if packed else b"".join(b"\x0d" + piece for piece in pieces)),
                2,
            )
        else:
            varints = [_varint(int(value) & (2**64 - 1)) for value in values]
            inner, number = (
                (_field(1, b"".join(varints)) if packed else b"".join(b"\x08" + v for v in varints)),
                3,
            )
        entries += _field(1, _field(1, name.encode()) + _field(2, _field(number, inner)))
    return _field(1, entries)


def write_tfrecord(path: Path, records: Iterable[bytes]) -> Path:
    with open(path, "wb") as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            file.write(length + struct.pack("<I", masked_crc32c(length)))
            file.write(record + struct.pack("<I", masked_crc32c(record)))
    return path


def read_pack(path: Path) -> dict[str, dict[str, Any]]:
    """Return key -> field -> value of a pack, read around the loader; class labels as their names."""
    opened = Pack(path)
    positions = np.arange(len(opened))
    rows, _ = opened.rows(positions)
    shards, _ = opened.locate(positions)
    samples: dict[str, dict[str, Any]] = {}
    for i, key in enumerate(opened.texts("key", positions)):
        sample = samples[key.decode()] = {}
        for field in opened.manifest.fields:
            if field.kind is Kind.NUMBER:
                value = rows[field.name][i].item()
                sample[field.name] = field.classes[value] if field.classes else value
                continue
            data = (path / opened.manifest.shards[shards[i]].name).read_bytes()
            start = rows[f"{field.name}.offset"][i]
            value = data[start : start + rows[f"{field.name}.length"][i]]
            if field.kind is Kind.ARRAY:
                value = np.load(io.BytesIO(value)).tolist()
            elif field.kind is Kind.JSON:
                value = json.loads(value)
            elif field.kind is Kind.TEXT:
                value = value.decode()
            sample[field.name] = value
    return dict(sorted(samples.items()))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
