# SPDX-License-Identifier: Apache-2.0
"""The loader's batches taken without training (DRAIN), then the same samples once more (AGAIN); and batches
kept in memory, to be handed out again and again.

Nothing of it returns to the user's code, so the weights stay what they are. torch is never imported here: a
batch of tensors comes from a process that has it.
"""

from __future__ import annotations

import collections
import copy
import ctypes
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

from .. import clock, layout
from ..record import loader_clone
from ..session import session

ROWS = 512  # of a tensor, for its digest: samples
ELEMENTS = 1 << 17  # of all its rows

torch: Any = sys.modules.get("torch")


def leaves_of(batch: Any) -> list[Any]:
    """Tensors, arrays and plain values, in the order of the containers; of objects, their attributes."""
    found: list[Any] = []
    seen: set[int] = set()
    stack = [batch]
    while stack and len(found) < 10000:
        thing = stack.pop()
        if isinstance(thing, torch.Tensor) or type(thing).__module__ == "numpy":
            if id(thing) not in seen:
                seen.add(id(thing))
                found.append(thing)
        elif thing is None or isinstance(thing, (str, bytes, int, float, bool)):
            found.append(thing)
        elif id(thing) not in seen:
            seen.add(id(thing))
            if isinstance(thing, dict):
                stack.extend(reversed(list(thing.values())))
            elif isinstance(thing, (list, tuple)):
                stack.extend(reversed(thing))
            elif hasattr(thing, "__dict__") and not isinstance(thing, type):
                stack.extend(reversed(list(vars(thing).values())))
    return found


def tensors_of(batch: Any) -> list[Any]:
    return [leaf for leaf in leaves_of(batch) if isinstance(leaf, torch.Tensor)]


def samples_of(batch: Any) -> int:
    """How many samples: the first dimension of the first tensor, or the length of the list. 0: unknown."""
    for leaf in leaves_of(batch):
        shape = getattr(leaf, "shape", None)
        if shape is not None and len(shape) > 0:
            return int(shape[0])
    return len(batch) if isinstance(batch, (list, tuple, dict)) else 0


def bytes_of(batch: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors_of(batch))


