# SPDX-License-Identifier: Apache-2.0
"""The door to the kernel: what it refuses before a pointer crosses, and the parts that are not images."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate import _native, kernel
from feedrate.kernel import Files, Pool, Ranges, Status


def test_crc32c_of_the_standard_check_string() -> None:
    assert kernel.crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=9000), st.integers(0, 9000))
def test_crc32c_continues_from_a_value(data: bytes, cut: int) -> None:
    assert kernel.crc32c(data[cut:], kernel.crc32c(data[:cut])) == kernel.crc32c(data)


@given(st.binary(max_size=9000), st.integers(0, 2**32 - 1))
def test_crc32c_by_instruction_and_by_table_agree(data: bytes, value: int) -> None:
    array = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
    assert kernel.crc32c(data, value) == _native.crc32c_by_table(array, value)


def test_crc32c_of_every_length_is_that_of_the_table() -> None:
    data = np.random.default_rng(1).integers(0, 256, 70_000, dtype=np.uint8)
    for length in (*range(1400), 3071, 3072, 3073, 65_536, 69_999):  # folded from 512 bytes on
        part = data[length % 7 : length % 7 + length]
        assert kernel.crc32c(part, length) == _native.crc32c_by_table(part, length)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint16)])
def test_crc32c_takes_any_buffer(kind) -> None:
    data = bytes(range(200))
    assert kernel.crc32c(kind(data)) == kernel.crc32c(data)


def test_crc32c_of_many_texts_is_that_of_each() -> None:
    texts = [b"", b"a", b"bc" * 100]
    starts = np.cumsum([0, *map(len, texts)])
    assert kernel.crc32c_texts(b"".join(texts), starts).tolist() == [kernel.crc32c(text) for text in texts]
    with pytest.raises(ValueError, match="starts do not fit what they divide"):
        kernel.crc32c_texts(b"abc", np.array([0, 4]))


def test_crc32c_refuses_a_value_beyond_32_bits() -> None:
    with pytest.raises(ValueError, match="value must be a 32-bit number, got 4294967296"):
        kernel.crc32c(b"", 2**32)


def test_import_leaves_pillow_torch_and_pyarrow_alone() -> None:
    code = "import sys, feedrate.kernel; sys.exit(bool({'PIL', 'torch', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_kernel_is_told_with_what_to_type() -> None:
    code = "import sys; sys.modules['feedrate._native'] = None; import feedrate.kernel"
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "build it with `make build` or `pip install .`" in result.stderr


def test_a_pool_left_open_lets_the_interpreter_exit() -> None:
    code = """
import sys
import numpy as np
from feedrate import kernel
pool, files = kernel.Pool(2), kernel.Files([sys.executable])
ranges = kernel.Ranges(np.zeros(4, np.int32), np.zeros(4, np.int64), np.full(4, 9, np.int64))
assert not kernel.read_ranges(files, ranges, pool)[2].any()
"""
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux does")
def test_a_pool_starts_the_threads_that_its_limit_lets_work_and_no_more() -> None:
    files = Files([sys.executable])
    ranges = Ranges(np.zeros(40, np.int32), np.zeros(40, np.int64), np.full(40, 9, np.int64))
    pool, others = Pool(6), set(os.listdir("/proc/self/task"))
    started = []
    for limit in (1, 4, 2):
        pool.set_limit(limit)
        assert not kernel.read_ranges(files, ranges, pool)[2].any()
        started.append(len(set(os.listdir("/proc/self/task")) - others))
    pool.close()
    assert started == [1, 4, 4]


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux does")
def test_a_pool_that_rests_has_no_threads_and_starts_others_with_the_next_call() -> None:
    files = Files([sys.executable])
    ranges = Ranges(np.zeros(40, np.int32), np.zeros(40, np.int64), np.full(40, 9, np.int64))
    pool, before = Pool(3), set(threading.enumerate())
    for _ in range(2):
        assert not kernel.read_ranges(files, ranges, pool)[2].any()
        pool.map(lambda _: None, range(3))
        used = pool.cpu_seconds()
        pool.rest()
        pool.rest()
        assert set(threading.enumerate()) == before
        assert pool.cpu_seconds() >= used > 0
    others = set(os.listdir("/proc/self/task"))
    kernel.read_ranges(files, ranges, pool)
    assert len(set(os.listdir("/proc/self/task")) - others) == 3
    pool.close()
    pool.rest()
    with pytest.raises(ValueError, match="closed"):
        kernel.read_ranges(files, ranges, pool)


def find_nice_of_threads() -> dict[str, int]:
    """Return each thread's nice value, as Linux writes it."""
    threads = Path("/proc/self/task").iterdir()
    return {path.name: int((path / "stat").read_text().rpartition(")")[2].split()[16]) for path in threads}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives threads a priority of their own")
