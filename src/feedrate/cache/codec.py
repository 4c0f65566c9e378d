# SPDX-License-Identifier: Apache-2.0
"""What a dataset returns, as bytes and back: types are kept, nothing is pickled, arrays are not copied.

    "FRs2"  u32 length of the structure  the structure  buffers, each at a multiple of 64 bytes

The structure is JSON. What JSON has no word for is an object with one member, whose name is the kind;
contents of arrays, tensors and byte strings are the buffers, in the order in which the structure names them.
Bytes from strangers end in `Damaged`. torch and Pillow are never imported for writing: a value of theirs
means that they are there.
"""

from __future__ import annotations

import json
import math
import re
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feedrate.kernel import U8

MAGIC = b"FRs2"
ALIGNED_BYTES = 64
MOST_LEVELS = 64
_HEAD = struct.Struct("<4sI")
_F64 = struct.Struct("<d")
_KEY_TYPES = (str, int, bool, float, type(None), bytes, complex, tuple, np.generic)


class Refused(Exception):
    """A value that has no encoding: `what` it is, and where in the sample it stands."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path = ""


class Damaged(Exception):
    """Bytes that are no encoded sample, or one of something that this process does not know."""


def encode(value: Any) -> U8:
    """Return a value as bytes.

    Raises:
        Refused: there is something in it that has no encoding.
    """
    writer = _Writer()
    plain = writer.write(value)
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(text) >= 1 << 32:
        raise Refused(f"a structure of {len(text):,} bytes (of text and numbers); the limit is 4 GiB")
    filled = end = _HEAD.size + len(text)
    for buffer in writer.buffers:
        end = align(end) + buffer.size
    out = np.empty(end, np.uint8)
    out[:filled] = np.frombuffer(_HEAD.pack(MAGIC, len(text)) + text, np.uint8)
    for buffer in writer.buffers:
        start = align(filled)
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
    reader = _Reader(memory, end)
    try:
        text = memory[_HEAD.size : end].tobytes().decode("utf-8", "surrogatepass")
        return json.loads(text, object_hook=reader.read)
    except Damaged:
        raise
    except Exception as error:  # whatever JSON, numpy, torch and Pillow say of what makes no sense
        raise Damaged(f"it makes no sense: {error}") from error


def align(offset: int) -> int:
    return -(-offset // ALIGNED_BYTES) * ALIGNED_BYTES


def say_type(value: Any) -> str:
    kind = type(value)
    home = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{home}{kind.__qualname__}"


class _Writer:
    """Makes of a value what JSON can hold, and collects the buffers beside it."""

    def __init__(self) -> None:
        self.buffers: list[U8] = []

    def write(self, value: Any, depth: int = 0) -> Any:
        if depth > MOST_LEVELS:
            raise Refused(f"something nested deeper than {MOST_LEVELS} levels")
        kind = type(value)
        if value is None or kind is str or kind is bool:
            return value
        if kind is int:
            return value if -(1 << 63) <= value < 1 << 63 else {"int": hex(value)}
        if kind is float:
            return value if value == value else {"nan": _F64.pack(value).hex()}  # NaNs keep their bits
        if kind is complex:
            return {"complex": [self.write(value.real), self.write(value.imag)]}
        if kind is bytes or kind is bytearray:
            self.buffers.append(np.frombuffer(value, np.uint8))
            return {kind.__name__: len(value)}
        if kind is list or kind is tuple:
            parts = [self._write_part(part, depth, f"[{number}]") for number, part in enumerate(value)]
            return parts if kind is list else {"tuple": parts}
        if kind is dict:
            pairs = [self._write_pair(key, part, depth) for key, part in value.items()]
            return {"dict": [one for pair in pairs for one in pair]}
        return self._write_other(value, depth)

    def _write_part(self, value: Any, depth: int, place: str) -> Any:
        """Write a part of a container; who is refused inside learns where it stood."""
        try:
            return self.write(value, depth + 1)
        except Refused as error:
            error.path = place + error.path
            raise

    def _write_pair(self, key: Any, value: Any, depth: int) -> tuple[Any, Any]:
        if not isinstance(key, _KEY_TYPES):
            raise Refused(f"a key of type {say_type(key)}")
        place = f"[{key!r}]"
        return self._write_part(key, depth, f"'s key {key!r}"), self._write_part(value, depth, place)

    def _write_other(self, value: Any, depth: int) -> Any:
        """Write a value of numpy, torch or Pillow, or a named tuple."""
        kind, torch, pillow = type(value), sys.modules.get("torch"), sys.modules.get("PIL.Image")
        if kind in (np.ndarray, np.memmap):
            return {"array": [_describe_dtype(value.dtype, self), *self._write_contents(value)]}
        if isinstance(value, np.generic):
            return self._write_scalar(value)
        if torch is not None and kind is torch.Tensor:
            if reason := _why_not(value, torch):
                raise Refused(f"a tensor {reason}")
            name = str(value.dtype).removeprefix("torch.")
            return {"tensor": [name, *self._write_contents(value.resolve_conj().resolve_neg())]}
        if torch is not None and kind is torch.Size:
            return {"size": list(value)}
        if pillow is not None and isinstance(value, pillow.Image):
            return self._write_picture(value, depth)
        if isinstance(value, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
            known_as = (kind.__module__, kind.__qualname__, kind._fields)
            if _find_named(*known_as) is not kind:
                raise Refused(f"a {say_type(value)}, a named tuple that cannot be found by this name")
            pairs = zip(kind._fields, value, strict=True)
            parts = [self._write_part(part, depth, f".{field}") for field, part in pairs]
            return {"named": [*known_as, parts]}
        raise Refused(f"a {say_type(value)}")

    def _write_contents(self, array: Any) -> tuple[list[int], list[int] | None]:
        """Return an array's or tensor's shape, and its axes from the one with the longest strides on, so that
        memory is kept as it was; None: as they are counted."""
        is_tensor = not isinstance(array, np.ndarray)
        transpose = array.permute if is_tensor else array.transpose
        strides, shape = array.stride() if is_tensor else array.strides, list(array.shape)
        # The stride of an axis of one place means nothing.
        order = sorted(range(len(shape)), key=lambda axis: -strides[axis] if shape[axis] > 1 else -math.inf)
        is_moved = order != list(range(len(shape))) and not _is_dense(array) and _is_dense(transpose(order))
        dense = transpose(order) if is_moved else array
        if is_tensor:
            import torch

            raw = dense.contiguous().reshape(-1).view(torch.uint8).numpy()
        elif array.size and array.dtype.itemsize:
            raw = np.ascontiguousarray(dense).reshape(-1).view(np.uint8)
        else:
            raw = np.empty(0, np.uint8)
        self.buffers.append(raw)
        return shape, order if is_moved else None

    def _write_scalar(self, value: np.generic) -> Any:
        # Of text and bytes, arrays would lose zeros at the end.
        if isinstance(value, np.str_):
            return {"np.str": str.__getitem__(value, slice(None))}
        if isinstance(value, np.bytes_):
            return {"np.bytes": bytes(value).hex()}
        described = _describe_dtype(value.dtype, self)
        if value.dtype.type is not type(value):
            raise Refused(f"a {say_type(value)}")
        return {"scalar": [described, value.tobytes().hex()]}

    def _write_picture(self, picture: Any, depth: int) -> Any:
        """The current frame's pixels, the palette, and of `info` (Exif, profiles) what has an encoding."""
        if picture.mode != "1" and picture.mode not in _PICTURE_BYTES:
            raise Refused(f"a picture of mode {picture.mode}")
        palette = None
        if picture.palette is not None and picture.mode in ("P", "PA"):
            palette = [picture.palette.mode, bytes(picture.getpalette(picture.palette.mode) or ())]
        info = {name: value for name, value in picture.info.items() if _is_taken([name, value])}
        parts = [picture.mode, *picture.size, palette, info, picture.tobytes()]
        return {"picture": self.write(parts, depth + 1)}


