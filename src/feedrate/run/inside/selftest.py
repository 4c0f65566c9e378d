# SPDX-License-Identifier: Apache-2.0
"""The pixels of this process's Pillow against the kernel's, on images of a few pixels.

Another libjpeg, or another resize (Pillow-SIMD), may give others: what differs stays Pillow's. It takes some
milliseconds, imports nothing that JPEGs of Pillow do not need, and has to run before Pillow is patched.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from feedrate.arrays import U8
from feedrate.filters import FILTERS
from feedrate.kernel import Recipe, draw, draw_from, scan_clean
from feedrate.kernel.pillow import resizes_as_kernel

_Pairs = Iterator[tuple[U8, Any]]  # pixels of the kernel, image of Pillow
# Down, up, both ways, and so much lower that Pillow 13 begins with the rows.
_SIZES = ((5, 7), (50, 41), (5, 41), (50, 7), (14, 4))
_REACH = (1.3, 2.7, 17.2, 15.9)


class SelfTest(NamedTuple):
    """What has the same pixels, and the order of passes that this Pillow has."""

    subsamplings: frozenset[str]  # as `scan_clean` names them
    modes: frozenset[str]  # that a JPEG may be converted to
    filters: frozenset[int]  # by Pillow's numbers
    horizontal_first: bool


def run() -> SelfTest:
    """Compare Pillow with the kernel. Whatever goes wrong counts as a difference."""
    first = not resizes_as_kernel()
    files = {name: base64.b64decode(text) for name, text in _FILES.items()}
    files["4:4:0"] = _as_440(files["4:2:2"])
    converted = {"RGB": files["gray"], "L": files["4:4:4"]}
    return SelfTest(
        frozenset(name for name, data in files.items() if _agree(_draw_all(name, data))),
        frozenset(mode for mode, data in converted.items() if _agree(_convert(mode, data))),
        frozenset(one for one in FILTERS.values() if _agree(_resize(files["4:4:4"], one, first))),
        first,
    )


def _agree(pairs: _Pairs) -> bool:
    try:
        return all(np.array_equal(ours, _rows(theirs)) for ours, theirs in pairs)
    except Exception:  # of any kind: the images are good ones
        return False


def _draw_all(subsampling: str, data: bytes) -> _Pairs:
    image, scan = _open(data), scan_clean(data)
    if scan is None or scan.sampling != subsampling:
        raise ValueError(f"the kernel takes a JPEG of {subsampling} for {scan}")
    for entries in (b"", scan.entries):
        yield draw(data, entries, Recipe(image.mode, (0, 0, *image.size)), horizontal_first=False), image


def _convert(mode: str, data: bytes) -> _Pairs:
    image = _open(data)
    yield draw(data, b"", Recipe(mode, (0, 0, *image.size)), horizontal_first=False), image.convert(mode)


def _resize(data: bytes, filter_: int, horizontal_first: bool) -> _Pairs:
    for mode in ("RGB", "L"):
        image = _open(data).convert(mode)
        for size in _SIZES:
            for reach in (None, _REACH):
                recipe = Recipe(mode, (0, 0, *image.size), size, filter_, reach)
                ours = draw_from(_rows(image), recipe, horizontal_first=horizontal_first)
                yield ours, image.resize(size, filter_, box=reach)


def _open(data: bytes) -> Any:
    from PIL import JpegImagePlugin

    # Not Image.open: that imports plugins of other formats.
    image = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
    image.load()
    return image


def _rows(image: Any) -> U8:
    pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], -1)


def _as_440(data: bytes) -> bytes:
    """Return a file of 4:2:2 as one of 4:4:0: its MCUs hold the same blocks, and it has as many both ways."""
    at = data.index(b"\xff\xc0") + 5
    height, width, factors = b"\0\x1d", b"\0\x0f", b"\x12"
    return data[:at] + height + width + data[at + 4 : at + 6] + factors + data[at + 7 :]


# By subsampling; that of 4:2:0 has restart markers. Noise and edges, of odd sizes.
_FILES = {
    "4:4:4": """
