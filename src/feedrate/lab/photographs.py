# SPDX-License-Identifier: Apache-2.0
"""Images to decode when the user names none, which a small network can learn to tell apart.

Photographs have the numbers of ImageNet's: size in pixels, bytes, chroma sampling, quantisation, AC symbols.
Equal seeds give equal bytes (with the same numpy and Pillow).
"""

from __future__ import annotations

import colorsys
import functools
import io
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from feedrate.errors import UsageError
from feedrate.machine.cpu import count_usable_cores

F32 = npt.NDArray[np.float32]

SHAPES = ("disc", "square", "triangle", "cross", "star")
CLASSES = tuple(f"{tone}-{shape}" for tone in ("cold", "warm") for shape in SHAPES)

# Width, height and how often, after 1000 photographs of ImageNet; there the rest has hundreds of sizes.
_SIZES = ((500, 375, 40), (500, 333, 19), (375, 500, 13), (333, 500, 10), (500, 500, 4), (500, 400, 4),
          (640, 480, 8), (400, 300, 3), (320, 240, 2))  # fmt: skip
_TEXTURE_SIDE = 1024  # windows of at most 640 x 500 are cut from it
_GRAY, _444, _422, _420 = "gray", "4:4:4", "4:2:2", "4:2:0"
_SUBSAMPLING = {_GRAY: 0, _444: 0, _422: 1, _420: 2}  # as Pillow numbers them


@dataclass(frozen=True, slots=True)
class Photograph:
    jpeg: bytes
    label: int


def make_photographs(count: int, *, seed: int = 0) -> Iterator[Photograph]:
    """Yield `count` photographs, the classes in turn. Photograph i depends on the seed and on i alone."""
    if count < 1:
        raise UsageError(f"the number of images must be at least 1, got {count}")
    for number in range(count):
        yield make_photograph(number, seed=seed)


def make_photograph(number: int, *, seed: int = 0) -> Photograph:
    rng = np.random.default_rng((seed, number))
    label = number % len(CLASSES)
    width, height = _draw_size(rng)
    sampling = str(rng.choice([_444, _420, _422, _GRAY], p=[0.75, 0.20, 0.01, 0.04]))
    planes = _paint(rng, label, width, height)
    # Files with thinned chroma come from cameras and web pages, which also quantise more coarsely.
    fine = sampling in (_444, _GRAY) and rng.random() < 0.89
    quality = 96 if fine else int(rng.choice([75, 80, 85, 92]))
    return Photograph(_encode(planes, sampling, quality), label)


