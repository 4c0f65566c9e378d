# SPDX-License-Identifier: Apache-2.0
"""Which files are images, by their names: known before anything else is loaded."""

from __future__ import annotations

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
)