/9j/2wBDAAYEBQYFBAYGBQYHBwYIChAKCgkJChQODwwQFxQYGBcUFhYaHSUfGhsjHBYWICwgIyYnKSopGR8tMC0oMCUoKSj/2wBDAQcHBwoI
ChMKChMoGhYaKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCj/wAARCAATABUDAREAAhEBAxEB/8QA
FwABAQEBAAAAAAAAAAAAAAAABgcEBf/EACgQAAICAQIGAQQDAAAAAAAAAAECAxEEBSEABhITMVEiBzJBcSNhkf/EABoBAAICAwAAAAAAAAAA
AAAAAAIGAQUEBwj/xAAwEQABAgUCAwYFBQAAAAAAAAABAhEDBAUhMQASQVFxBhMiYYGRBxSh0fAyQrHB8f/aAAwDAQACEQMRAD8A6uZjDN0d
TMbVYwzNR+X5NC9v69Wf1xi1ycECJ3Upm4/GF/Ns2y+il6z3gECWFx+dXIP05h9C9BzZYNSEMZpmkKsAW6Seoev883sPN7MVLp6VQe/m7lv6
6dPfHMItHhU9XzExdWRcdWGdPM7RsfUpA2SsisosLXXQIAA8elrhPqdQSIxEIFha3++fpo4NeizIeTQGHp5256z6BlNq+ndpaIoWWZDZU34O
4Ox2O+4qq3ZKjT4UjAEeIXLPyufd/TlxxoKTAlqGohfiVf6/fqRbhjU+1bJl5S5rhy8nE64ZsaeXHEBLidAFNuOr+Eq4oSBGDK5GxU0uU+FM
dpJkSMCKUklIIKtoDAlgQlTungbhQBLg6rq3K1LtGFxApQQOJSQBtDqI2pJWDvAO4japnVtxXtAlwuZ+XtPz8qPJwsVkIjGBqGKkzyA1KZC7
hSgICoF3+LsQOsAPU+iSocUwI6oe7nESwIGGASPFd18LgDGrTs7Hkezkv8nHm4K4uVd46mJJYJKVLH6WfAxk7mK8gMRA8ArtAFQK/Hbvz+zw
sVuIqIrxH9x+im/j750qKjxJippTFUSCb+pL6AfUmeXKOpLkyPKsKxmIObEfyX7fX3N49ni9+G6lQ6uuWQSEMVMDYqDJc87HjyBylLbuq8lL
wey57tADF8cd7P1az8rY1VeRcLGk5K0KUworTYcc7hB0r1yDuOQo2ALMxoUBdAAUOJnqVK1pSZqfTvibQHciwHkR751x/WI8RM/HS+FEc7JO
0XNzYC5ucm+v/9k=
""",
    "4:2:2": """
/9j/2wBDAAYEBQYFBAYGBQYHBwYIChAKCgkJChQODwwQFxQYGBcUFhYaHSUfGhsjHBYWICwgIyYnKSopGR8tMC0oMCUoKSj/2wBDAQcHBwoI
ChMKChMoGhYaKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCj/wAARCAAPAB0DASEAAhEBAxEB/8QA
FgABAQEAAAAAAAAAAAAAAAAABgcF/8QAKhAAAgEDAgUCBwEAAAAAAAAAAQIDBAUREiEABiIxUUFhBxMUFiMygZH/xAAXAQADAQAAAAAAAAAA
AAAAAAAAAgME/8QAKhEAAQMCBQIFBQAAAAAAAAAAAQIDEQUhAAQSMVFBcQYUFSKBEyQyobH/2gAMAwEAAhEDEQA/ANa5wR1NmWUMJAFJKOQS
V7rjHsc98bdvBTl956O6/TRpIzGVxHGAp7aSSBnGMeo/w44tkPu6k4mAEJm3MXGFLyKkz5lwQy1zYW6k/wB4j4wq50t5ntDVM0DNGihXZs/L
jJyNLHOM5Yb+G7H0FWu+x2+MrLWJQySAOySvgnuM7sDjb37+c8N4bZNVzT4UkqQ2YKRuDxtv3GLFv1JkVVQloWSYsdv3fDWz1wuNuIcfhxqQ
adh1aSSCfP8AcDgVzDNNy3W1F0pmp0qIZgqGcM0ZBYZB04Y4BO/sOJlgt55untCfqkA7SZ3A6difnGN5lByHpQOlKt1cAmFdCbb7Htij009X
z98P46iKmhpbXFTVMtPgCV3nRlTVJr3ACysOk5DAsB+o4gf39cuSLldbXaIKZNVW08jV2ZpOpE6CUCjKnVncjfAJA1M7zaKdVF0vJOlmxK1G
TqOskE2XJ1SNWkqNul8FX8nUqc1Q8opRYaHuV+JJEaUwTAiCTYg+2DIOP//Z
""",
    "4:2:0": """
