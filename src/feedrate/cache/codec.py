# SPDX-License-Identifier: Apache-2.0
"""What a dataset returns, as bytes and back: types are kept, nothing is pickled, arrays are not copied.

    "FRs1"  u32 length of the structure  the structure  buffers, each at a multiple of 64 bytes

The structure is a walk through the value: one letter per thing, with its sizes; contents of arrays, tensors,
pictures and byte strings are the buffers, in the order of the walk. Bytes from strangers end in `Damaged`.
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

MAGIC = b"FRs1"
ALIGNED_BYTES = 64
MOST_LEVELS = 64
_HEAD = struct.Struct("<4sI")
_U64, _I64, _F64, _C128 = struct.Struct("<Q"), struct.Struct("<q"), struct.Struct("<d"), struct.Struct("<dd")
_KEY_TYPES = (str, int, bool, float, type(None), bytes, complex, tuple, np.generic)


class Refused(Exception):
    """A value that has no encoding: `what` it is, and where in the sample it stands."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path = ""


class Damaged(Exception):
    """Bytes that are no encoded sample, or one of something that this process does not know."""


class Writer:
    """The structure so far, and the buffers that follow it."""

    __slots__ = ("buffers", "structure")

    def __init__(self) -> None:
        self.structure = bytearray()
        self.buffers: list[U8] = []

    def add(self, value: Any, depth: int = 0) -> None:
        if depth > MOST_LEVELS:
            raise Refused(f"something nested deeper than {MOST_LEVELS} levels")
        write = _WRITERS.get(type(value)) or _find_writer(value)
        write(self, value, depth)

    def add_number(self, number: int) -> None:
        self.structure += _U64.pack(number)

    def add_inside(self, value: Any, depth: int, place: str) -> None:
        """Add a part of a container; who is refused inside learns where it stood."""
        try:
            self.add(value, depth + 1)
        except Refused as error:
            error.path = place + error.path
            raise


class Reader:
    """Walks through a structure; every step is checked against what is there."""

    __slots__ = ("_at", "_memory", "_next", "_structure")

    def __init__(self, structure: bytes, memory: U8, first: int) -> None:
        self._structure = structure
        self._at = 0
        self._memory = memory
        self._next = first

    def take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._structure):
            raise Damaged("its structure ends early")
        part = self._structure[self._at : end]
        self._at = end
        return part

    def number(self) -> int:
        value: int = _U64.unpack(self.take(8))[0]
        return value

    def buffer(self, length: int) -> U8:
        """Return the next buffer: a view of the memory that the sample is in."""
        end = self._next + length
        if end > len(self._memory):
            raise Damaged("its contents end early")
        part = self._memory[self._next : end]
        self._next = align(end)
        return part

    def value(self, depth: int = 0) -> Any:
        if depth > MOST_LEVELS:
            raise Damaged(f"it is nested deeper than {MOST_LEVELS} levels")
        letter = self.take(1)
        read = _READERS.get(letter)
        if read is None:
            raise Damaged(f"it holds something of an unknown kind: {letter!r}")
        return read(self, depth)

    def check_end(self) -> None:
        if self._at != len(self._structure):
            raise Damaged("its structure goes on after its end")


def encode(value: Any) -> U8:
    """Return a value as bytes.

    Raises:
        Refused: there is something in it that has no encoding.
    """
    writer = Writer()
    writer.add(value)
    length = len(writer.structure)
    if length >= 1 << 32:
        raise Refused(f"a structure of {length:,} bytes (of text and numbers); the limit is 4 GiB")
    starts, end = [], _HEAD.size + length
    for buffer in writer.buffers:
        starts.append(align(end))
        end = starts[-1] + buffer.size
    out = np.zeros(end, np.uint8) if not writer.buffers else np.empty(end, np.uint8)
    out[: _HEAD.size] = np.frombuffer(_HEAD.pack(MAGIC, length), np.uint8)
    filled = _HEAD.size + length
    out[_HEAD.size : filled] = np.frombuffer(writer.structure, np.uint8)
    for start, buffer in zip(starts, writer.buffers, strict=True):
        out[filled:start] = 0  # equal values have equal bytes
        filled = start + buffer.size
        out[start:filled] = buffer
    return out


