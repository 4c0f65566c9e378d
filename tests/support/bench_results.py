# SPDX-License-Identifier: Apache-2.0
"""Results with round numbers, for tests of what is drawn."""

from __future__ import annotations

from feedrate.bench.results import (
    BenchResult,
    BenchRun,
    DemoResult,
    ModelRate,
    SpeedRun,
    SpeedStanding,
    SpeedtestResult,
    Standing,
    Subset,
)
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


SUBSET = Subset(images=3, labels=2, size_bytes=300_000, listed=3)
MODEL_RATE = ModelRate(
    "densenet121", "Fast GPU", True, 128, 224, "bfloat16", 2000.0, 1990.0, 2010.0, 9000, 1e-4
)
SPEED_BEFORE = SpeedStanding(
    contestant="DataLoader + Pillow",
    images=4000,
    images_per_s=400.0,
    low_images_per_s=390.0,
    high_images_per_s=410.0,
    alone_images_per_s=420.0,
    alone_cpu_s_per_image=0.004,
    wait_share=0.8,
    copy_share=0.01,
    compute_share=0.19,
    cpu_s=20.0,
    device_s=2.0,
    utilisation=0.22,
    power_w=150.0,
    loading={"read": 0.05, "decode": 0.7, "crop, resize, flip": 0.25},
    by_gpu_share=0.0,
    limit="cpu",
    limits_images_per_s={"device": 2000.0, "loader": 420.0},
)
SPEED_AFTER = SpeedStanding(
    contestant="feedrate",
    images=16000,
    images_per_s=1600.0,
    low_images_per_s=1590.0,
    high_images_per_s=1610.0,
    alone_images_per_s=1800.0,
    alone_cpu_s_per_image=0.001,
    wait_share=0.1,
    copy_share=0.0,
    compute_share=0.9,
    cpu_s=18.0,
    device_s=9.0,
    utilisation=0.95,
    power_w=600.0,
    loading={"index": 0.02, "read and decode": 0.98},
    by_gpu_share=0.5,
    limit="device",
    limits_images_per_s={"device": 2000.0, "loader": 1800.0},
)


def make_speedtest_result() -> SpeedtestResult:
    return SpeedtestResult(
        source="photos",
        subset=Subset(2000, 10, 220_000_000, 1_281_167, True, 16, 3000.0, 0.25),
        model="densenet121",
        device="Fast GPU",
        device_kind="cuda",
        dtype="bfloat16",
        batch_size=128,
        image_side=224,
        workers=16,
        device_alone=MODEL_RATE,
        copy_s=0.001,
        before=SPEED_BEFORE,
        after=SPEED_AFTER,
        ratio=4.0,
        runs=(SpeedRun("feedrate", 0, 125, 16000, 10.0, 1.0, 0.0, 9.0, 18.0, 0.95, 600.0),),
        verdict="With DataLoader + Pillow the CPU is the limit.",
        advice="Pack the dataset once:",
        command="feedrate pack photos PACK",
        notes=("Fast GPU is here",),
        seconds=100.0,
        machine=MACHINE,
    )
