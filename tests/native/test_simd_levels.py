# SPDX-License-Identifier: Apache-2.0
"""Every level of vector code that this machine has gives the pixels of Pillow; FEEDRATE_SIMD chooses one."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from kernel_images import SAMPLINGS, Store, by_pillow, make_jpeg, random_box

from feedrate import kernel

HERE = Path(__file__).parent
PROGRAM = "from test_simd_levels import kernel, kernel_digest; print(kernel.simd_level(), kernel_digest())"


def cases() -> Iterator[tuple[bytes, Any, tuple[int, int], bool, int, int]]:
    """Yield file, box, size, flip, channels and filter: every sampling, enlarged, reduced, and as it is."""
    rng = np.random.default_rng(5)
    for sampling in SAMPLINGS:
        for quality, restart in ((60, 0), (97, 0), (90, 7)):
            data = make_jpeg(331, 217, sampling, quality=quality, restart_marker_blocks=restart, seed=quality)
            for i in range(12):
                left, top, right, bottom = box = random_box(rng, 331, 217)
                size = (bottom - top, right - left) if i == 0 else tuple(rng.integers(1, 260, 2).tolist())
                yield data, box, size, bool(i % 2), 1 if i == 5 else 3, i % 6
        # Many taps: more lines than the 16-bit sums of the vertical pass take.
        large = make_jpeg(900, 1300, sampling, quality=30)
        for filter_ in (1, 2, 3):
            yield large, (0, 0, 900, 1300), (9, 7), False, 3, filter_


def kernel_digest() -> str:
    digest = hashlib.sha256()
    for data, box, size, flip, channels, filter_ in cases():
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder), [data], entries=[kernel.scan(data).entries])
            filters = np.array([filter_], np.uint8)
            out, report = store.decode([box], size=size, flips=[flip], channels=channels, filters=filters)
        assert report.by_pillow == 0
        assert report.reasons == {}
        digest.update(out.tobytes())
    return digest.hexdigest()


def pillow_digest() -> str:
    digest = hashlib.sha256()
    for data, box, size, flip, channels, filter_ in cases():
        mode = "RGB" if channels == 3 else "L"
        pixels = by_pillow(data, box, size, mode=mode, flip=flip, filter_=filter_)
        digest.update(np.ascontiguousarray(pixels).tobytes())
    return digest.hexdigest()


def run(program: str, level: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=HERE,
        env={**os.environ, "FEEDRATE_SIMD": level},
    )


def test_every_level_gives_the_pixels_of_pillow() -> None:
    results = {level: run(PROGRAM, level) for level in kernel.simd_levels()}
    for level, result in results.items():
        assert result.returncode == 0, result.stderr
        assert result.stdout.split()[0] == level
    digests = {result.stdout.split()[1] for result in results.values()}
    assert len(digests) == 1
    if int(PIL.__version__.split(".")[0]) >= 13:  # earlier ones resize in another order
        assert digests == {pillow_digest()}


def test_the_best_level_is_chosen_when_none_is_named() -> None:
    result = run("from feedrate import kernel; print(kernel.simd_level())", "")
    assert result.stdout.split() == [kernel.simd_levels()[0]]


def test_a_portable_level_is_always_there() -> None:
    assert kernel.simd_levels()[-1] == "plain"


@pytest.mark.parametrize("level", ["sse9", "AVX2"])
def test_an_unknown_level_is_refused_by_name_and_with_those_there_are(level: str) -> None:
    result = run("from feedrate import kernel", level)
    assert result.returncode == 1
    levels = ", ".join(kernel.simd_levels())
    assert (
        f'ImportError: FEEDRATE_SIMD is "{level}", and this machine has {levels}; '
        "set it to one of them, or not at all" in result.stderr
    )
