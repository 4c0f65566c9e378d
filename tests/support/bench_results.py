# SPDX-License-Identifier: Apache-2.0
"""Results with round numbers, for tests of what is drawn."""

from __future__ import annotations

from typing import Any

from feedrate.bench.results import (
    BenchResult,
    BenchRun,
    DemoResult,
    MachineResult,
    SpeedRun,
    SpeedStanding,
    SpeedtestResult,
    Standing,
    Subset,
)
from feedrate.figures import ASSUMED, Figure
from feedrate.lab.device import ModelRate
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
            memory_bytes_per_s=Figure.exactly(8e9),
            to_device_bytes_per_s=Figure.exactly(5e10),
            gpu_decode_images_per_s=None,
            models={"resnet50": ModelRates(rate, rate.scaled(0.25))},
            device="GPU 9000",
        ),
        decode_all_images_per_s=Figure.exactly(3040.0),
        pageable_bytes_per_s=None,
        is_quick=False,
        left_out={"decoding on the GPU": "NVRTC is not installed"},
        took_s=80.0,
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
        next_command="feedrate pack photos PACK",
        notes=("Fast GPU is here",),
        seconds=100.0,
        machine=MACHINE,
    )


def load_speedtest_result(document: dict[str, Any]) -> SpeedtestResult:
    """Read a committed result back."""
    classes = {
        "subset": Subset,
        "device_alone": ModelRate,
        "before": SpeedStanding,
        "after": SpeedStanding,
        "machine": Machine,
    }
    values = {name: value for name, value in document.items() if name not in ("command", "schema_version")}
    values |= {name: kind(**values[name]) for name, kind in classes.items()}
    return SpeedtestResult(**{**values, "notes": tuple(values["notes"])})
