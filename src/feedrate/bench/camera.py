# SPDX-License-Identifier: Apache-2.0
"""Make JPEG files such as a phone or a camera writes: 12 megapixels, 4:2:0, quality 92, about 4 MB.

The texture is that of the small photographs, drawn larger, under the fine noise of a sensor: pictures of a
camera are soft at the scale of single pixels. Equal seeds give equal bytes (with the same numpy and Pillow).
"""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image

from feedrate.bench.photographs import CLASSES, F32, cut_texture, draw_scene

WIDTH, HEIGHT = 4000, 3000
QUALITY = 92
_ENLARGED = 4  # each pixel of the texture becomes this many across
_SENSOR_NOISE = 4.0  # levels; what is left of it after a camera's own denoising


def make_camera_picture(number: int, *, seed: int = 0, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    """Return picture `number`; it depends on the seed, the number and the size alone."""
    rng = np.random.default_rng((seed, number, width))
    scene = draw_scene(rng, number % len(CLASSES), width, height).convert("YCbCr")
    contrast = 20.0 * math.exp(rng.normal(0, 0.3))
    strength = np.exp(0.9 * _draw_texture(rng, "slow", width, height)) * contrast
    planes = []
    for plane, share in zip(scene.split(), (1.0, 0.16, 0.16), strict=True):
        values = np.asarray(plane, np.float32) + share * strength * _draw_texture(rng, "rough", width, height)
        if share == 1.0:
            values += _SENSOR_NOISE * rng.standard_normal((height, width), np.float32)
        planes.append(Image.fromarray(np.clip(values, 0, 255, out=values).astype(np.uint8)))
    out = io.BytesIO()
    Image.merge("YCbCr", planes).save(out, "JPEG", quality=QUALITY, subsampling=2)
    return out.getvalue()


def _draw_texture(rng: np.random.Generator, kind: str, width: int, height: int) -> F32:
    small = cut_texture(rng, kind, -(-width // _ENLARGED), -(-height // _ENLARGED))
    large = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(large)
