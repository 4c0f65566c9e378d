# SPDX-License-Identifier: Apache-2.0
"""What images are decoded for, and the decoders that do it: those that people train with, on one thread.

Every decoder does the same job: read, decode, crop, resize, flip.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from feedrate.filters import BILINEAR, FILTERS, Interpolation
from feedrate.kernel import U8
from feedrate.kernel.pillow import Box
from feedrate.lab.decode import IMAGE, Samples, decode_as_torchvision
from feedrate.loader.geometry import CropSampler, Geometry
from feedrate.loader.image import CenterCrop, ImageOp, RandomResizedCrop, Resize

FEEDRATE, PILLOW = "feedrate", "Pillow"


@dataclass(frozen=True, slots=True)
class Job:
    """What images are decoded for.

    Attributes:
        make: the operation, from the output's side and the filter.
        flip: the share of images that are mirrored.
        side, interpolation: in the place of those that the user names.
    """

    what: str
    make: Callable[[int, Interpolation], ImageOp]
    flip: float = 0.0
    side: int | None = None
    interpolation: Interpolation | None = None


# Pillow and the others are given the box that `CenterCrop(resize=)` cuts from the source.
JOBS = {
    "crops": Job("RandomResizedCrop, flips", lambda n, f: RandomResizedCrop(n, interpolation=f), flip=0.5),
    "evaluation": Job(
        "the centre 7/8: Resize(256), CenterCrop(224)",
        lambda n, f: CenterCrop(n, resize=n * 8 // 7, interpolation=f),
    ),
    "clip": Job(
        "RandomResizedCrop(scale=(0.9, 1)), bicubic",
        lambda n, f: RandomResizedCrop(n, scale=(0.9, 1.0), interpolation=f),
        interpolation="bicubic",
    ),
    "whole": Job("Resize of the whole image to a square", lambda n, f: Resize(n, interpolation=f)),
    "diffusion": Job(
        "Resize(512), CenterCrop(512)", lambda n, f: CenterCrop(n, resize=n, interpolation=f), side=512
    ),
}


@dataclass(frozen=True, slots=True)
class Task:
    """The same images, crops and flips for every decoder."""

    name: str
    samples: Samples
    geometry: Geometry
    side: int

    @classmethod
    def draw(cls, name: str, samples: Samples, side: int, interpolation: Interpolation, seed: int) -> Task:
        """Return one of `JOBS`, on these images, with the draws of a loader's first epoch."""
        job = JOBS[name]
        side = job.side or side
        operation = job.make(side, job.interpolation or interpolation)
        geometry = CropSampler(IMAGE, operation, job.flip, seed).draw(0, samples.rows, None)
        return cls(name, samples, geometry, side)

    def make_out(self) -> U8:
        return np.zeros((len(self.samples), self.side, self.side, 3), np.uint8)


@dataclass(frozen=True, slots=True)
class Decoder:
    """`needs`: modules that must be installed. `is_reduced`: gives other pixels where it reduces."""

    name: str
    decode: Callable[[Task, U8], None]
    needs: tuple[str, ...] = ()
    is_reduced: bool = False

    def find_missing(self) -> str | None:
        """Return why it cannot run here, in words."""
        packages = {"cv2": "opencv-python-headless"}
        missing = [packages.get(name, name) for name in self.needs if find_spec(name) is None]
        return f"not installed: pip install {' '.join(missing)}" if missing else None

    def find_useless(self, task: Task) -> str | None:
        """Return why there is nothing to reduce, in words."""
        boxes = task.geometry.boxes
        shorter = np.minimum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])
        is_small = self.is_reduced and np.median(shorter) < 2 * task.side
        return "most crops are too small to be decoded at half size" if is_small else None