/9j/2wBDAAYEBQYFBAYGBQYHBwYIChAKCgkJChQODwwQFxQYGBcUFhYaHSUfGhsjHBYWICwgIyYnKSopGR8tMC0oMCUoKSj/2wBDAQcHBwoI
ChMKChMoGhYaKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCj/wAARCAATABUDASIAAhEBAxEB/8QA
GAABAQEBAQAAAAAAAAAAAAAAAAUGBAf/xAAoEAACAgEDAwMEAwAAAAAAAAABAgMRBAAFIQYSMRMiUQcyQXEjYZH/xAAZAQABBQAAAAAAAAAA
AAAAAAAEAQIDBgj/xAAsEQACAAUCBAMJAAAAAAAAAAABAgADBBEhBTESExRBIjJRBhZCYXGBobHw/90ABAAB/9oADAMBAAIRAxEAPwCrmYwz
dnUzG1WMMzUfd+TQvj+viz+tYvYc2WDchDGaZpCrAFu0nuHx/nm+B5vjabBlNu+3ektEULLMhsqb8HkHg8HnkVVc+fbtky9JdVw5eTid8M2N
PLjiAlxOgCm3Hd/CVcUJAjBlcjgqaUu9JXcM1OOY/lQHFzt9/wC2BiKbMfpA85eZPHlUWsv1/Av2xewvH//Qu52zY+5SBslZFZRYWu+gQAB4
+FrTVXYJcLqfp7b8/KjycLFZCIxgbhipM8gNSmQu4UoCAqBefa7EDvADTarSSs5lnVSo18r4cfLeC6J+ZIRqurEuYRlbp4T6b7juOxxH/9Ho
6AYiB4BXpAFQK/Hp35/Z1gPqTPLlHclyZHlWFYzEHNiP3L9vx9zePk6aaK0pj7wU7XzxrB/sWBMpdSd8ngfJ32j/0r3QuFjSdFbFKYUVpsOO
dwg7V75B6jkKOACzMaFAXQAFDTTTVhbTaOoPNnSVZmySVBJPqSRcxnmsmP1EzPxH9x//2Q==
""",
    "gray": """
/9j/2wBDAAYEBQYFBAYGBQYHBwYIChAKCgkJChQODwwQFxQYGBcUFhYaHSUfGhsjHBYWICwgIyYnKSopGR8tMC0oMCUoKSj/wAALCAATABUB
AREA/8QAFwABAQEBAAAAAAAAAAAAAAAABgcEBf/EACgQAAICAQIGAQQDAAAAAAAAAAECAxEEBSEABhITMVEiBzJBcSNhkf/aAAgBAQAAPwDq
5mMM3R1MxtVjDM1H5fk0L2/r1Z/XAvQc2WDUhDGaZpCrAFuknqHr/PN7DzezzO0bH1KQNkrIrKLC110CAAPHpa4z6BlNq+ndpaIoWWZDZU34
O4Ox2O+4qq3n2rZMvKXNcOXk4nXDNjTy44gJcToAptx1fwlXFCQIwZXI2Kmq9oEuFzPy9p+flR5OFishEYwNQxUmeQGpTIXcKUBAVAu/xdiB
1gAryAxEDwCu0AVAr8du/P7PAD6kzy5R1JcmR5VhWMxBzYj+S/b6+5vHs8VXkXCxpOStClMKK02HHO4QdK9cg7jkKNgCzMaFAXQAFDj/2Q==
""",
}
