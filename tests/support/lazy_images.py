# SPDX-License-Identifier: Apache-2.0
"""Pillow with images that stay recipes, for the length of a block; it is as it was behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image, ImageFile

from feedrate.run.inside import counters, images, selftest, switch
from feedrate.run.inside.pending import Pending, find_pending

_SAME = selftest.run()
PATCHED = ("_im", "im", "convert", "crop", "resize", "transpose", "copy", "__copy__", "tobytes", "load")


class MemoryCache:
    """Values by length and checksum, in this process's memory."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, int], bytes] = {}

    def find(self, length: int, crc: int) -> bytes | None:
        return self.values.get((length, crc))

    def add(self, length: int, crc: int, value: bytes) -> None:
        self.values[length, crc] = value


@contextlib.contextmanager
def lazy_pillow(cache: Any = None, same: selftest.SelfTest = _SAME) -> Iterator[None]:
    """Patch Pillow and let JPEGs be pending, until the block ends."""
    owners = (Image.Image, ImageFile.ImageFile)
    before = [(owner, name, vars(owner).get(name)) for owner in owners for name in PATCHED]
    opener = Image.OPEN["JPEG"]
    assert images.install(same, cache) == ""
    switch.here.is_on = True
    try:
        yield
    finally:
        switch.here.is_on = False
        images.patches.clear()
        Image.OPEN["JPEG"] = opener
        for owner, name, value in before:
            if value is not None:
                setattr(owner, name, value)
            elif name in vars(owner):
                delattr(owner, name)


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> Iterator[counters.Counters]:
    """Pillow with pending images, and what is counted meanwhile."""
    mine = counters.Counters(bytearray(4096))
    monkeypatch.setattr(counters.here, "current", mine)
    with lazy_pillow():
        yield mine


def pending_of(image: Any) -> Pending | None:
    return find_pending(image)


def counted(mine: counters.Counters) -> dict[str, float]:
    """Return the numbers that are not zero, without times."""
    return {name: value for name, value in mine.as_dict().items() if value and not name.endswith("_ns")}
