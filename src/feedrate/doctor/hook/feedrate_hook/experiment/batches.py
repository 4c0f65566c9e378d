# SPDX-License-Identifier: Apache-2.0
"""Batches kept in memory and handed out again and again, halves of them, and digests to tell them apart.

torch is never imported here: a batch of tensors comes from a process that has it.
"""

from __future__ import annotations

import copy
import ctypes
import sys
import zlib
from typing import Any

ROWS = 512  # of a tensor, for its digest: samples
ELEMENTS = 1 << 17  # of all its rows


def torch() -> Any:
    return sys.modules["torch"]


def leaves_of(batch: Any) -> list[Any]:
    """Tensors, arrays and plain values, in the order of the containers; of objects, their attributes."""
    found: list[Any] = []
    seen: set[int] = set()
    tensor = torch().Tensor
    stack = [batch]
    while stack and len(found) < 10000:
        thing = stack.pop()
        if isinstance(thing, tensor) or type(thing).__module__ == "numpy":
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
    return [leaf for leaf in leaves_of(batch) if isinstance(leaf, torch().Tensor)]


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
    result = 0
    seen_any = False
    for leaf in leaves_of(batch):
        if isinstance(leaf, torch().Tensor):
            data = sample_bytes(leaf)
        elif type(leaf).__module__ == "numpy":
            data = leaf.reshape(-1)[:: max(1, leaf.size // ELEMENTS)].tobytes()
        else:
            data = repr(leaf)[:256].encode("utf-8", "replace")
        seen_any = True
        result = zlib.crc32(data, result)
    return result if seen_any else None


def sample_bytes(tensor: Any) -> bytes:
    with torch().no_grad():
        flat = tensor.detach()
        if flat.layout is not torch().strided or flat.is_quantized:
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
    with torch().no_grad():
        if tensor.device.type == "cpu" and tensor.is_pinned():
            result = torch().empty_like(tensor, pin_memory=True)
            result.copy_(tensor)
            return result
        return tensor.detach().clone()


class Kept:
    """A batch handed out many times: containers made anew, tensors restored when the user changed them.

    Tensors are not copied for each step (that would be time the real loop does not spend): torch counts the
    changes in place of a tensor, and only a changed one is restored.
    """

    def __init__(self, batch: Any) -> None:
        with torch().inference_mode(False):
            tensors = tensors_of(batch)
            self._pristine = [clone(tensor) for tensor in tensors]
            self._working = [clone(tensor) for tensor in tensors]
            memo = {id(old): new for old, new in zip(tensors, self._working)}  # noqa: B905 (Python 3.8)
            self._batch = copy.deepcopy(batch, memo)
            self._versions = [version_of(tensor) for tensor in self._working]
        self.samples = samples_of(self._batch)

    def again(self) -> Any:
        memo: dict[int, Any] = {}
        with torch().no_grad():
            for number, tensor in enumerate(self._working):
                if self._versions[number] is None or version_of(tensor) != self._versions[number]:
                    tensor.copy_(self._pristine[number])
                    self._versions[number] = version_of(tensor)
                memo[id(tensor)] = tensor.detach()  # so that requires_grad_() and .grad stay with the user
        return copy.deepcopy(self._batch, memo)

    def half(self) -> Kept | None:
        """The first half of each tensor, as a new kept batch; None where that would make no sense."""
        sizes = {tensor.shape[0] if tensor.dim() else 0 for tensor in self._working}
        if len(sizes) != 1:
            return None
        size = sizes.pop()
        if size < 2:
            return None
        memo: dict[int, Any] = {}
        for number, tensor in enumerate(self._working):
            memo[id(tensor)] = clone(self._pristine[number][: size // 2])
        return Kept(shorten(copy.deepcopy(self._batch, memo), size, size // 2))

    def has_images(self) -> bool:
        """Whether there are images in it that a feedrate.Loader would lay out otherwise."""
        return any(is_planar(tensor) for tensor in self._working)

    def as_loaded(self) -> Kept:
        """The same with its images channels-last in memory, as a feedrate.Loader hands them over."""
        memo: dict[int, Any] = {}
        for tensor, pristine in zip(self._working, self._pristine):  # noqa: B905 (Python 3.8)
            memo[id(tensor)] = turn(pristine) if is_planar(tensor) else pristine
        # On the CPU a step of a small ResNet then took 27 to 30 instead of 31 to 34 ms and, in a fresh
        # process, some 100 page faults instead of 1,800.
        return Kept(copy.deepcopy(self._batch, memo))


def is_planar(tensor: Any) -> bool:
    """Whether it is a batch of RGB images, one colour after the other in memory."""
    is_image = tensor.layout is torch().strided and tensor.device.type == "cpu"
    is_image = is_image and tensor.dim() == 4 and tensor.shape[1] == 3
    is_image = is_image and (tensor.is_floating_point() or tensor.dtype is torch().uint8)
    return is_image and not tensor.is_contiguous(memory_format=torch().channels_last)


def turn(tensor: Any) -> Any:
    """A copy that lies channels-last, in the same kind of memory."""
    with torch().no_grad():
        last = torch().channels_last
        result = torch().empty_like(tensor, memory_format=last, pin_memory=tensor.is_pinned())
        return result.copy_(tensor)


def version_of(tensor: Any) -> int | None:
    try:
        return int(tensor._version)
    except RuntimeError:  # tensors of inference mode do not count
        return None


def shorten(thing: Any, size: int, half: int) -> Any:
    """Lists of plain values beside the tensors: names, labels."""
    if isinstance(thing, list):
        if len(thing) == size and all(isinstance(part, (str, bytes, int, float)) for part in thing):
            return thing[:half]
        return [shorten(part, size, half) for part in thing]
    if type(thing) is tuple:
        return tuple(shorten(part, size, half) for part in thing)
    if type(thing) is dict:
        return {key: shorten(part, size, half) for key, part in thing.items()}
    return thing
