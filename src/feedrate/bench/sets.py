# SPDX-License-Identifier: Apache-2.0
"""Images to decode when the user names none: one set for each kind of dataset that people train on."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from feedrate.bench.camera import make_camera_picture
from feedrate.bench.photographs import make_photograph
from feedrate.errors import StorageError, UsageError


def _make_png(number: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    with Image.open(io.BytesIO(make_photograph(number).jpeg)) as image:
        image.save(out, "PNG")
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class MadeSet:
    """`images`: how many, unless the user says otherwise: enough to be typical, few enough to be quick."""

    images: int
    suffix: str
    make: Callable[[int], bytes]
    what: str


SETS = {
    "photographs": MadeSet(100, ".jpg", lambda n: make_photograph(n).jpeg, "0.2-megapixel JPEG"),
    "camera": MadeSet(6, ".jpg", make_camera_picture, "12-megapixel JPEG, 4:2:0"),
    "png": MadeSet(30, ".png", _make_png, "0.2-megapixel PNG"),
}


def write_set(name: str, folder: Path, images: int | None) -> list[str]:
    """Make a set's files in `folder`; return their paths.

    Raises:
        UsageError: there is no such set.
        StorageError: the disk said no.
    """
    if name not in SETS:
        raise UsageError(f"there is no set '{name}'", hint=f"there are: {', '.join(SETS)}")
    made = SETS[name]
    paths = []
    for number in range(made.images if images is None else images):
        path = folder / f"{name}-{number:04d}{made.suffix}"
        try:
            path.write_bytes(made.make(number))
        except OSError as error:
            raise StorageError(
                f"cannot write {path}: {error.strerror}", hint="set TMPDIR to a folder with more room"
            ) from error
        paths.append(str(path))
    return paths
