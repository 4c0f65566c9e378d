# SPDX-License-Identifier: Apache-2.0
"""Samples as bytes and back: the same values, the same types, and nothing but `Damaged` from wrong bytes."""

from __future__ import annotations

import collections
import enum
import math
import struct
import sys
import typing
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from feedrate.cache.codec import ALIGNED_BYTES, MOST_LEVELS, Damaged, Refused, decode, encode
from support.examples import examples

torch = pytest.importorskip("torch", reason="torch is not installed")


class Pair(typing.NamedTuple):
    image: Any
    label: int


class Label(enum.IntEnum):
    CAT = 1


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    *(getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)),
]  # fmt: skip


def there_and_back(value: Any) -> Any:
    return decode(encode(value))


def is_same(a: Any, b: Any) -> bool:
    """Whether two values are equal bit by bit, and of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        return is_same(a.real, b.real) and is_same(a.imag, b.imag)
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and is_same(list(a.values()), list(b.values()))
    if isinstance(a, (list, tuple)) and not isinstance(a, torch.Size):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, torch.Tensor):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        raw = [t.resolve_conj().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        return torch.equal(*raw)
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b


numbers = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**200), 2**200), st.floats(), st.complex_numbers()
)
dtypes = st.one_of(
    arrays.scalar_dtypes(),
    arrays.array_dtypes(),
    arrays.unicode_string_dtypes(max_len=3),
    arrays.byte_string_dtypes(max_len=3),
)
np_arrays = arrays.arrays(dtypes, arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
np_scalars = arrays.scalar_dtypes().flatmap(arrays.from_dtype)


@st.composite
def tensors(draw: Any) -> Any:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    raw = draw(st.binary(min_size=0, max_size=64)) or b"\0"
    count = math.prod(shape) * dtype.itemsize
    data = bytearray((raw * (count // len(raw) + 1))[:count])
    if dtype is torch.bool:
        data = bytearray(byte & 1 for byte in data)
    flat = torch.frombuffer(data, dtype=torch.uint8) if count else torch.empty(0, dtype=torch.uint8)
    tensor = flat.view(dtype).reshape(shape)
    return tensor.permute(draw(st.permutations(range(tensor.dim()))))


leaves = st.one_of(
    numbers, st.text(), st.binary(), st.binary().map(bytearray), np_arrays, np_scalars, tensors()
)
keys = st.one_of(
    st.text(), st.integers(), st.booleans(), st.none(), st.binary(), st.tuples(st.text(), st.integers())
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.builds(Pair, inner, st.integers()),
    ),
    max_leaves=12,
)


@given(values)
@settings(max_examples=examples(150))
def test_a_value_comes_back_as_it_was_with_every_type_kept(value: Any) -> None:
    assert is_same(there_and_back(value), value)


@given(values)
def test_equal_values_have_equal_bytes(value: Any) -> None:
    assert encode(value).tobytes() == encode(there_and_back(value)).tobytes()


@given(st.binary(max_size=200))
def test_bytes_that_are_no_sample_are_damaged_and_nothing_else(data: bytes) -> None:
    with pytest.raises(Damaged):
        decode(np.frombuffer(data, np.uint8))


@given(values, st.data())
@settings(max_examples=examples(150))
def test_a_sample_with_wrong_bytes_is_damaged_or_another_sample(value: Any, data: Any) -> None:
    spoilt = encode(value).copy()
    for _ in range(data.draw(st.integers(1, 4))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    spoilt = spoilt[: data.draw(st.integers(0, len(spoilt)))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy deprecates some names of types that the bytes may spell
            decode(spoilt)
    except Damaged:
        pass


@given(values)
def test_a_sample_that_is_cut_short_is_damaged(value: Any) -> None:
    whole = encode(value)
    for length in {0, 4, 8, len(whole) // 2, len(whole) - 1}:
        with pytest.raises(Damaged):
            decode(whole[:length].copy())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_keep_their_bits(dtype: Any) -> None:
    raw = torch.arange(16 * dtype.itemsize, dtype=torch.uint8) % (2 if dtype is torch.bool else 251)
    tensor = raw.view(dtype).reshape(4, 4)
    assert is_same(there_and_back(tensor), tensor)


def test_arrays_and_tensors_are_views_of_the_memory_that_they_were_read_from() -> None:
    memory = encode({"a": np.arange(1000), "t": torch.arange(1000.0)})
    found = decode(memory)
    assert np.shares_memory(found["a"], memory)
    assert np.shares_memory(found["t"].numpy(), memory)
    assert (found["t"].data_ptr() - memory.ctypes.data) % ALIGNED_BYTES == 0


def test_channels_last_memory_stays_channels_last() -> None:
    image = torch.zeros(1, 3, 4, 5).to(memory_format=torch.channels_last)
    assert there_and_back(image).is_contiguous(memory_format=torch.channels_last)
    assert there_and_back(np.asfortranarray(np.ones((3, 4)))).flags.f_contiguous


@pytest.mark.parametrize(
    "value",
    [
        np.arange(12).reshape(3, 4)[::-1, ::2],
        np.broadcast_to(np.arange(3), (4, 3)),
        torch.arange(3).expand(4, 3),
        torch.arange(12).reshape(3, 4)[:, ::2],
        torch.tensor([1 + 2j]).conj(),
        np.zeros((0, 3)),
        torch.zeros(2, 0),
        np.array("text"),
        np.array([b"a\0", b"bc"]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(2, [("a", "<i4"), ("b", "<f8", (2,))]),
        np.zeros(2, np.dtype({"names": ["a"], "formats": ["u1"], "offsets": [3], "itemsize": 8})),
        np.float32(1.5),
        np.str_("a\0"),
        np.bytes_(b"a\0"),
        np.datetime64("2020-01-01T00:00", "ns"),
        torch.Size([3, 4]),
        "\ud800",
        -0.0,
        (),
        {},
        {1: "a", "1": "b", None: "c", (1, "x"): "d"},
        Pair(torch.ones(2), 3),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_odd_values_come_back(value: Any) -> None:
    assert is_same(there_and_back(value), value)


def test_a_mapped_array_comes_back_as_a_plain_one(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6))
    found = there_and_back(np.load(tmp_path / "a.npy", mmap_mode="r"))
    assert type(found) is np.ndarray
    assert found.tolist() == list(range(6))


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F", "I;16"]
)
def test_pictures_of_every_usual_mode_keep_their_pixels(mode: str) -> None:
    rgb = Image.fromarray(np.random.default_rng(0).integers(0, 256, (7, 13, 3), dtype=np.uint8))
    if mode == "I;16":
        picture = Image.fromarray(np.arange(7 * 13, dtype=np.uint16).reshape(7, 13))
    else:
        picture = rgb.convert("P").convert(mode) if mode == "PA" else rgb.convert(mode)
    found = there_and_back(picture)
    assert (found.mode, found.size, found.tobytes()) == (picture.mode, picture.size, picture.tobytes())
    assert found.convert("RGBA").tobytes() == picture.convert("RGBA").tobytes()


def test_a_picture_from_a_file_keeps_its_exif(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (5, 3), "red").save(tmp_path / "a.jpg", exif=exif)
    with Image.open(tmp_path / "a.jpg") as picture:
        found = there_and_back(picture)
    assert type(found) is Image.Image
    assert found.getexif()[0x0112] == 6


@pytest.mark.parametrize(
    ("value", "words", "path"),
    [
        ({1}, "a set", ""),
        ((0, {"path": Path("x")}), "PosixPath", "[1]['path']"),
        ([Label.CAT], "Label", "[0]"),
        (collections.OrderedDict(a=1), "OrderedDict", ""),
        (np.array([None]), "dtype object", ""),
        (np.zeros(2).view(np.matrix), "matrix", ""),
        (torch.nn.Parameter(torch.ones(1)), "Parameter", ""),
        (torch.ones(2, requires_grad=True), "requires grad", ""),
        (torch.ones(2).to_sparse(), "not plain", ""),
        (torch.ones(2, device="meta"), "on meta", ""),
        (Pair(open, 1), "builtin_function", ".image"),
        (lambda: 0, "function", ""),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_has_no_encoding_is_refused_by_its_type_and_place(value: Any, words: str, path: str) -> None:
    with pytest.raises(Refused) as caught:
        encode(value)
    assert words in caught.value.what
    assert caught.value.path == path


def test_a_list_in_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(Refused, match=f"deeper than {MOST_LEVELS} levels"):
        encode(value)


def test_a_named_tuple_of_a_function_is_refused_and_one_that_is_gone_is_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = collections.namedtuple("local", "a")
    with pytest.raises(Refused, match="cannot be found by this name"):
        encode(local(1))
    data = encode(Pair(1, 2))
    monkeypatch.delattr(sys.modules[__name__], "Pair")
    with pytest.raises(Damaged, match="not known here"):
        decode(data)


def test_bytes_cannot_name_a_module_that_is_not_imported() -> None:
    data = encode(Pair(1, 2)).tobytes()
    name = __name__.encode()
    spoilt = data.replace(name, b"q" * len(name))
    with pytest.raises(Damaged, match="not known here"):
        decode(np.frombuffer(spoilt, np.uint8).copy())


def test_a_tiny_sample_cannot_ask_for_much_memory() -> None:
    picture = encode(Image.new("L", (333333, 5))).tobytes()
    huge = picture.replace(b"333333", b"999999", 1)
    with pytest.raises(Damaged, match="a picture of 999999 x 5 pixels does not have 1666665 bytes"):
        decode(np.frombuffer(huge, np.uint8).copy())