def write_photographs(folder: Path, count: int, *, seed: int) -> int:
    """Write `count` photographs to `folder`/CLASS/NUMBER.jpg, as people keep them; return their bytes.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)

    def write(number: int) -> int:
        photograph = make_photograph(number, seed=seed)
        path = folder / CLASSES[photograph.label] / f"{number:06d}.jpg"
        return path.write_bytes(photograph.jpeg)

    with ThreadPoolExecutor(count_usable_cores()) as pool:
        try:
            return sum(pool.map(write, range(count)))
        except BaseException:
            # Ctrl-C: what is queued must not be made first.
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _draw_size(rng: np.random.Generator) -> tuple[int, int]:
    weights = np.array([w for _, _, w in _SIZES], float)
    width, height, _ = _SIZES[rng.choice(len(_SIZES), p=weights / weights.sum())]
    # Every third one lost some columns or rows to its photographer.
    if rng.random() < 0.33:
        width -= int(rng.integers(1, 30))
    return width, height


def _paint(rng: np.random.Generator, label: int, width: int, height: int) -> F32:
    """Return height x width x YCbCr: a scene of shapes, under texture of varying strength."""
    scene = np.asarray(draw_scene(rng, label, width, height).convert("YCbCr"), np.float32)
    contrast = 11.5 * math.exp(rng.normal(0, 0.45))
    # Photographs have busy and quiet places: the strength of the texture is itself a slow texture.
    strength = np.exp(0.9 * cut_texture(rng, "slow", width, height)) * contrast
    scene[..., 0] += strength * cut_texture(rng, "rough", width, height)
    for plane in (1, 2):
        scene[..., plane] += 0.16 * strength * cut_texture(rng, "rough", width, height)
    return np.clip(scene, 0, 255, out=scene)


def draw_scene(rng: np.random.Generator, label: int, width: int, height: int) -> Image.Image:
    """Return shapes of a class on a ground, in flat colours."""
    tone, shape = divmod(label, len(SHAPES))
    # Background and objects take their hues around those of their class; the spread makes classes overlap.
    image = Image.new("RGB", (width, height), _draw_colour(rng, 0.55 if tone == 0 else 0.08, 0.06))
    canvas = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(9, 18))):
        stray = rng.random() < 0.15
        kind = int(rng.integers(len(SHAPES))) if stray else shape
        hue = (0.55 if tone == 0 else 0.08) + kind / len(SHAPES)
        centre = rng.uniform(0, 1, 2) * (width, height)
        points = _outline(SHAPES[kind], rng) * rng.uniform(0.05, 0.17) * max(width, height) + centre
        canvas.polygon([(float(x), float(y)) for x, y in points], fill=_draw_colour(rng, hue, 0.035))
    return image


def _draw_colour(rng: np.random.Generator, hue: float, hue_spread: float) -> tuple[int, int, int]:
    saturation, value = rng.uniform(0.3, 0.75), rng.uniform(0.35, 0.85)
    r, g, b = colorsys.hsv_to_rgb((hue + rng.normal(0, hue_spread)) % 1, saturation, value)
    return int(255 * r), int(255 * g), int(255 * b)


def _outline(shape: str, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return the corners of a shape of radius 1 around the origin, turned at random."""
    corners, radii = {
        "disc": (24, (1.0,)),
        "square": (4, (1.0,)),
        "triangle": (3, (1.0,)),
        "cross": (12, (1.0, 0.42, 1.0)),
        "star": (10, (1.0, 0.45)),
    }[shape]
    angles = 2 * math.pi * (np.arange(corners) / corners + rng.random())
    radius = np.resize(np.array(radii), corners)
    return np.stack([radius * np.cos(angles), radius * np.sin(angles)], axis=1)


@functools.cache
def _texture(kind: str) -> F32:
    """Return a square of noise with deviation 1 whose amplitude falls as a power of the frequency."""
    power, cutoff = {"rough": (1.15, 1.0), "slow": (1.6, 0.02)}[kind]
    rng = np.random.default_rng(len(kind))
    spectrum = np.fft.rfft2(rng.standard_normal((_TEXTURE_SIDE, _TEXTURE_SIDE)))
    frequency = np.hypot(np.fft.fftfreq(_TEXTURE_SIDE)[:, None], np.fft.rfftfreq(_TEXTURE_SIDE)[None, :])
    # Structures larger than a tenth of a picture come from the scene, not from the texture.
    frequency = np.maximum(frequency, 1 / 64 if kind == "rough" else 1 / 512)
    noise = np.fft.irfft2(spectrum * frequency**-power * (frequency <= cutoff))
    texture: F32 = ((noise - noise.mean()) / noise.std()).astype(np.float32)
    return texture


def cut_texture(rng: np.random.Generator, kind: str, width: int, height: int) -> F32:
    """Return a random window of "rough" or "slow" noise of deviation 1; each side is below 1024 pixels."""
    texture = _texture(kind)
    left, top = (int(rng.integers(_TEXTURE_SIDE - side)) for side in (width, height))
    window = texture[top : top + height, left : left + width]
    flip_x, flip_y = rng.integers(2, size=2)
    return window[:: -1 if flip_y else 1, :: -1 if flip_x else 1]


def _encode(planes: F32, sampling: str, quality: int) -> bytes:
    pixels = planes.astype(np.uint8)
    image = Image.fromarray(pixels[..., 0]) if sampling == _GRAY else Image.fromarray(pixels, "YCbCr")
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, subsampling=_SUBSAMPLING[sampling])
    return out.getvalue()
