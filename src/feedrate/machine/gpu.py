# SPDX-License-Identifier: Apache-2.0
"""Readings of the GPUs, through NVML. No driver, no package or no GPU is an answer: nothing to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

from feedrate.machine.results import Gpu, GpuProcess


class GpuReader:
    """Keeps NVML open.

    Utilisation, memory and power cost microseconds; PCIe rates wait 20 ms each; process lists cost
    milliseconds and a lock of the driver.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._fixed: list[Gpu] = []  # the facts that stay while the machine runs
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # not installed, no driver, a driver of another version
            return
        self._nvml = pynvml
        count = _ask(pynvml.nvmlDeviceGetCount) or 0
        self._handles = [
            h for n in range(count) if (h := _ask(pynvml.nvmlDeviceGetHandleByIndex, n)) is not None
        ]
        self._fixed = [self._describe(index, handle) for index, handle in enumerate(self._handles)]

    def __enter__(self) -> GpuReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._nvml is not None:
            _ask(self._nvml.nvmlShutdown)

    def __len__(self) -> int:
        return len(self._handles)

    def read(self, *, with_pcie: bool = False) -> tuple[Gpu, ...]:
        return tuple(self._read_one(index, with_pcie) for index in range(len(self._handles)))

    def read_minors(self) -> tuple[int, ...]:
        """Return N of each GPU's /dev/nvidiaN: in a container that has some of them, not its index."""
        ask = getattr(self._nvml, "nvmlDeviceGetMinorNumber", None)
        found = (None if ask is None else _ask(ask, handle) for handle in self._handles)
        return tuple(index if minor is None else int(minor) for index, minor in enumerate(found))

    def read_utilisation(self) -> tuple[float | None, ...]:
        """Return the share of the last fraction of a second in which each GPU was at work."""
        return tuple(self._utilisation(handle) for handle in self._handles)

    def read_shares(self) -> dict[tuple[int, int], float]:
        """Return the share of each GPU's time that its processes had of late, by GPU and process."""
        return {
            (index, int(sample.pid)): min(int(sample.smUtil), 100) / 100
            for index, handle in enumerate(self._handles)
            for sample in _ask(self._nvml.nvmlDeviceGetProcessUtilization, handle, 0) or ()
        }

    def read_processes(self) -> tuple[GpuProcess, ...]:
        """Return the processes with memory of a GPU; in a container, those outside may be missing."""
        found = []
        for index, handle in enumerate(self._handles):
            for process in _ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ():
                memory = process.usedGpuMemory
                found.append(GpuProcess(index, int(process.pid), None if memory is None else int(memory)))
        return tuple(found)

    def _read_one(self, index: int, with_pcie: bool) -> Gpu:
        nvml, handle = self._nvml, self._handles[index]
        memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        power = _ask(nvml.nvmlDeviceGetPowerUsage, handle)
        to_device = from_device = None
        if with_pcie:
            # NVML counts from the GPU's side: bytes that it receives go to the device.
            to_device = _ask(nvml.nvmlDeviceGetPcieThroughput, handle, nvml.NVML_PCIE_UTIL_RX_BYTES)
            from_device = _ask(nvml.nvmlDeviceGetPcieThroughput, handle, nvml.NVML_PCIE_UTIL_TX_BYTES)
        return replace(
            self._fixed[index],
            utilisation=self._utilisation(handle),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_bytes=None if memory is None else int(memory.total),
            power_w=_scaled(power, 1e-3),
            pcie_to_device_bytes_per_s=_scaled(to_device, 1024.0),
            pcie_from_device_bytes_per_s=_scaled(from_device, 1024.0),
        )

    def _utilisation(self, handle: Any) -> float | None:
        rates = _ask(self._nvml.nvmlDeviceGetUtilizationRates, handle)
        return None if rates is None else rates.gpu / 100

    def _describe(self, index: int, handle: Any) -> Gpu:
        nvml = self._nvml
        return Gpu(
            index=index,
            name=_text(_ask(nvml.nvmlDeviceGetName, handle)) or "unknown GPU",
            uuid=_text(_ask(nvml.nvmlDeviceGetUUID, handle)),
            power_limit_w=_scaled(_ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1e-3),
        )


def _scaled(number: float | None, unit: float) -> float | None:
    return None if number is None else number * unit


def _text(answer: str | bytes | None) -> str:
    return answer.decode() if isinstance(answer, bytes) else answer or ""


def _ask(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception:  # each GPU answers another subset: a slice of one (MIG) has no utilisation
        return None


def describe_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine, also those that this job may not use; empty when there are none."""
    with GpuReader() as reader:
        return reader.read()
