# SPDX-License-Identifier: Apache-2.0
"""The self-test of pixels: what it finds in the Pillow that is here, and in one that differs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from PIL import Image, ImageOps

from feedrate.filters import FILTERS
from feedrate.run.inside import selftest
from support.recipes import HORIZONTAL_FIRST

SAMPLINGS = {"gray", "4:4:4", "4:2:2", "4:2:0", "4:4:0"}


def test_this_pillow_has_the_pixels_of_the_kernel() -> None:
    found = selftest.run()
    assert found == (SAMPLINGS, {"RGB", "L"}, set(FILTERS.values()), HORIZONTAL_FIRST)


@pytest.mark.skipif(HORIZONTAL_FIRST, reason="this Pillow has one order of passes")
def test_another_order_of_passes_is_seen_with_every_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "resizes_as_kernel", lambda: False)
    assert selftest.run().filters == {FILTERS["nearest"]}


def test_a_subsampling_that_is_decoded_otherwise_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = selftest._open
    data = [selftest.base64.b64decode(selftest._FILES[name]) for name in ("4:2:0", "4:2:2")]

    def open_otherwise(file: bytes) -> Any:
        if file == data[1]:
            raise OSError("broken data stream when reading image file")
        return ImageOps.invert(opened(file)) if file == data[0] else opened(file)

    monkeypatch.setattr(selftest, "_open", open_otherwise)
    assert selftest.run().subsamplings == SAMPLINGS - {"4:2:0", "4:2:2"}


def test_a_conversion_that_differs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    convert = Image.Image.convert

    def convert_otherwise(image: Image.Image, mode: str) -> Image.Image:
        return ImageOps.invert(convert(image, mode)) if mode == "L" else convert(image, mode)

    monkeypatch.setattr(Image.Image, "convert", convert_otherwise)
    found = selftest.run()
    assert found.modes == {"RGB"}
    assert found.filters == set(FILTERS.values())


def test_a_resize_that_differs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    resize = Image.Image.resize

    def resize_otherwise(image: Image.Image, size: Any, filter_: int, **options: Any) -> Image.Image:
        return resize(image, size, FILTERS["box"] if filter_ == FILTERS["hamming"] else filter_, **options)

    monkeypatch.setattr(Image.Image, "resize", resize_otherwise)
    assert selftest.run().filters == set(FILTERS.values()) - {FILTERS["hamming"]}


def test_no_plugin_of_another_format_is_imported() -> None:
    code = (
        "import sys, PIL.Image; from feedrate.run.inside import selftest; selftest.run(); "
        "print(*sorted(name for name in sys.modules if name.startswith('PIL.') and 'Plugin' in name))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["PIL.JpegImagePlugin"]
