# SPDX-License-Identifier: Apache-2.0
"""What passes between the layers: frozen dataclasses that commands return and `report` draws."""

from feedrate.results.bench import (
    BenchResult,
    BenchRun,
    DemoResult,
    KernelResult,
    KernelSet,
    KernelStage,
    KernelStanding,
    PixelCheck,
    Standing,
)
from feedrate.results.fidelity import Comparison, Fidelity, ImageDifference, Picture, Pictures
from feedrate.results.load import LoaderStats, StageStats
from feedrate.results.machine import Gpu, GpuProcess, Machine, ReadRate, ScratchRate, Storage
from feedrate.results.pack import (
    FieldSummary,
    PackDescription,
    PackResult,
    Problem,
    Recoded,
    Rejection,
    SampleLine,
    Tick,
    UnpackResult,
    VerifyResult,
)

__all__ = [
    "BenchResult",
    "BenchRun",
    "Comparison",
    "DemoResult",
    "Fidelity",
    "FieldSummary",
    "Gpu",
    "GpuProcess",
    "ImageDifference",
    "KernelResult",
    "KernelSet",
    "KernelStage",
    "KernelStanding",
    "LoaderStats",
    "Machine",
    "PackDescription",
    "PackResult",
    "Picture",
    "Pictures",
    "PixelCheck",
    "Problem",
    "ReadRate",
    "Recoded",
    "Rejection",
    "SampleLine",
    "ScratchRate",
    "StageStats",
    "Standing",
    "Storage",
    "Tick",
    "UnpackResult",
    "VerifyResult",
]
