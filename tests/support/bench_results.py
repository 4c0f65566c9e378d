# SPDX-License-Identifier: Apache-2.0
"""Results with round numbers, for tests of what is drawn."""

from __future__ import annotations

from feedrate.bench.results import BenchResult, BenchRun, DemoResult, Standing
from feedrate.loader.results import PixelCheck
from feedrate.machine.results import Machine

MACHINE = Machine("Fast 9000", 2, 8 * 10**9, "Linux 6", "3.11", {"feedrate": "0.1.0"}, None, ("demo",))
BEFORE = Standing("DataLoader + Pillow", 400.0, 390.0, 410.0, 9.0, 0.9, 0.004, 0.5, 600_000_000, 0.75)
AFTER = Standing("feedrate", 1600.0, 1590.0, 1610.0, 1.0, 0.4, 0.001, 0.25, 300_000_000, 0.76)
RUNS = tuple(
    BenchRun(one.contestant, 0, (4000,), (4000 / one.images_per_s,), one.wait_s, 1.0, 0.5, 10**8)
    for one in (BEFORE, AFTER)
)


def make_demo_result() -> DemoResult:
    return DemoResult(
        images=1200,
        held_out_images=300,
        image_bytes=130_000_000,
        epochs=5,
        threads=2,
        pack_s=1.5,
        before=BEFORE,
        after=AFTER,
        ratio=4.0,
        runs=RUNS,
        kept=None,
        machine=MACHINE,
    )


def make_bench_result() -> BenchResult:
    return BenchResult(
        source="photos",
        dataset_images=10,
        batch_size=256,
        threads=2,
        image_side=224,
        before=BEFORE,
        after=AFTER,
        ratio=4.0,
        pixels=PixelCheck(24, 56.0, 1, True, 0),
        runs=RUNS,
        machine=MACHINE,
    )
