# SPDX-License-Identifier: Apache-2.0
"""A result of `feedrate fidelity` with a name that a stranger chose."""

from __future__ import annotations

import dataclasses

from feedrate.fidelity.results import Comparison, Fidelity, ImageDifference
from support.bench_results import MACHINE

NASTY = "<script>alert(1)</script>\"'&.jpg"


def make_result(**changes: object) -> Fidelity:
    one = ImageDifference(NASTY, 500, 375, (10, 20, 210, 320), True, 55.5, 2, 0.9)
    found = Comparison(190, 12, 57.25, 55.5, 2, (0.9, 0.09, 0.01, 0.0), (one,), 0)
    result = Fidelity(
        source="photos", dataset_images=1300, sampled=200, seed=0, image_side=224, lowest_psnr_limit_db=54.0,
        largest_difference_limit=2, pillow=found, by_pillow={"progressive": 8, "PNG": 2}, originals=None,
        originals_folder=None, settings={}, not_compared=(), refused=(), missing=(), machine=MACHINE,
    )  # fmt: skip
    return dataclasses.replace(result, **changes)
