# SPDX-License-Identifier: Apache-2.0
"""Results with round numbers, for tests of what is drawn."""

from __future__ import annotations

from feedrate.bench.results import (
    BenchResult,
    BenchRun,
    MachineResult,
    Standing,
)
from feedrate.demo.results import DemoResult
from feedrate.figures import ASSUMED, Figure
from feedrate.loader.results import PixelCheck
from feedrate.machine.results import Machine, MachineNumbers, ModelRates, StoreSpeed

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


def make_store_speed() -> StoreSpeed:
    return StoreSpeed(
        path="nfs",
        kind="nfs4",
        file_s=Figure(0.006, 0.0055, 0.0065, note="300 files"),
        read_s=Figure.exactly(0.002),
        stream_bytes_per_s=Figure.exactly(5e7),
        total_bytes_per_s=Figure(1e8, 9e7, 1e9, ASSUMED, "the files are too small to tell"),
        files_per_s=Figure.exactly(2000.0),
        streams=16,
        warm_file_s=Figure.exactly(1e-5),
        warm_bytes_per_s=Figure.exactly(5e9),
        keeps_pages=True,
        cold_share=1.0,
        write_bytes_per_s=Figure.exactly(4e7),
        create_s=Figure.exactly(0.004),
    )


def make_machine_result() -> MachineResult:
    rate = Figure(1000.0, 900.0, 1100.0, note="batches of 256, bfloat16")
    return MachineResult(
        numbers=MachineNumbers(
            node="",
            date="2026-11-17",
            machine=MACHINE,
            stores={"nfs": make_store_speed()},
            decode_images_per_s={"pillow": Figure.exactly(400.0), "feedrate": Figure.exactly(1600.0)},
            core_gain=Figure.exactly(1.9),
            to_device_bytes_per_s=Figure.exactly(5e10),
            gpu_decode_images_per_s=None,
            models={"resnet50": ModelRates(rate, rate.scaled(0.25))},
            device="GPU 9000",
        ),
        is_quick=False,
        left_out={"decoding on the GPU": "NVRTC is not installed"},
        took_s=80.0,
    )
