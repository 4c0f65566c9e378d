# SPDX-License-Identifier: Apache-2.0
"""Small seeded images and folders of them, and how to compare folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def save_image(
    path: Path, seed: int, *, width: int = 64, height: int = 48, mode: str = "RGB", **options: Any
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)
    with open(path, "wb") as file:
        image.save(file, {".png": "PNG", ".webp": "WEBP"}.get(path.suffix, "JPEG"), **options)
    return path


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder: relative path -> bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