def digest_of(batch: Any) -> int | None:
    """Equal for equal batches; bounded work, spread over the whole batch. None: nothing in it to compare."""
    result = None
    for leaf in leaves_of(batch):
        if isinstance(leaf, torch.Tensor):
            data = sample_bytes(leaf)
        elif type(leaf).__module__ == "numpy":
            data = leaf.reshape(-1)[:: max(1, leaf.size // ELEMENTS)].tobytes()
        else:
            data = repr(leaf)[:256].encode("utf-8", "replace")
        result = zlib.crc32(data, result or 0)
    return result


def sample_bytes(tensor: Any) -> bytes:
    with torch.no_grad():
        flat = tensor.detach()
        if flat.layout is not torch.strided or flat.is_quantized:
            return repr(flat.shape).encode()
        if flat.dim() > 1:
            flat = flat[:: -(-flat.shape[0] // ROWS) or 1]
            flat = flat.reshape(flat.shape[0], -1)
            flat = flat[:, :: -(-flat.numel() // ELEMENTS) or 1]
        elif flat.dim() == 1:
            flat = flat[:: -(-flat.shape[0] // ELEMENTS) or 1]
        flat = flat.cpu().contiguous()
        size = flat.numel() * flat.element_size()
        return repr(tensor.shape).encode() + (ctypes.string_at(flat.data_ptr(), size) if size else b"")


def clone(tensor: Any) -> Any:
    """A copy in the same kind of memory."""
    with torch.no_grad():
        if tensor.device.type == "cpu" and tensor.is_pinned():
            result = torch.empty_like(tensor, pin_memory=True)
            result.copy_(tensor)
            return result
        return tensor.detach().clone()


class Kept:
    """A batch handed out many times: containers made anew, tensors restored when the user changed them.

    Tensors are not copied for each step (that would be time the real loop does not spend): torch counts the
    changes in place of a tensor, and only a changed one is restored.
    """

    def __init__(self, batch: Any) -> None:
        with torch.inference_mode(False):
            tensors = tensors_of(batch)
            self._pristine = [clone(tensor) for tensor in tensors]
            self._working = [clone(tensor) for tensor in tensors]
            memo = {id(old): new for old, new in zip(tensors, self._working)}  # noqa: B905 (Python 3.8)
            self._batch = copy.deepcopy(batch, memo)
            self._versions = [version_of(tensor) for tensor in self._working]

    def again(self) -> Any:
        memo: dict[int, Any] = {}
        with torch.no_grad():
            for number, tensor in enumerate(self._working):
                if self._versions[number] is None or version_of(tensor) != self._versions[number]:
                    tensor.copy_(self._pristine[number])
                    self._versions[number] = version_of(tensor)
                memo[id(tensor)] = tensor.detach()  # so that requires_grad_() and .grad stay with the user
        return copy.deepcopy(self._batch, memo)

    def has_images(self) -> bool:
        """Whether there are images in it that a feedrate.Loader would lay out otherwise."""
        return any(is_planar(tensor) for tensor in self._working)

    def as_loaded(self) -> Kept:
        """The same with its images channels-last in memory, as a feedrate.Loader hands them over."""
        pairs = zip(self._working, self._pristine)  # noqa: B905 (Python 3.8)
        memo = {id(tensor): turn(old) if is_planar(tensor) else old for tensor, old in pairs}
        # On the CPU a step of a small ResNet then took 27 to 30 instead of 31 to 34 ms and, in a fresh
        # process, some 100 page faults instead of 1,800.
        return Kept(copy.deepcopy(self._batch, memo))


def is_planar(tensor: Any) -> bool:
    """Whether it is a batch of RGB images, one colour after the other in memory."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    is_image = tensor.dim() == 4 and tensor.shape[1] == 3
    is_image = is_image and (tensor.is_floating_point() or tensor.dtype is torch.uint8)
    return is_image and not tensor.is_contiguous(memory_format=torch.channels_last)


def turn(tensor: Any) -> Any:
    """A copy that is channels-last, in the same kind of memory."""
    with torch.no_grad():
        last = torch.channels_last
        result = torch.empty_like(tensor, memory_format=last, pin_memory=tensor.is_pinned())
        return result.copy_(tensor)


def version_of(tensor: Any) -> int | None:
    try:
        return int(tensor._version)
    except RuntimeError:  # tensors of inference mode do not count
        return None


LEAST_BATCHES = 12
MOST = 2.4  # times the least time
KEPT = 3  # batches for the replay
REMEMBERED = 2000  # index lists


def take_batches(source: Any, workers: int, note: Callable[[Any], None]) -> tuple[tuple[int, int], int]:
    """Take batches until they are enough: whole rounds of the workers, whose batches come in bunches.

    Return when it began and ended, and their number. Of a stream that ends earlier, all batches are measured.
    """
    size = max(1, workers)
    least = -(-LEAST_BATCHES // size) * size
    count, start_ns = 0, time.perf_counter_ns()
    while True:
        elapsed = (time.perf_counter_ns() - start_ns) / 1e9
        is_enough = elapsed >= session.pace_s and count >= least and count % size == 0
        if is_enough or elapsed >= MOST * session.pace_s:
            break
        try:
            batch = source.next_recorded()
        except StopIteration:
            break
        count += 1
        note(batch)
    return (start_ns, time.perf_counter_ns()), count


class Drained:
    """What DRAIN leaves for AGAIN and for the replay."""

    def __init__(self) -> None:
        self.lists: list[Any] = []
        self.digests: list[int | None] = []
        self.recent: Any = collections.deque(maxlen=KEPT)


def drain(drained: Drained, loader: Any, source: Any) -> None:
    """Take batches as fast as the loader gives them. What it had ready before does not count."""
    session.phase = layout.DRAIN

    def note(batch: Any) -> None:
        drained.recent.append(batch)
        if len(drained.lists) < REMEMBERED:
            asked = session.loaders.recent_indices(source.iterator)
            indices = loader_clone.indices_of_last(source.iterator, asked)
            if indices is not None:
                drained.lists.append(indices)
                drained.digests.append(digest_of(batch))

    discarded = discard(source.next, loader_clone.prefetched(loader), drained.recent.append)
    taken = take_batches(source, loader.num_workers, note)
    session.measured(layout.DRAIN, *taken, {"discarded": discarded})


def again(drained: Drained, loader: Any) -> None:
    """The samples of DRAIN once more, through new workers. Their start is recorded, but not measured."""
    session.phase = layout.AGAIN
    is_iterable = loader_clone.is_iterable_style(loader)
    if not is_iterable and not drained.lists:
        session.skip("the indices of the batches are not known", layout.AGAIN)
        return
    digests: list[int | None] = []

    def note(batch: Any) -> None:
        digests.append(digest_of(batch))

    copied = loader_clone.copy_loader(loader, loader.num_workers, None if is_iterable else drained.lists)
    source = loader_clone.Source(copied)
    try:
        discarded = discard(source.next_recorded, loader_clone.prefetched(loader), note)
        taken = take_batches(source, loader.num_workers, note)
        same = None if is_iterable else are_same(drained.digests, digests)
        session.measured(layout.AGAIN, *taken, {"same": same, "discarded": discarded})
    finally:
        source.close()


def drain_pack_loader(drained: Drained, loader: Any, iterator: Any) -> None:
    """DRAIN and AGAIN for feedrate's Loader, with what its threads computed: no other user computes now."""
    source = loader_clone.PackSource(loader, iterator)
    try:
        for phase in (layout.DRAIN, layout.AGAIN):
            session.phase = phase
            if phase == layout.AGAIN:
                source.again()
            digests: list[int | None] = []

            def note(batch: Any, digests: list[int | None] = digests) -> None:
                drained.recent.append(batch)
                digests.append(digest_of(batch))

            discarded = discard(source.next, loader_clone.prefetched(loader), drained.recent.append)
            began_s, read = time.process_time(), clock.read_io()[1]
            taken = take_batches(source, 1, note)
            detail: dict[str, Any] = {
                "discarded": discarded,
                "cpu_s": time.process_time() - began_s,
                "device_bytes": clock.read_io()[1] - read,
            }
            if phase == layout.AGAIN:
                detail["same"] = are_same(drained.digests, digests)
            drained.digests = digests
            session.measured(phase, *taken, detail)
    finally:
        source.close()


def discard(take: Callable[[], Any], count: int, note: Callable[[Any], None]) -> int:
    """Take what is ready or being made, for a time from the first batch on: workers may be starting."""
    deadline = float("inf")
    done = 0
    while done < count and time.monotonic() < deadline:
        try:
            note(take())
        except StopIteration:
            break
        done += 1
        deadline = min(deadline, time.monotonic() + session.pace_s)
    return done


def are_same(first: list[int | None], second: list[int | None]) -> bool | None:
    """Whether the same indices gave the same batches. Pairs in which one side is not known do not count."""
    pairs = zip(first, second)  # noqa: B905 (Python 3.8)
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return all(a == b for a, b in known) if known else None


def after_the_end(loader: Any) -> None:
    """Both, on copies of the loader: the user's code is over.

    Always with workers, which have a guard: the process itself has code to run at its exit, which may write.
    """
    drained = Drained()
    copied = loader_clone.copy_loader(loader, loader.num_workers or 1)
    source = loader_clone.Source(copied)
    try:
        drain(drained, copied, source)
    finally:
        source.close()
    again(drained, copied)
