# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's management library as a module that answers what a test says, and refuses all else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def make_nvml(**answers: Any) -> SimpleNamespace:
    def refuse(*_: object) -> None:
        raise RuntimeError("not supported")

    names = [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetName",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetMaxPcieLinkGeneration",
        "nvmlDeviceGetMaxPcieLinkWidth",
        "nvmlDeviceGetPcieThroughput",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetProcessUtilization",
    ]
    calls: dict[str, Any] = dict.fromkeys(names, refuse)
    calls |= {name: (lambda *_, a=answer: a) for name, answer in answers.items()}
    return SimpleNamespace(
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda n: n, NVML_PCIE_UTIL_RX_BYTES=1, NVML_PCIE_UTIL_TX_BYTES=0, **calls,
    )  # fmt: skip