@pytest.mark.parametrize("nice", [0, 4])
def test_the_threads_of_a_pool_give_way_as_much_as_it_was_told_and_no_others_do(nice: int) -> None:
    files = Files([sys.executable])
    ranges = Ranges(np.zeros(40, np.int32), np.zeros(40, np.int64), np.full(40, 9, np.int64))
    before = find_nice_of_threads()
    own, pool, found = before[str(os.getpid())], Pool(3, nice=nice), []
    wanted = [min(own + nice, 19)] * 3
    for _ in range(1000):  # a call may be over before its last thread has begun
        kernel.read_ranges(files, ranges, pool)
        after = find_nice_of_threads()
        found = [value for name, value in after.items() if name not in before]
        if found == wanted:
            break
    pool.close()
    assert found == wanted
    assert {name: after[name] for name in before if name in after} == before


@pytest.mark.parametrize("limit", [0, -1, 4])
def test_a_limit_of_a_pool_lies_between_one_and_its_threads(limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit must be from 1 to 3, the pool's threads, got {limit}"):
        Pool(3).set_limit(limit)


def test_what_goes_through_pillow_keeps_the_limit_of_its_pool() -> None:
    pool, seen = Pool(3), set()
    pool.set_limit(1)
    pool.map(lambda _: seen.add(threading.get_ident()), range(20))
    assert len(seen) == 1
    pool.set_limit(3)
    together = threading.Barrier(3)
    pool.map(lambda _: together.wait(), range(3))
    pool.close()


def decode(out=None, boxes=None, flips=None, images=None) -> None:
    """Call decode_batch with one argument that is wrong."""
    kernel.decode_batch(
        Files([]),
        images or Ranges(np.zeros(2, np.int32), np.zeros(2, np.int64), np.zeros(2, np.int64)),
        np.zeros((2, 4, 4, 3), np.uint8) if out is None else out,
        boxes=np.zeros((2, 4), np.int32) if boxes is None else boxes,
        flips=np.zeros(2, np.bool_) if flips is None else flips,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"out": np.zeros((2, 4, 4), np.uint8)}, "out must be a uint8 array of shape N x H x W x C"),
        ({"out": np.zeros((2, 4, 4, 3), np.float32)}, "out must be a uint8 array of shape N x H x W x C"),
        ({"out": np.zeros((2, 4, 4, 2), np.uint8)}, "with C 1 or 3, got 2 x 4 x 4 x 2"),
        ({"out": np.zeros((2, 0, 4, 3), np.uint8)}, "got 2 x 0 x 4 x 3"),
        ({"out": np.zeros((2, 4, 8, 3), np.uint8)[:, :, ::2]}, "out must be C-contiguous and writeable"),
        ({"out": np.zeros((3, 4, 4, 3), np.uint8)}, "out has room for 3 images, images has 2 ranges"),
        (
            {"boxes": np.zeros((2, 4), np.int64)},
            r"boxes must be int32 of shape \(2, 4\), got int64 of shape \(2, 4\)",
        ),
        ({"boxes": np.zeros((1, 4), np.int32)}, r"boxes must be int32 of shape \(2, 4\)"),
        ({"boxes": [[0, 0, 1, 1]] * 2}, "got list"),
        ({"flips": np.zeros(2, np.uint8)}, r"flips must be bool of shape \(2,\)"),
        (
            {"images": Ranges(np.zeros(2, np.int32), np.zeros(1, np.int64), np.zeros(2, np.int64))},
            r"offset must be int64 of shape \(2,\)",
        ),
        (
            {"images": Ranges(np.zeros(2, np.int32), *[np.zeros(2, np.int64)] * 2, np.zeros(1, np.uint32))},
            r"crc32c must be uint32 of shape \(2,\)",
        ),
    ],
)
def test_wrong_arrays_are_refused_in_words(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(**wrong)


def test_a_pool_needs_a_thread() -> None:
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        Pool(0)


def test_decode_one_refuses_an_unknown_mode() -> None:
    with pytest.raises(ValueError, match='mode must be "RGB" or "L", got \'CMYK\''):
        kernel.decode_one(b"", mode="CMYK")


def test_decode_one_refuses_an_empty_size() -> None:
    with pytest.raises(ValueError, match="size must be at least 1 x 1, got 0 x 5"):
        kernel.decode_one(b"", size=(0, 5))


@pytest.fixture
def numbers(tmp_path: Path) -> Files:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    (tmp_path / "b").write_bytes(bytes(range(100, 150)))
    return Files([tmp_path / "a", tmp_path / "b"])


def test_ranges_are_read_one_behind_the_other(numbers: Files) -> None:
    ranges = Ranges(
        np.array([1, 0, 0], np.int32), np.array([5, 90, 3], np.int64), np.array([2, 10, 0], np.int64)
    )
    buffer, starts, statuses = kernel.read_ranges(numbers, ranges)
    assert starts.tolist() == [0, 2, 12, 12]
    assert statuses.tolist() == [0, 0, 0]
    assert buffer.tolist() == [105, 106, *range(90, 100)]


def test_a_range_that_is_not_there_leaves_zeros(numbers: Files) -> None:
    ranges = Ranges(np.zeros(2, np.int32), np.array([95, 0], np.int64), np.array([10, 3], np.int64))
    buffer, _, statuses = kernel.read_ranges(numbers, ranges, Pool(2))
    assert statuses.tolist() == [Status.CUT_SHORT, Status.OK]
    assert buffer.tolist() == [0] * 10 + [0, 1, 2]


def test_a_range_with_another_checksum_leaves_zeros(numbers: Files) -> None:
    crc = np.array([kernel.crc32c(bytes([7, 8])), 1], np.uint32)
    ranges = Ranges(np.zeros(2, np.int32), np.array([7, 7], np.int64), np.array([2, 2], np.int64), crc)
    buffer, _, statuses = kernel.read_ranges(numbers, ranges)
    assert statuses.tolist() == [Status.OK, Status.CRC_MISMATCH]
    assert buffer.tolist() == [7, 8, 0, 0]


@pytest.mark.parametrize(("offset", "length"), [(0, -4), (-4, 4), (2**62, 2**62), (2**63 - 1, 2**63 - 1)])
def test_a_range_that_no_file_can_have_takes_no_memory(numbers: Files, offset: int, length: int) -> None:
    offsets, lengths = np.array([offset, offset, 7]), np.array([length, length, 2])
    buffer, starts, statuses = kernel.read_ranges(numbers, Ranges(np.zeros(3, np.int32), offsets, lengths))
    assert statuses.tolist()[2] == Status.OK
    assert statuses.all(where=[True, True, False])
    assert (starts.tolist(), buffer.tolist()) == ([0, 0, 0, 2], [7, 8])


ROW = np.dtype([("offset", "<i8"), ("label", "<i4"), ("crc", "<u4")])


@pytest.fixture
def table(tmp_path: Path) -> Files:
    """Write ten rows as three columns, one behind the other."""
    columns = [b"", b"", b""]
    for i in range(10):
        values = struct.pack("<q", 1000 * i), struct.pack("<i", -i)
        for c, value in enumerate((*values, struct.pack("<I", kernel.crc32c(b"".join(values))))):
            columns[c] += value
    (tmp_path / "table").write_bytes(b"".join(columns))
    return Files([tmp_path / "table"])


def gather(table: Files, rows: list[int]):
    n = len(rows)
    bases = np.tile(np.array([0, 80, 120], np.int64), (n, 1))
    strides = np.array([8, 4, 4], np.int64)
    return kernel.gather_rows(table, np.zeros(n, np.int32), np.array(rows, np.int64), bases, strides, ROW)


def test_rows_are_gathered_in_the_order_asked_for(table: Files) -> None:
    rows, statuses = gather(table, [7, 0, 7])
    assert statuses.tolist() == [0, 0, 0]
    assert rows["offset"].tolist() == [7000, 0, 7000]
    assert rows["label"].tolist() == [-7, 0, -7]


def test_a_row_past_the_end_is_cut_short_and_zeroed(table: Files) -> None:
    rows, statuses = gather(table, [1, 10_000, 2**62])
    assert statuses.tolist() == [Status.OK, Status.CUT_SHORT, Status.UNREADABLE]
    assert rows["offset"].tolist() == [1000, 0, 0]


def test_a_changed_row_is_noticed(table: Files) -> None:
    path = Path(table.paths[0])
    data = bytearray(path.read_bytes())
    data[8 * 3] ^= 1
    path.write_bytes(data)
    _, statuses = gather(table, [2, 3, 4])
    assert statuses.tolist() == [Status.OK, Status.CRC_MISMATCH, Status.OK]


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype("<i8"),
        np.dtype([("a", "<i8")]),
        np.dtype({"names": ["a", "c"], "formats": ["<i4", "<u4"], "offsets": [0, 8]}),
    ],
)
def test_a_table_needs_a_packed_dtype_with_a_checksum(table: Files, dtype: np.dtype) -> None:
    n = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="dtype must"):
        kernel.gather_rows(table, np.zeros(1, np.int32), n, n.reshape(1, 1), n, dtype)


def test_a_pool_that_is_never_idle_says_what_it_took(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
    count = 20_000  # some seconds: the queue is not empty before
    ranges = kernel.Ranges(
        np.zeros(count, np.int32), np.zeros(count, np.int64), np.full(count, 100_000, np.int64),
        np.zeros(count, np.uint32),
    )  # fmt: skip
    boxes, flips = np.zeros((count, 4), np.int32), np.zeros(count, np.bool_)
    pool, files = kernel.Pool(1), kernel.Files([tmp_path / "file"])
    out = np.empty((count, 1, 1, 3), np.uint8)

    def decode() -> None:
        with contextlib.suppress(ValueError):  # it is cancelled
            kernel.decode_batch(files, ranges, out, boxes=boxes, flips=flips, pool=pool)

    busy = threading.Thread(target=decode)
    busy.start()
    while not pool.cpu_seconds() and busy.is_alive():
        pass
    assert busy.is_alive()
    pool.cancel()
    busy.join()
    pool.close()