@dataclass(frozen=True, slots=True)
class Part:
    """What one image is to become."""

    box: Box
    side: int
    flip: bool
    size: tuple[int, int]  # width, height of the image
    filter: int = BILINEAR

    def needed_size(self) -> tuple[int, int]:
        """Return the smallest width and height of the whole image at which the crop has enough pixels."""
        left, top, right, bottom = self.box
        width, height = self.size
        return (
            min(width, math.ceil(width * self.side / (right - left))),
            min(height, math.ceil(height * self.side / (bottom - top))),
        )

    def scale_box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return the crop in pixels of the whole image at another size."""
        across, down = width / self.size[0], height / self.size[1]
        left, top, right, bottom = self.box
        return left * across, top * down, right * across, bottom * down


def one_by_one(decode: Callable[[bytes, Part], U8]) -> Callable[[Task, U8], None]:
    """Make a decoder of single files into one of tasks."""

    def decode_all(task: Task, out: U8) -> None:
        widths, heights = task.geometry.sides
        for i, box in enumerate(task.geometry.boxes.tolist()):
            size = int(widths[i]), int(heights[i])
            part = Part(tuple(box), task.side, bool(task.geometry.flips[i]), size, task.geometry.filters[0])
            out[i] = decode(task.samples.read(i), part)

    return decode_all


def decode_with_feedrate(task: Task, out: U8) -> None:
    report = task.samples.decode(task.geometry, out)
    for number, reason in report.reasons.items():
        raise ValueError(f"{task.samples.names[number]}: {reason}")


@one_by_one
def decode_with_pillow(file: bytes, part: Part) -> U8:
    return decode_as_torchvision(file, part.box, part.side, part.flip, part.filter)


def decode_with_pillow_reduced(file: bytes, part: Part) -> U8:
    from PIL import Image

    with Image.open(io.BytesIO(file)) as image:
        image.draft("RGB", part.needed_size())
        box = part.scale_box(*image.size)
        picture = image.convert("RGB").resize((part.side, part.side), part.filter, box=box)
    pixels = np.asarray(picture)
    return pixels[:, ::-1] if part.flip else pixels


def decode_with_simplejpeg(file: bytes, part: Part) -> U8:
    import simplejpeg

    return _resize(simplejpeg.decode_jpeg(file), part)


def decode_with_simplejpeg_reduced(file: bytes, part: Part) -> U8:
    import simplejpeg

    width, height = part.needed_size()
    return _resize(simplejpeg.decode_jpeg(file, min_height=height, min_width=width, min_factor=1), part)


def decode_with_opencv(file: bytes, part: Part) -> U8:
    import cv2

    return _swap(_resize(_decode_with_opencv(file, cv2.IMREAD_COLOR), part))


def decode_with_opencv_reduced(file: bytes, part: Part) -> U8:
    import cv2

    left, top, right, bottom = part.box
    factor = min((right - left) // part.side, (bottom - top) // part.side)
    flag = cv2.IMREAD_COLOR
    for least, reduced in (
        (2, cv2.IMREAD_REDUCED_COLOR_2),
        (4, cv2.IMREAD_REDUCED_COLOR_4),
        (8, cv2.IMREAD_REDUCED_COLOR_8),
    ):
        flag = reduced if factor >= least else flag
    return _swap(_resize(_decode_with_opencv(file, flag), part))


def _decode_with_opencv(file: bytes, flag: int) -> U8:
    import cv2

    # As Pillow does, it leaves the orientation alone: a crop box must mean the same to all.
    pixels = cv2.imdecode(np.frombuffer(file, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is None:
        raise ValueError("OpenCV does not decode it")
    return np.asarray(pixels, np.uint8)


def _resize(pixels: Any, part: Part) -> U8:
    import cv2

    height, width = pixels.shape[:2]
    left, top, right, bottom = (round(edge) for edge in part.scale_box(width, height))
    crop = pixels[top : max(bottom, top + 1), left : max(right, left + 1)]
    # OpenCV's other filters look at the same few pixels however much is left out: they do not antialias.
    kinds = {"bicubic": cv2.INTER_CUBIC, "lanczos": cv2.INTER_LANCZOS4, "nearest": cv2.INTER_NEAREST_EXACT}
    kind = {FILTERS[word]: kind for word, kind in kinds.items()}.get(part.filter, cv2.INTER_AREA)
    small = cv2.resize(crop, (part.side, part.side), interpolation=kind)
    return np.asarray(cv2.flip(small, 1) if part.flip else small, np.uint8)


def _swap(pixels: U8) -> U8:
    import cv2

    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


DECODERS = (
    Decoder(FEEDRATE, decode_with_feedrate),
    Decoder(PILLOW, decode_with_pillow),
    Decoder("simplejpeg + OpenCV", one_by_one(decode_with_simplejpeg), ("simplejpeg", "cv2")),
    Decoder("OpenCV", one_by_one(decode_with_opencv), ("cv2",)),
    Decoder("Pillow, reduced", one_by_one(decode_with_pillow_reduced), is_reduced=True),
    Decoder(
        "simplejpeg, reduced", one_by_one(decode_with_simplejpeg_reduced), ("simplejpeg", "cv2"),
        is_reduced=True,
    ),
    Decoder("OpenCV, reduced", one_by_one(decode_with_opencv_reduced), ("cv2",), is_reduced=True),
)  # fmt: skip


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Keep OpenCV from spreading its work: what is compared is CPU time on one thread."""
    if find_spec("cv2") is None:
        yield
        return
    import cv2

    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)
