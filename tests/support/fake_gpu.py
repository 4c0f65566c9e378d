# SPDX-License-Identifier: Apache-2.0
"""A GPU for `Loader(device="cuda", decode=...)` where there is none: its kernels run on the CPU.

Streams and events do nothing, since all that is queued is done at once; tensors of the "device" are tensors
of the CPU. Everything else is the loader's own: reading, planning, staging, launching, and who waits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_on_cpu import Emulator
from feedrate.loader import decode_batch, iteration
from feedrate.loader.device import gpu_decode, transfer

Spoil = Callable[[str, Sequence[Any]], None]


class FakeEvent:
    """Notes who waits for it."""

    def __init__(self, gpu: FakeGpu, *, blocking: bool = False) -> None:
        self.gpu, self.blocking = gpu, blocking

    def synchronize(self) -> None:
        assert self.blocking, "a thread that spins takes a core from the decoder"
        self.gpu.waits += 1
        self.gpu.waits_by.add(threading.current_thread().name.rstrip("-0123456789"))


class FakeStream:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        return event or FakeEvent(self.gpu)

    def wait_event(self, event: FakeEvent) -> None:
        del event


class FakeGpu:
    """What happened on it.

    Attributes:
        launches: the kernels, by their names.
        waits, waits_by: how often a thread waited for an event, and the names of such threads.
        spoil: called after each kernel, with its name and its arguments.
        why_not: why it cannot be used; None: it can.
        free_bytes: of its memory, as it tells.
    """

    def __init__(self, library: Path) -> None:
        self._emulator, self._lock = Emulator(library), threading.Lock()
        self.launches: list[str] = []
        self.waits, self.waits_by = 0, set[str]()
        self.spoil: Spoil | None = None
        self.why_not: str | None = None
        self.free_bytes = 6 << 30

    def launch(self, name: str, grid: Any, block: int, args: Sequence[Any], *, stream: Any) -> None:
        assert isinstance(stream, FakeStream)
        arrays = [arg.numpy() if hasattr(arg, "numpy") else arg for arg in args]
        with self._lock:  # as on a stream: one after the other
            self._emulator(name, grid, block, arrays)
        self.launches.append(name)
        if self.spoil is not None:
            self.spoil(name, arrays)


def install(monkeypatch: pytest.MonkeyPatch, library: Path) -> FakeGpu:
    """Let loaders, and `decode_batch`, find such a GPU."""
    import torch

    gpu = FakeGpu(library)
    device = torch.device("cpu")

    def choose_placement(
        wanted: Any, output: str, finish: Any = None, *, prefetch: int, is_plain: bool
    ) -> Any:
        if wanted is None or wanted.type != "cuda":
            return transfer.choose_placement(wanted, output, finish, prefetch=prefetch, is_plain=is_plain)
        return transfer.Transfer(device, prefetch, finish, is_plain=is_plain)

    for name, value in {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
        "device": lambda _: contextlib.nullcontext(),
        "_is_in_bad_fork": lambda: False,
        "Stream": lambda _: FakeStream(gpu), "stream": lambda _: contextlib.nullcontext(),
        "current_stream": lambda _: FakeStream(gpu), "Event": lambda **how: FakeEvent(gpu, **how),
        "get_device_properties": lambda _: SimpleNamespace(total_memory=8 << 30),
        "mem_get_info": lambda _: (gpu.free_bytes, 8 << 30), "empty_cache": lambda: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(transfer, "_streams", {})
    monkeypatch.setattr(transfer, "pin", lambda tensor: tensor)
    monkeypatch.setattr(transfer, "make_pinned", lambda shape, dtype: torch.empty(shape, dtype=dtype))
    monkeypatch.setattr(transfer.Transfer, "guard", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(transfer.Transfer, "find_pci_address", lambda _: None)
    monkeypatch.setattr(iteration, "choose_placement", choose_placement)
    monkeypatch.setattr(decode_batch, "choose_placement", choose_placement)
    monkeypatch.setattr(decode_batch, "why_not", lambda *_: gpu.why_not)
    monkeypatch.setattr(decode_batch, "_opened", {})
    monkeypatch.setattr(gpu_decode, "compile_source", lambda *_, **__: gpu)
    monkeypatch.setattr(gpu_decode, "why_not", lambda *_: gpu.why_not)
    gpu_decode._tell_once.cache_clear()
    return gpu