def _is_dense(array: Any) -> bool:
    dense: bool = array.flags.c_contiguous if isinstance(array, np.ndarray) else array.is_contiguous()
    return dense


def _is_taken(value: Any) -> bool:
    try:
        encode(value)
    except Refused:
        return False
    return True


def _why_not(tensor: Any, torch: Any) -> str | None:
    if tensor.device.type != "cpu":
        return f"on {tensor.device}; return it on the CPU"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"that is not plain ({'quantised' if tensor.is_quantized else tensor.layout})"
    return "that requires grad; return it detached" if tensor.requires_grad else None


class _Reader:
    """Makes values of the objects in a structure; contents are views of the memory that the sample is in."""

    def __init__(self, memory: U8, end: int) -> None:
        self._memory, self._next = memory, align(end)

    def read(self, tagged: dict[str, Any]) -> Any:
        ((kind, content),) = tagged.items()
        make = _READERS.get(kind)
        if make is None:
            raise Damaged(f"it holds something of an unknown kind: {kind!r}")
        return make(self, content)

    def take(self, length: int) -> U8:
        end = self._next + length
        if type(length) is not int or length < 0 or end > len(self._memory):
            raise Damaged("its contents end early")
        part = self._memory[self._next : end]
        self._next = align(end)
        return part

    def read_array(self, content: list[Any]) -> Any:
        described, shape, order = content
        dtype = _find_dtype(described)
        stored = _order_axes(shape, order)
        raw = self.take(math.prod(shape) * dtype.itemsize)
        array = np.ndarray(stored, dtype, buffer=raw) if raw.size else np.empty(stored, dtype)
        return array if order is None else array.transpose(np.argsort(order))

    def read_tensor(self, content: list[Any]) -> Any:
        import torch

        name, shape, order = content
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise Damaged(f"it holds a tensor of an unknown type: {name!r}")
        stored = _order_axes(shape, order)
        flat = torch.from_numpy(self.take(math.prod(shape) * dtype.itemsize)).view(dtype)
        tensor = flat.reshape(stored)
        return tensor if order is None else tensor.permute(np.argsort(order).tolist())


