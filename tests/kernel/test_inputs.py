# SPDX-License-Identifier: Apache-2.0
"""Image files of one call (`kernel.Inputs`): whose bytes are used, and which are read."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from feedrate import kernel
from support.packs import encode_image, make_noise

JPEG = encode_image(make_noise(1, 96, 70))


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_bytes_that_nobody_may_write_to_are_used_in_place() -> None:
    entries = kernel.scan(JPEG).entries
    inputs = kernel.Inputs([JPEG, memoryview(JPEG)[2:]], [entries, None])
    where = address(np.frombuffer(JPEG, np.uint8))
    assert [address(inputs[0][0]), address(inputs[1][0])] == [where, where + 2]
    assert address(inputs[0][1]) == address(np.frombuffer(entries, np.uint8))
    assert len(inputs[1][1]) == 0


def test_bytes_that_may_change_are_copied() -> None:
    data = bytearray(JPEG)
    inputs = kernel.Inputs([data, memoryview(data), memoryview(JPEG)[::2]])
    data[:] = bytes(len(data))
    assert [inputs[i][0].tobytes() for i in range(3)] == [JPEG, JPEG, JPEG[::2]]


def test_the_bytes_outlive_the_lists_and_the_inputs_that_held_them() -> None:
    images = [bytes(bytearray(JPEG)) for _ in range(3)]
    inputs = kernel.Inputs(images)
    images.clear()
    file, _ = inputs[1]
    del inputs
    assert file.tobytes() == JPEG


def test_files_are_measured_and_faults_told_by_errno(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(JPEG)
    (tmp_path / "b.jpg").write_text("no pixels")
    images = [tmp_path / "a.jpg", str(tmp_path / "b.jpg"), JPEG, tmp_path, tmp_path / "gone.jpg", "a\0b", b""]
    sizes, errors = kernel.Inputs(images).measure(np.arange(7), kernel.Pool(2))
    assert sizes.tolist() == [[96, 70], [0, 0], [96, 70], *[[0, 0]] * 4]
    assert errors.tolist() == [0, 0, 0, errno.EISDIR, errno.ENOENT, errno.EINVAL, 0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 300_000])
def test_what_tells_no_size_is_read_to_its_end(tmp_path: Path, size: int) -> None:
    pipe, data = tmp_path / "pipe", os.urandom(size)
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    inputs = kernel.Inputs([pipe])
    inputs.measure(np.zeros(1, np.int64))
    writer.join()
    assert inputs[0][0].tobytes() == data


def test_numbers_that_no_image_has_are_refused() -> None:
    for number in (-1, 1):
        with pytest.raises(ValueError, match="there is no such image"):
            kernel.Inputs([JPEG]).measure(np.array([number]))


def test_entry_points_that_are_not_one_per_image_are_refused() -> None:
    with pytest.raises(ValueError, match="images and entries differ in length"):
        kernel.Inputs([JPEG, JPEG], [b""])
