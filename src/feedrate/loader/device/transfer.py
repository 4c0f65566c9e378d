# SPDX-License-Identifier: Apache-2.0
"""How a batch leaves the host: decoded into pinned memory, copied on a stream of its own, met by an event.

```
maker      decodes into pinned memory and queues, on the side stream, the copy and what follows it (`finish`)
consumer   lets its own stream wait for that, on the device (`Sent.receive`); the host waits for nothing
```

Who may use memory again, and when, is torch's business: its allocator of pinned memory gives a block out
again only when the copies from it are over, and `record_stream` says the same of memory on the device. So a
batch may be kept, or dropped while its copy runs, and no buffer of ours is ever under a copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from feedrate.arrays import U8, Flags
from feedrate.errors import FeedrateError, GpuError, UsageError
from feedrate.kernel.cuda.launcher import check_torch
from feedrate.loader.batch import Batch
from feedrate.loader.device.finish import Finish
from feedrate.units import format_bytes

_KINDS = ("cpu", "cuda", "mps")
_RELAXED = 2  # cudaStreamCaptureModeRelaxed


def check_device(device: Any, output: str) -> Any:
    """Return the device that was asked for as a `torch.device`; None: batches stay on the host.

    Nothing is initialised here: `"cuda"` gets its number when an iteration begins.

    Raises:
        UsageError: there is no such device, or nothing that could be moved there.
    """
    if device is None:
        return None
    if output != "torch":
        raise UsageError(
            f'device={device!r} moves torch tensors, and output="numpy" gives arrays',
            hint="leave out device, or output",
        )
    import torch

    found = _parse(torch, device)
    if found.type == "cuda":
        _check_cuda(torch, found)
    elif found.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("device='mps': this machine, or this torch, has no Metal device")
    return found


def _parse(torch: Any, device: Any) -> Any:
    try:
        is_number = isinstance(device, int) and not isinstance(device, bool)
        found = torch.device("cuda", device) if is_number else torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in _KINDS:
        raise UsageError(
            f'device must be "cuda", "cuda:1", "mps", "cpu", a number or a torch.device, got {device!r}'
        )
    return found


def _check_cuda(torch: Any, device: Any) -> None:
    try:
        check_torch(torch, device.index, takes_amd=True)
    except GpuError as error:
        raise UsageError(f"device='{device}': {error.message}", hint=error.hint) from None


class Placement:
    """Where the batches of one iteration go. This one leaves them where they are, and finishes them there."""

    stage = "finish"  # what the loader's meter calls it

    def __init__(self, device: Any = None, finish: Finish | None = None, *, is_plain: bool = True) -> None:
        self.device, self._finish, self._is_plain = device, finish, is_plain

    def is_like(self, other: Placement) -> bool:
        """Return whether the batches of both go to the same place, in the same way."""
        return type(self) is type(other) and self.device == other.device

    def guard(self) -> contextlib.AbstractContextManager[Any]:
        """Return what a thread that makes a batch has to do it in."""
        return contextlib.nullcontext()

    def find_pci_address(self) -> str | None:
        """Return where the GPU that batches go to is attached, as sysfs writes it; None: unknown, or none."""
        return None

    def lend(self, shape: tuple[int, ...]) -> U8 | None:
        """Return memory for pixels from which copies go fast; None: any will do."""
        del shape
        return None

    def wait(self, step: int) -> None:
        """Wait until the device has got so far that a batch may be sent; `step` is its number."""
        del step

    def finish(self, batch: Batch, step: int) -> Batch:
        """Return a batch on its way, when `wait` is over."""
        del step
        if self._finish is None:
            return batch
        return replace(batch, data=self._send(batch, lambda tensor: tensor))

    def _send(self, batch: Batch, send: Callable[[Any], Any]) -> Any:
        """Return what a batch holds, moved by `send` and finished there."""
        if self._finish is None:
            return move(batch.data, send, is_plain=self._is_plain)
        plan = self._finish.plan(batch)
        return self._finish.run(move(tuple(plan.data), send, is_plain=True), plan, send)


def choose_placement(
    device: Any, output: str, finish: Finish | None = None, *, prefetch: int, is_plain: bool
) -> Placement:
    """Return where the batches of an iteration that begins now go.

    Args:
        device: as `check_device` returned it.
        finish: what is done to the batches there.
        is_plain: batches are fields as they were read, not what a user's function made of them.
    """
    torch = sys.modules.get("torch")
    if torch is None or output != "torch" or (device is not None and device.type == "cpu"):
        return Placement(finish=finish)
    if device is None:
        # Pinning needs CUDA, which is the user's to begin: a process that forks must not find it begun.
        if not torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork() or not is_plain:
            return Placement(finish=finish)
        return Pinned(torch.device("cuda", torch.cuda.current_device()), finish)
    if device.type == "cuda":
        _check_cuda(torch, device)
        index = torch.cuda.current_device() if device.index is None else device.index
        return Transfer(torch.device("cuda", index), prefetch, finish, is_plain=is_plain)
    return Copied(device, finish, is_plain=is_plain)


class Copied(Placement):
    """A plain copy to a device, by who makes the batch."""

    stage = "transfer"

    def finish(self, batch: Batch, step: int) -> Batch:
        del step
        return replace(batch, data=self._send(batch, lambda tensor: tensor.to(self.device)))


class Pinned(Placement):
    """Host batches in pinned memory, so that `images.to(device, non_blocking=True)` need not wait."""

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        import torch

        with torch.cuda.device(self.device):
            _allow_captures()
            yield

    def lend(self, shape: tuple[int, ...]) -> U8 | None:
        # What is finished on the host is pinned then: it is not these pixels that are copied.
        return _lend_pinned(shape) if self._finish is None else None

    def finish(self, batch: Batch, step: int) -> Batch:
        finished = super().finish(batch, step)
        return replace(finished, data=move(finished.data, pin, is_plain=True))


class Transfer(Pinned):
    """Batches that arrive on a GPU while the one before is trained on.

    A loop may run far ahead of its GPU, and all that it was given stays on the GPU until that has caught up.
    So a maker waits, before it sends a batch, until the GPU is through with one some steps before.
    """

    stage = "transfer"

    def __init__(self, device: Any, prefetch: int, finish: Finish | None = None, *, is_plain: bool) -> None:
        import torch

        super().__init__(device, finish, is_plain=is_plain)
        self._prefetch = prefetch
        if device not in _streams:
            _streams[device] = torch.cuda.Stream(device)
        self.stream = _streams[device]
        # What else of the loader's takes memory of the device, and how many bytes.
        self.beside: dict[str, Callable[[], int]] = {}
        # When the loop took this step's batch, so much of its work was queued: all on the batches before.
        self._queued: dict[int, Any] = {}

    def find_pci_address(self) -> str | None:
        import torch

        about = torch.cuda.get_device_properties(self.device)
        if not hasattr(about, "pci_domain_id"):  # an older torch
            return None
        return f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"

    def lend(self, shape: tuple[int, ...]) -> U8:
        return _lend_pinned(shape)

    def wait(self, step: int) -> None:
        # Makers are `prefetch` steps ahead at the most, so the loop has taken that batch.
        queued = self._queued.pop(step - self._prefetch - 2, None)
        if queued is not None:
            queued.synchronize()

    def finish(self, batch: Batch, step: int) -> Batch:
        import torch

        tensors: list[Any] = []

        def send(tensor: Any) -> Any:
            if tensor.device == self.device:
                if self._is_plain:  # decoded there, on this stream
                    tensors.append(tensor)
                # One that a function of the user's made there is where it should be.
                return tensor
            tensors.append(pin(tensor).to(self.device, non_blocking=True))
            return tensors[-1]

        try:
            with torch.cuda.stream(self.stream):
                data = self._send(batch, send)
                event = self.stream.record_event()
        except torch.cuda.OutOfMemoryError as error:
            raise self._out_of_memory(batch, error) from error
        if self._finish is not None:
            # What was sent is used up; the loop gets what was made of it.
            tensors.clear()
            move(data, tensors.append, is_plain=True)

        def receive() -> Any:
            stream = torch.cuda.current_stream(self.device)
            # Who waits for this one sleeps: a thread that spins would take a core from the decoder.
            self._queued[step] = stream.record_event(torch.cuda.Event(blocking=True))
            stream.wait_event(event)
            for tensor in tensors:
                tensor.record_stream(stream)
            return data

        return replace(batch, data=Sent(receive))

    def _out_of_memory(self, batch: Batch, error: Exception) -> FeedrateError:
        sizes: list[int] = []
        if self._finish is not None:
            sizes.append(self._finish.count_bytes(batch.data))
        else:
            move(batch.data, lambda tensor: sizes.append(tensor.nbytes), is_plain=self._is_plain)
        others = {what: measure() for what, measure in self.beside.items()}
        beside = "".join(
            f", and {what} there takes {format_bytes(size)}" for what, size in others.items() if size
        )
        return FeedrateError(
            f"{self.device} has no memory left for the next batch: {self._prefetch} batches of "
            f"{format_bytes(sum(sizes))} are made ahead of the loop{beside} ({str(error).splitlines()[0]})",
            hint=f"lower prefetch (now {self._prefetch}, at least 1), batch_size, or what the model takes",
        )


class Sent(NamedTuple):
    """A batch whose copy is queued.

    Attributes:
        receive: returns it for the stream that is current there: that waits for the copy, the host does not.
    """

    receive: Callable[[], Any]


class DevicePixels:
    """Pixels of a batch that were made on the GPU, N x H x W x C: they stand where the host's array would."""

    def __init__(self, tensor: Any, stream: Any) -> None:
        self.tensor, self._stream = tensor, stream

    def __getitem__(self, good: Flags) -> DevicePixels:
        """Return the pixels of some samples; the host does not wait."""
        import torch

        with torch.cuda.stream(self._stream):
            index = send(np.flatnonzero(good), self.tensor.device)
            return DevicePixels(self.tensor.index_select(0, index), self._stream)