def _order_axes(shape: list[int], order: list[int] | None) -> list[int]:
    """Return a shape as it is in memory."""
    if any(type(side) is not int or side < 0 for side in shape):
        raise Damaged(f"it holds an array of shape {shape}")
    if order is not None and sorted(order) != list(range(len(shape))):
        raise Damaged("it holds an array whose axes make no sense")
    return shape if order is None else [shape[axis] for axis in order]


def _read_scalar(_: _Reader, content: list[Any]) -> Any:
    described, raw = content
    # A copy: of a structured scalar, the record would be a view of what was read.
    return np.frombuffer(bytes.fromhex(raw), _find_dtype(described), 1).copy()[0]


def _read_named(_: _Reader, content: list[Any]) -> Any:
    """A named tuple: its class is looked up by name, among those that are imported already."""
    module, name, fields, values = content
    kind = _find_named(module, name, fields)
    if kind is None or len(values) != len(fields):
        raise Damaged(f"it holds a named tuple that is not known here: {module}.{name}")
    # Not kind(...): a class may do anything when it is called.
    return tuple.__new__(kind, values)


def _find_named(module: str, name: str, fields: Sequence[str]) -> type | None:
    """Return an imported class of named tuples; None: there is none with these fields. Imports nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    is_one = isinstance(found, type) and issubclass(found, tuple)
    return found if is_one and getattr(found, "_fields", None) == tuple(fields) else None


def _read_size(_: _Reader, content: list[int]) -> Any:
    import torch

    return torch.Size(content)


# Bytes per pixel of the modes of Pillow that are taken, beside "1": eight pixels to a byte there.
_PICTURE_BYTES = {
    "L": 1, "P": 1, "LA": 2, "La": 2, "PA": 2, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2, "RGB": 3,
    "YCbCr": 3, "LAB": 3, "HSV": 3, "RGBA": 4, "RGBa": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4,
}  # fmt: skip


def _read_picture(_: _Reader, content: list[Any]) -> Any:
    from PIL import Image

    mode, width, height, palette, info, pixels = content
    row = -(-width // 8) if mode == "1" else width * _PICTURE_BYTES[mode]
    if min(width, height) < 0 or len(pixels) != row * height:
        raise Damaged(f"a picture of {width} x {height} pixels does not have {len(pixels)} bytes")
    picture = Image.frombytes(mode, (width, height), pixels)
    if palette is not None:
        picture.putpalette(palette[1], palette[0])
    picture.info.update(info)
    return picture


_PLAIN_DTYPE = re.compile(r"[<>|=][biufcmMSUV][0-9]+(\[[0-9A-Za-z]+\])?")


def _describe_dtype(dtype: np.dtype[Any], writer: _Writer) -> Any:
    is_plain = dtype.names is None and dtype.subdtype is None
    if not dtype.hasobject and dtype.metadata is None:
        described = dtype.str if is_plain else np.lib.format.dtype_to_descr(dtype)
        try:
            if _find_dtype(described) == dtype:
                return writer.write(described)
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


_READERS: dict[str, Callable[[_Reader, Any], Any]] = {
    "int": lambda _, digits: int(digits, 16),
    "nan": lambda _, raw: _F64.unpack(bytes.fromhex(raw))[0],
    "complex": lambda _, parts: complex(*parts),
    "bytes": lambda reader, length: reader.take(length).tobytes(),
    "bytearray": lambda reader, length: bytearray(reader.take(length).data),
    "tuple": lambda _, parts: tuple(parts),
    "dict": lambda _, parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    "named": _read_named,
    "array": _Reader.read_array,
    "scalar": _read_scalar,
    "np.str": lambda _, text: np.str_(text),
    "np.bytes": lambda _, raw: np.bytes_(bytes.fromhex(raw)),
    "tensor": _Reader.read_tensor,
    "size": _read_size,
    "picture": _read_picture,
}
