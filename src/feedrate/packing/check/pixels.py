# SPDX-License-Identifier: Apache-2.0
"""`feedrate verify --pixels N`: what the loader's decoder makes of some samples, against Pillow's pixels.

Random crops and flips, as a loader draws them, through each sample's own entry points. Pillow does what
torchvision does with it: the whole image, crop, antialiased resize, flip.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from feedrate.draws import pick
from feedrate.kernel import U8, Status
from feedrate.lab.decode import (
    LARGEST_DIFFERENCE,
    LOWEST_PSNR_DB,
    Difference,
    Samples,
    compare_pixels,
    decode_as_torchvision,
    open_pack,
)
from feedrate.loader.geometry import Geometry
from feedrate.loader.packs import open_pack as open_anywhere
from feedrate.packing.results import PixelComparison, Problem
from feedrate.progress import Tick

_SIDE, _SEED = 224, 0


def compare_with_pillow(
    pack: str | os.PathLike[str],
    images: int,
    *,
    allow_addresses: str | Sequence[str] = (),
    watch: Callable[[Tick], None] = lambda _: None,
) -> tuple[PixelComparison, tuple[Problem, ...]]:
    """Decode up to `images` samples of a pack both ways.

    Raises:
        PackError: the pack has no images.
    """
    found: list[tuple[str, Difference]] = []
    problems: list[Problem] = []
    by_pillow: Counter[str] = Counter()
    with closing(open_anywhere(pack, allow_addresses=allow_addresses)) as opened:
        positions = pick(len(opened), images, _SEED)
        with open_pack(opened, positions) as samples:
            geometry = samples.draw(_SIDE, _SEED)
            for number, name in enumerate(samples.names):
                watch(Tick("comparing", number, len(samples)))
                ours, report = samples.decode_one(number, geometry, (_SIDE, _SIDE))
                theirs = _ask_pillow(samples, number, geometry)
                reason = next(iter(report.reasons.values()), None)
                if reason is not None and (theirs is not None or report.statuses[0] != Status.CORRUPT):
                    problems.append(Problem(name, f"cannot be loaded: {reason}"))
                elif reason is None and theirs is not None and not report.by_pillow:
                    found.append((name, compare_pixels(ours, theirs)))
                by_pillow.update(report.pillow_reasons)
    problems += [Problem(name, _say_difference(one)) for name, one in found if not one.is_rounding]
    return _sum_up(found, dict(by_pillow.most_common()), asked=len(positions)), tuple(problems)


def _ask_pillow(samples: Samples, number: int, geometry: Geometry) -> U8 | None:
    left, top, right, bottom = geometry.boxes[number].tolist()
    flip = bool(geometry.flips[number])
    try:
        return decode_as_torchvision(samples.read(number), (left, top, right, bottom), _SIDE, flip)
    except MemoryError:  # no fault of the image
        raise
    except Exception:  # Pillow's readers raise whatever damage leads them into
        return None


def _say_difference(one: Difference) -> str:
    return (
        f"its pixels differ from Pillow's by more than rounding: {one.psnr_db:.1f} dB PSNR, "
        f"up to {one.largest} levels of 255 (limits: {LOWEST_PSNR_DB:.0f} dB, {LARGEST_DIFFERENCE} levels)"
    )


def _sum_up(found: list[tuple[str, Difference]], by_pillow: dict[str, int], asked: int) -> PixelComparison:
    differing = [(one.psnr_db, name) for name, one in found if one.psnr_db is not None]
    levels = np.array([one.levels for _, one in found] or [(1, 0, 0, 0)], np.float64).sum(axis=0)
    zero, one, two, more = (levels / levels.sum()).tolist()
    return PixelComparison(
        asked=asked,
        images=len(found),
        equal_images=len(found) - len(differing),
        mean_psnr_db=sum(psnr for psnr, _ in differing) / len(differing) if differing else None,
        lowest_psnr_db=min(differing)[0] if differing else None,
        worst=min(differing)[1] if differing else "",
        largest_difference=max((one.largest for _, one in found), default=0),
        level_shares=(zero, one, two, more),
        by_pillow=by_pillow,
        outside=sum(not one.is_rounding for _, one in found),
    )
