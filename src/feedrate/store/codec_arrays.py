# SPDX-License-Identifier: Apache-2.0
"""The part of the codec for numpy arrays and scalars, torch tensors and Pillow's images.

torch and Pillow are never imported for writing: a value of theirs means that they are there.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feedrate.kernel import U8
from feedrate.store.codec import Damaged, Reader, Refused, Writer, encode, say_type

_IN_ORDER = bytes(range(64))  # more axes than numpy and torch have
_PLAIN_DTYPE = re.compile(r"[<>|=][biufcmMSUV][0-9]+(\[[0-9A-Za-z]+\])?")
# Bytes per pixel of the modes of Pillow that are taken, beside "1": eight pixels to a byte there.
_PICTURE_BYTES = {
    "L": 1, "P": 1, "LA": 2, "La": 2, "PA": 2, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2, "RGB": 3,
    "YCbCr": 3, "LAB": 3, "HSV": 3, "RGBA": 4, "RGBa": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4,
}  # fmt: skip


def find_writer(value: Any) -> Callable[[Writer, Any, int], None] | None:
    """Return what writes a value of numpy, torch or Pillow; None: it is of none of them."""
    kind = type(value)
    if kind in (np.ndarray, np.memmap):
        return _write_array
    if isinstance(value, np.generic):
        return _write_scalar
    torch = sys.modules.get("torch")
    if torch is not None:
        if kind is torch.Tensor:
            return _write_tensor
        if kind is torch.Size:
            return _write_torch_size
    pillow = sys.modules.get("PIL.Image")
    return _write_picture if pillow is not None and isinstance(value, pillow.Image) else None


def read(reader: Reader, depth: int) -> Any:
    letter = reader.take(1)
    if letter not in _READERS:
        raise Damaged(f"it holds an array of an unknown kind: {letter!r}")
    return _READERS[letter](reader, depth)


def _write_array(writer: Writer, array: Any, depth: int) -> None:
    writer.structure += b"Aa"
    writer.add(_describe_dtype(array.dtype), depth + 1)
    order = _memory_order(array.shape, array.strides)
    if array.flags.c_contiguous or not array.transpose(order).flags.c_contiguous:
        order = tuple(range(array.ndim))
    _write_shape(writer, array.shape, order)
    writer.buffers.append(_as_bytes(np.ascontiguousarray(array.transpose(order))))


def _read_array(reader: Reader, depth: int) -> Any:
    dtype = _find_dtype(reader.value(depth + 1))
    shape, order = _read_shape(reader)
    raw = reader.buffer(math.prod(shape) * dtype.itemsize)
    stored = shape if order is None else [shape[axis] for axis in order]
    array = np.ndarray(stored, dtype, buffer=raw) if raw.size else np.empty(stored, dtype)
    return array if order is None else array.transpose(_inverse(order))


def _write_scalar(writer: Writer, value: np.generic, depth: int) -> None:
    # Of text and bytes, arrays would lose zeros at the end.
    if isinstance(value, np.str_):
        writer.structure += b"Au"
        writer.add(str.__getitem__(value, slice(None)), depth + 1)
        return
    if isinstance(value, np.bytes_):
        writer.structure += b"Av"
        writer.add(bytes(value), depth + 1)
        return
    described = _describe_dtype(value.dtype)
    if value.dtype.type is not type(value):
        raise Refused(f"a {say_type(value)}")
    writer.structure += b"Ag"
    writer.add(described, depth + 1)
    writer.structure += value.tobytes()


def _read_scalar(reader: Reader, depth: int) -> Any:
    dtype = _find_dtype(reader.value(depth + 1))
    # A copy: of a structured scalar, the record would be a view of what was read.
    return np.frombuffer(reader.take(dtype.itemsize), dtype, 1).copy()[0]


def _describe_dtype(dtype: np.dtype[Any]) -> Any:
    """Return a dtype in plain words and lists."""
    is_plain = dtype.names is None and dtype.subdtype is None
    if not dtype.hasobject and dtype.metadata is None:
        described = dtype.str if is_plain else np.lib.format.dtype_to_descr(dtype)
        try:
            if _find_dtype(described) == dtype:
                return described
        except (Damaged, ValueError, TypeError):
            pass
    # Types of other packages look like bytes without meaning here.
    raise Refused(f"an array of dtype {dtype}")


def _find_dtype(described: Any) -> np.dtype[Any]:
    if isinstance(described, str):
        if _PLAIN_DTYPE.fullmatch(described) is None:
            raise Damaged(f"it holds an array of an unknown type: {described!r}")
        return np.dtype(described)
    dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(described)
    if dtype.hasobject:
        raise Damaged("it holds an array of Python objects")
    return dtype


def _write_tensor(writer: Writer, tensor: Any, _: int) -> None:
    torch = sys.modules["torch"]
    reason = _why_not(tensor, torch)
    if reason:
        raise Refused(f"a tensor {reason}")
    tensor = tensor.resolve_conj().resolve_neg()
    order = _memory_order(tensor.shape, tensor.stride())
    if tensor.is_contiguous() or not tensor.permute(order).is_contiguous():
        order = tuple(range(tensor.dim()))
    dense = tensor.permute(order).contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    writer.structure += b"Ax"
    writer.add(name)
    _write_shape(writer, tensor.shape, order)
    writer.buffers.append(dense.reshape(-1).view(torch.uint8).numpy())


def _why_not(tensor: Any, torch: Any) -> str | None:
    if tensor.device.type != "cpu":
        return f"on {tensor.device}; return it on the CPU"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"that is not plain ({'quantised' if tensor.is_quantized else tensor.layout})"
    return "that requires grad; return it detached" if tensor.requires_grad else None


def _read_tensor(reader: Reader, depth: int) -> Any:
    import torch

    name = reader.value(depth + 1)
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise Damaged(f"it holds a tensor of an unknown type: {name!r}")
    shape, order = _read_shape(reader)
    raw = reader.buffer(math.prod(shape) * dtype.itemsize)
    flat = torch.from_numpy(raw).view(dtype)
    if order is None:
        return flat.reshape(shape)
    return flat.reshape([shape[axis] for axis in order]).permute(_inverse(order))


def _write_torch_size(writer: Writer, size: Any, depth: int) -> None:
    writer.structure += b"Az"
    writer.add(tuple(size), depth + 1)


def _read_torch_size(reader: Reader, depth: int) -> Any:
    import torch

    return torch.Size(reader.value(depth + 1))


def _write_picture(writer: Writer, picture: Any, depth: int) -> None:
    """The current frame's pixels, the palette, and of `info` (Exif, profiles) what has an encoding."""
    if picture.mode != "1" and picture.mode not in _PICTURE_BYTES:
        raise Refused(f"a picture of mode {picture.mode}")
    pixels = picture.tobytes()
    palette = None
    if picture.palette is not None and picture.mode in ("P", "PA"):
        palette = (picture.palette.mode, bytes(picture.getpalette(picture.palette.mode) or ()))
    info = {name: value for name, value in picture.info.items() if _is_taken(name) and _is_taken(value)}
    writer.structure += b"Ap"
    writer.add((picture.mode, *picture.size, palette, info, pixels), depth + 1)