def move(data: Any, send: Callable[[Any], Any], *, is_plain: bool) -> Any:
    """Return a batch with each tensor replaced by `send(tensor)`; everything else stays what it is.

    Of plain fields, lists stay on the host: they hold texts, and boxes that nobody has put together yet.
    """
    import torch

    if isinstance(data, torch.Tensor):
        return send(data)
    if isinstance(data, dict):
        moved = {name: move(value, send, is_plain=is_plain) for name, value in data.items()}
        return moved if type(data) is dict else type(data)(moved)
    if isinstance(data, tuple):
        values = [move(value, send, is_plain=is_plain) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else tuple(values)
    if isinstance(data, list) and not is_plain:
        return [move(value, send, is_plain=is_plain) for value in data]
    return data


def _lend_pinned(shape: tuple[int, ...]) -> U8:
    import torch

    pixels: U8 = make_pinned(shape, torch.uint8).numpy()
    return pixels


def make_pinned(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a tensor in pinned memory, its contents arbitrary."""
    import torch

    # Whatever torch.set_default_device says.
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)


def pin(tensor: Any) -> Any:
    """Return a tensor of the host in pinned memory: itself, where it is."""
    return tensor if tensor.device.type != "cpu" or tensor.is_pinned() else tensor.pin_memory()


def send(array: np.ndarray[Any, Any], device: Any) -> Any:
    """Return an array as a tensor on the device, its copy queued on the stream that is current."""
    import torch

    tensor = find_pinned(array)
    return pin(torch.from_numpy(array) if tensor is None else tensor).to(device, non_blocking=True)


def find_pinned(array: np.ndarray[Any, Any]) -> Any:
    """Return the tensor of `Placement.lend` that an array is a view of, as the same view; None: it is none.

    A tensor made from the array would be another owner of that memory, and torch would not know which block a
    copy from it reads.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(owner, torch.Tensor):
        return None
    owner = owner.reshape(-1).view(getattr(torch, array.dtype.name))
    size = array.dtype.itemsize
    start = owner.storage_offset() + (array.__array_interface__["data"][0] - owner.data_ptr()) // size
    return owner.as_strided(array.shape, [stride // size for stride in array.strides], start)


# One for each device: torch keeps the memory of every stream apart, so new ones would take more and more.
_streams: dict[Any, Any] = {}
_thread = threading.local()


def _allow_captures() -> None:
    """Let this thread allocate memory while another one captures a CUDA graph, which would fail otherwise.

    What this thread does belongs to no capture: its copies go on a stream of their own.
    """
    if getattr(_thread, "is_relaxed", False):
        return
    _thread.is_relaxed = True
    import torch

    version = torch.version.cuda
    if version is None:
        return
    with contextlib.suppress(OSError, AttributeError):
        runtime = ctypes.CDLL(f"libcudart.so.{version.partition('.')[0]}")
        runtime.cudaThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))