def decode(memory: U8) -> Any:
    """Return the value; its arrays and tensors are views of `memory`, which should be writable for torch.

    Raises:
        Damaged: these are not the bytes of a sample.
    """
    if len(memory) < _HEAD.size:
        raise Damaged("it is shorter than its head")
    magic, length = _HEAD.unpack(memory[: _HEAD.size].tobytes())
    end = _HEAD.size + length
    if magic != MAGIC or end > len(memory):
        raise Damaged("it does not begin as a sample does")
    reader = Reader(memory[_HEAD.size : end].tobytes(), memory, align(end))
    try:
        value = reader.value()
    except Damaged:
        raise
    except Exception as error:  # whatever numpy, torch and Pillow say of sizes and types that make no sense
        raise Damaged(f"it makes no sense: {error}") from error
    reader.check_end()
    return value


def align(offset: int) -> int:
    return -(-offset // ALIGNED_BYTES) * ALIGNED_BYTES


def say_type(value: Any) -> str:
    kind = type(value)
    home = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{home}{kind.__qualname__}"


def _write_int(writer: Writer, value: int, _: int) -> None:
    if -(1 << 63) <= value < 1 << 63:
        writer.structure += b"i" + _I64.pack(value)
        return
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    writer.structure += b"I" + _U64.pack(len(data)) + data


def _write_str(writer: Writer, value: str, _: int) -> None:
    data = value.encode("utf-8", "surrogatepass")
    writer.structure += b"s" + _U64.pack(len(data)) + data


def _write_bytes(writer: Writer, value: bytes | bytearray, _: int) -> None:
    writer.structure += (b"b" if type(value) is bytes else b"y") + _U64.pack(len(value))
    writer.buffers.append(np.frombuffer(value, np.uint8))


def _write_sequence(writer: Writer, value: list[Any] | tuple[Any, ...], depth: int) -> None:
    writer.structure += (b"l" if type(value) is list else b"t") + _U64.pack(len(value))
    for number, part in enumerate(value):
        writer.add_inside(part, depth, f"[{number}]")


def _write_dict(writer: Writer, value: dict[Any, Any], depth: int) -> None:
    writer.structure += b"d" + _U64.pack(len(value))
    for key, part in value.items():
        if not isinstance(key, _KEY_TYPES):
            raise Refused(f"a key of type {say_type(key)}")
        writer.add_inside(key, depth, f"'s key {key!r}")
        writer.add_inside(part, depth, f"[{key!r}]")


def _write_named(writer: Writer, value: Any, depth: int) -> None:
    """A named tuple: its class is looked up by name, among those that are imported already."""
    kind = type(value)
    if find_named(kind.__module__, kind.__qualname__, kind._fields) is not kind:
        raise Refused(f"a {say_type(value)}, a named tuple that cannot be found by this name")
    writer.structure += b"n"
    for part in (kind.__module__, kind.__qualname__, tuple(kind._fields)):
        writer.add(part, depth + 1)
    writer.add_number(len(value))
    for name, part in zip(kind._fields, value, strict=True):
        writer.add_inside(part, depth, f".{name}")


def find_named(module: str, name: str, fields: tuple[str, ...]) -> type | None:
    """Return an imported class of named tuples; None: there is none with these fields. Imports nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    is_one = isinstance(found, type) and issubclass(found, tuple)
    return found if is_one and getattr(found, "_fields", None) == fields else None


def _read_list(reader: Reader, depth: int) -> list[Any]:
    return [reader.value(depth + 1) for _ in range(reader.number())]


def _read_dict(reader: Reader, depth: int) -> dict[Any, Any]:
    # Keys come before their values.
    return {reader.value(depth + 1): reader.value(depth + 1) for _ in range(reader.number())}


def _read_named(reader: Reader, depth: int) -> Any:
    module, name, fields = (reader.value(depth + 1) for _ in range(3))
    kind = find_named(module, name, fields) if isinstance(module, str) and isinstance(name, str) else None
    values = _read_list(reader, depth)
    if kind is None or len(values) != len(fields):
        raise Damaged(f"it holds a named tuple that is not known here: {module}.{name}")
    # Not kind(...): a class may do anything when it is called.
    return tuple.__new__(kind, values)


_WRITERS: dict[type, Callable[[Writer, Any, int], None]] = {
    type(None): lambda writer, _value, _: writer.structure.extend(b"N"),
    bool: lambda writer, value, _: writer.structure.extend(b"T" if value else b"F"),
    int: _write_int,
    float: lambda writer, value, _: writer.structure.extend(b"f" + _F64.pack(value)),
    complex: lambda writer, value, _: writer.structure.extend(b"c" + _C128.pack(value.real, value.imag)),
    str: _write_str,
    bytes: _write_bytes,
    bytearray: _write_bytes,
    list: _write_sequence,
    tuple: _write_sequence,
    dict: _write_dict,
}


_IN_ORDER = bytes(range(64))  # more axes than numpy and torch have
_PLAIN_DTYPE = re.compile(r"[<>|=][biufcmMSUV][0-9]+(\[[0-9A-Za-z]+\])?")
# Bytes per pixel of the modes of Pillow that are taken, beside "1": eight pixels to a byte there.
_PICTURE_BYTES = {
    "L": 1, "P": 1, "LA": 2, "La": 2, "PA": 2, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2, "RGB": 3,
    "YCbCr": 3, "LAB": 3, "HSV": 3, "RGBA": 4, "RGBa": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4,
}  # fmt: skip


def _find_writer(value: Any) -> Callable[[Writer, Any, int], None]:
    """Return what writes a named tuple, or a value of numpy, torch or Pillow."""
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
    if pillow is not None and isinstance(value, pillow.Image):
        return _write_picture
    if isinstance(value, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        return _write_named
    raise Refused(f"a {say_type(value)}")


def _read_array(reader: Reader, depth: int) -> Any:
    letter = reader.take(1)
    if letter not in _ARRAY_READERS:
        raise Damaged(f"it holds an array of an unknown kind: {letter!r}")
    return _ARRAY_READERS[letter](reader, depth)


def _write_array(writer: Writer, array: Any, depth: int) -> None:
    writer.structure += b"Aa"
    writer.add(_describe_dtype(array.dtype), depth + 1)
    order = _memory_order(array.shape, array.strides)
    if array.flags.c_contiguous or not array.transpose(order).flags.c_contiguous:
        order = tuple(range(array.ndim))
    _write_shape(writer, array.shape, order)
    writer.buffers.append(_as_bytes(np.ascontiguousarray(array.transpose(order))))


def _read_plain_array(reader: Reader, depth: int) -> Any:
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


_ARRAY_READERS: dict[bytes, Callable[[Reader, int], Any]] = {
    b"a": _read_plain_array,
    b"g": _read_scalar,
    b"u": lambda reader, depth: np.str_(reader.value(depth + 1)),
    b"v": lambda reader, depth: np.bytes_(reader.value(depth + 1)),
    b"x": _read_tensor,
    b"z": _read_torch_size,
    b"p": _read_picture,
}

_READERS: dict[bytes, Callable[[Reader, int], Any]] = {
    b"N": lambda _reader, _: None,
    b"T": lambda _reader, _: True,
    b"F": lambda _reader, _: False,
    b"i": lambda reader, _: _I64.unpack(reader.take(8))[0],
    b"I": lambda reader, _: int.from_bytes(reader.take(reader.number()), "little", signed=True),
    b"f": lambda reader, _: _F64.unpack(reader.take(8))[0],
    b"c": lambda reader, _: complex(*_C128.unpack(reader.take(16))),
    b"s": lambda reader, _: reader.take(reader.number()).decode("utf-8", "surrogatepass"),
    b"b": lambda reader, _: reader.buffer(reader.number()).tobytes(),
    b"y": lambda reader, _: bytearray(reader.buffer(reader.number()).data),
    b"l": _read_list,
    b"t": lambda reader, depth: tuple(_read_list(reader, depth)),
    b"d": _read_dict,
    b"n": _read_named,
    b"A": _read_array,
}