def _read_picture(reader: Reader, depth: int) -> Any:
    from PIL import Image

    mode, width, height, palette, info, pixels = reader.value(depth + 1)
    row = -(-width // 8) if mode == "1" else width * _PICTURE_BYTES[mode]
    if min(width, height) < 0 or len(pixels) != row * height:
        raise Damaged(f"a picture of {width} x {height} pixels does not have {len(pixels)} bytes")
    picture = Image.frombytes(mode, (width, height), pixels)
    if palette is not None:
        picture.putpalette(palette[1], palette[0])
    picture.info.update(info)
    return picture


def _is_taken(value: Any) -> bool:
    try:
        encode(value)
    except Refused:
        return False
    return True


def _write_shape(writer: Writer, shape: Sequence[int], order: Sequence[int]) -> None:
    """`order`: the axes from the one with the longest strides on, so that memory is kept as it was."""
    writer.structure.append(len(shape))
    writer.structure += bytes(order)
    for side in shape:
        writer.add_number(side)


def _read_shape(reader: Reader) -> tuple[Sequence[int], bytes | None]:
    """Return the shape, and the order of the axes in memory; None: as they are counted."""
    axes = reader.take(1)[0]
    order = reader.take(axes)
    shape: tuple[int, ...] = struct.unpack(f"<{axes}Q", reader.take(8 * axes))
    if order == _IN_ORDER[:axes]:
        return shape, None
    if bytes(sorted(order)) != _IN_ORDER[:axes]:
        raise Damaged("it holds an array whose axes make no sense")
    return shape, order


def _memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    # The stride of an axis of one place means nothing.
    return tuple(sorted(range(len(shape)), key=lambda axis: -strides[axis] if shape[axis] > 1 else -math.inf))


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda place: order[place])


def _as_bytes(array: Any) -> U8:
    if not array.size or not array.dtype.itemsize:
        return np.empty(0, np.uint8)
    raw: U8 = array.reshape(-1).view(np.uint8)
    return raw


_READERS: dict[bytes, Callable[[Reader, int], Any]] = {
    b"a": _read_array,
    b"g": _read_scalar,
    b"u": lambda reader, depth: np.str_(reader.value(depth + 1)),
    b"v": lambda reader, depth: np.bytes_(reader.value(depth + 1)),
    b"x": _read_tensor,
    b"z": _read_torch_size,
    b"p": _read_picture,
}
