# SPDX-License-Identifier: Apache-2.0
"""What the GPUs do, through NVML. No driver, no package or no GPU is an answer: there is nothing to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

from feedrate.machine.results import Gpu, GpuProcess, GpuShare


class GpuReader:
    """Keeps NVML open.

    Utilisation, memory and power cost microseconds; PCIe rates wait 20 ms each; process lists cost
    milliseconds and a lock of the driver.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._fixed: list[Gpu] = []  # what does not change while the machine runs
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

    def read_shares(self) -> tuple[GpuShare, ...]:
        """Return which part of each GPU's time its processes had of late."""
        return tuple(
            GpuShare(index, int(sample.pid), min(int(sample.smUtil), 100) / 100)
            for index, handle in enumerate(self._handles)
            for sample in _ask(self._nvml.nvmlDeviceGetProcessUtilization, handle, 0) or ()
        )

    def read_processes(self) -> tuple[GpuProcess, ...]:
        """Return who holds memory of which GPU; in a container, processes outside may be missing."""
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
            # NVML counts from the GPU's side: what it receives goes to the device.
            to_device = _ask(nvml.nvmlDeviceGetPcieThroughput, handle, nvml.NVML_PCIE_UTIL_RX_BYTES)
            from_device = _ask(nvml.nvmlDeviceGetPcieThroughput, handle, nvml.NVML_PCIE_UTIL_TX_BYTES)
        return replace(
            self._fixed[index],
            utilisation=self._utilisation(handle),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_bytes=None if memory is None else int(memory.total),
            power_w=None if power is None else power / 1e3,
            pcie_to_device_bytes_per_s=None if to_device is None else to_device * 1024.0,
            pcie_from_device_bytes_per_s=None if from_device is None else from_device * 1024.0,
        )

    def _utilisation(self, handle: Any) -> float | None:
        rates = _ask(self._nvml.nvmlDeviceGetUtilizationRates, handle)
        return None if rates is None else rates.gpu / 100

    def _describe(self, index: int, handle: Any) -> Gpu:
        nvml = self._nvml
        limit = _ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        return Gpu(
            index=index,
            name=_text(_ask(nvml.nvmlDeviceGetName, handle)) or "unknown GPU",
            uuid=_text(_ask(nvml.nvmlDeviceGetUUID, handle)),
            power_limit_w=None if limit is None else limit / 1e3,
            # An idle GPU slows its link down: what it can do is the maximum.
            pcie_generation=_ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            pcie_width=_ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        )


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
