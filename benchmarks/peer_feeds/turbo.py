# SPDX-License-Identifier: Apache-2.0
"""JPEG bytes -> a random crop, by libjpeg-turbo (simplejpeg) and OpenCV: the fastest common way by hand."""

from __future__ import annotations

import random
from typing import Any

import cv2
import simplejpeg

from peer_feeds.task import draw_crop

cv2.setNumThreads(0)  # the worker processes are the parallelism


def decode_crop(data: bytes, side: int) -> Any:
    """Return uint8 side x side x 3."""
    image = simplejpeg.decode_jpeg(data, colorspace="RGB")
    left, top, width, height = draw_crop(image.shape[1], image.shape[0])
    crop = image[top : top + height, left : left + width]
    # The only one of OpenCV's ways that does not alias when it shrinks.
    crop = cv2.resize(crop, (side, side), interpolation=cv2.INTER_AREA)
    return cv2.flip(crop, 1) if random.random() < 0.5 else crop
