# SPDX-License-Identifier: Apache-2.0
"""What the making of a sample shows: random numbers drawn, Pillow's calls, storage that goes along with it.

Draws: the states of the global generators, noted when a sample begins that stacks.py asked for; it looks at
the stack somewhere inside that sample. Calls: those of the first samples, with their arguments, for what
plain code in `__getitem__` does to images; the resize inside of a torchvision Resize is that one's. Views: a
worker hands over the storage under a tensor whole, not the part in use. Chunks: how HDF5 stores the arrays
that samples are read from.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, ClassVar

from .. import clock
from ..session import Noted, session
from ..wrapping import caller
from .describe import Budget, is_tensor, leaves_in

_SHORTEST_SAMPLE_NS = 200_000  # shorter ones are over before the looking thread is awake


class Sample:
    """The sample that is being made. Written by the thread that fetches, read by the one that looks."""

    number = 0
    is_open = False
    start_ns = 0
    usual_ns = 0
    is_wanted = False  # the next sample to begin shall note the random states
    watched = -1  # the number of the sample that did
    states: Any = None
    undrawn = 0  # watched samples on end that drew nothing
    draws_from_numpy = False  # one of them did
    wake: Any = None  # wakes the thread that looks


def begin_sample() -> None:
    """A sample begins: cheap, unless the looking thread asked for its random states."""
    now = clock.wall_ns()
    if Sample.is_open:
        _end_sample(now)
    Sample.number += 1
    Sample.start_ns = now
    Sample.is_open = True
    if Sample.is_wanted:
        Sample.is_wanted = False
        Sample.states = random_states()
        Sample.watched = Sample.number
        if Sample.usual_ns > _SHORTEST_SAMPLE_NS and Sample.wake is not None:
            Sample.wake()


def end_sample() -> None:
    if Sample.is_open:
        _end_sample(clock.wall_ns())


def _end_sample(now: int) -> None:
    Sample.is_open = False
    if Sample.number == Sample.watched:
        Sample.watched = -1
        states = random_states()
        Sample.undrawn = Sample.undrawn + 1 if states == Sample.states else 0
        Sample.draws_from_numpy = Sample.draws_from_numpy or states[_NUMPY] != Sample.states[_NUMPY]
    spent = now - Sample.start_ns
    Sample.usual_ns += (spent - Sample.usual_ns) >> 3 if Sample.usual_ns else spent


_NUMPY = 1  # its place among the states
_TWISTER_BYTES = 4 * 624 + 4  # its words, and the place among them


def random_states() -> tuple[Any, ...]:
    """Return what tells whether the global generators of random, numpy and torch have been used."""
    states: list[Any] = [None, None, None]
    module = sys.modules.get("random")
    if module is not None:
        _, words, gauss = module.getstate()
        states[0] = words[0], words[-1], gauss
    module = sys.modules.get("numpy.random.mtrand")
    if module is not None:
        states[_NUMPY] = _numpy_state(module)
    if session.torch is not None:
        states[2] = bytes(session.torch.default_generator.get_state().numpy())
    return tuple(states)


def _numpy_state(module: Any) -> Any:
    """Return that of numpy's global generator, read in place: numpy takes 50 microseconds to tell it.

    Only until a sample draws from it: of two normal numbers the second is what the first left over, and that
    is kept elsewhere.
    """
    bits: Any = getattr(getattr(module, "_rand", None), "_bit_generator", None)
    if type(bits).__name__ == "MT19937" and not Sample.draws_from_numpy:
        return ctypes.string_at(int(bits.ctypes.state_address), _TWISTER_BYTES)
    state = module.get_state(legacy=False)
    inner = state["state"]
    return inner.get("pos"), int(inner["key"][0]) if "key" in inner else str(inner), state.get("gauss")


_MOST_BATCHES = 12  # that are written down
_MOST_LOOKS = 24  # at batches that are as they should be, before it is enough
_MOST_TENSORS = 512
_LEAST_BYTES = 1 << 18  # beside the batch; less is not worth a word


class Views:
    """What the batches of this worker take with them."""

    def __init__(self) -> None:
        self.is_looking = True
        self._looks = 0
        self._written = 0

    def look(self, batch: Any) -> None:
        """A batch was made in a worker, and will be handed over."""
        self._looks += 1
        used, copied = weigh(leaves_in(batch, is_tensor, _MOST_TENSORS))
        if self._written or copied > 2 * used + _LEAST_BYTES:
            self._written += 1
            session.facts("views", used_bytes=used, copied_bytes=copied)
        self.is_looking = self._written < _MOST_BATCHES if self._written else self._looks < _MOST_LOOKS


def weigh(tensors: list[Any]) -> tuple[int, int]:
    """Return the bytes of tensors in memory, and those that are copied when another process gets them.

    A storage is copied once, whatever the number of its views; one in shared memory already is not copied.
    """
    used = copied = 0
    seen = set()
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout is not session.torch.strided:
            continue
        used += tensor.numel() * tensor.element_size()
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen and not storage.is_shared():
            seen.add(storage.data_ptr())
            copied += storage.nbytes()
    return used, copied


views = Views()


_MOST_SAMPLES = 24  # of a process and a loader
_MOST_CALLS = 40  # of a sample
_VALUES = 40  # of a call's arguments
_PLACED = ("PIL.crop", "PIL.resize")  # of these it matters whether a sample had drawn something before


class Calls:
    """The calls of this process. Written by the thread that fetches."""

    is_open = True  # False: enough were noted
    number = -1  # of the sample that is being noted
    samples: ClassVar[list[list[Any]]] = []
    noted: ClassVar[dict[Any, int]] = {}  # samples, by loader
    loader: Any = None  # the one that is asked, where this is the training process
    states: Any = None  # of the random generators, at the first call of the sample
    has_failed = False


def taken_from(loader: Any) -> None:
    """The training process asks this loader, and makes its samples itself where there are no workers."""
    if loader != Calls.loader:
        Calls.loader = loader
        Calls.is_open = not Calls.has_failed and Calls.noted.get(loader, 0) < _MOST_SAMPLES


def note_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note a call of Pillow's: its name, the image's size before it, the other arguments.

    `drawn`: a random number was drawn in this sample before it.
    """
    try:
        if not Sample.is_open:  # before the loop, in a collate_fn, or of many samples in one call
            return
        if Sample.number != Calls.number:
            noted = Calls.noted.get(Calls.loader, 0)
            if noted >= _MOST_SAMPLES:
                Calls.is_open = False
                return
            Calls.number = Sample.number
            Calls.noted[Calls.loader] = noted + 1
            Calls.samples.append([])
            Calls.states = random_states()
        calls = Calls.samples[-1]
        if len(calls) >= _MOST_CALLS:
            return
        image: Any = args[0] if args else None
        is_image = issubclass(type(image), sys.modules["PIL.Image"].Image)  # and no ImageEnhance
        budget = Budget(_VALUES)
        calls.append(
            {
                "call": name,
                "size": list(image.size) if is_image else None,
                "args": [budget.describe(one) for one in args[1:]] if is_image else [],
                "named": {word: budget.describe(one) for word, one in kwargs.items()} if is_image else {},
                **({"drawn": True} if name in _PLACED and random_states() != Calls.states else {}),
            }
        )
    except Exception as error:
        Calls.is_open = False
        Calls.has_failed = True
        session.note_error("calls", error)


def write_calls() -> None:
    """A fetch is over: write down what was noted in it."""
    if Calls.samples:
        samples, Calls.samples = Calls.samples, []
        Calls.number = -1
        session.facts("calls", samples=samples, loader=Calls.loader)


MOST_READS = 64  # of a process: the arrays of a sample are all among them
_NO_COMPRESSION = ("shuffle", "fletcher32", "scaleoffset")  # filters that unpack nothing


class Chunks:
    """What the first reads of this process asked HDF5 for."""

    reads = 0
    noted: ClassVar[set[tuple[str, str]]] = set()  # file and array


def note_chunks(array: Any, selection: Any) -> None:
    """Note how an array of h5py's is stored, at the first of the first reads that asks for it."""
    Chunks.reads += 1
    with Noted("chunks"):
        key = (os.path.abspath(os.fsdecode(array.file.filename)), str(array.name))
        if key in Chunks.noted:
            return
        Chunks.noted.add(key)
        filters = [name for name in getattr(array, "_filters", None) or () if name not in _NO_COMPRESSION]
        shape, chunks = array.shape, array.chunks
        session.facts(
            "chunked",
            file=key[0],
            array=key[1],
            shape=None if shape is None else list(shape),
            itemsize=int(array.dtype.itemsize),
            chunks=None if chunks is None else list(chunks),
            filter=str(filters[0]) if filters else None,
            rows=_count_rows(selection, shape),
            place=caller(),
        )


def _count_rows(selection: Any, shape: Any) -> int:
    """Return how many of an array's rows a selection asks for, as far as its form tells: else one."""
    first = selection[0] if isinstance(selection, tuple) and selection else selection
    if isinstance(first, slice) and shape:
        return max(len(range(*first.indices(shape[0]))), 1)
    return max(len(first), 1) if isinstance(first, list) else 1


def after_fork() -> None:
    Chunks.reads = 0
    Chunks.noted = set()
    Sample.is_open = Sample.is_wanted = False
    Sample.watched = -1
    Sample.undrawn = Sample.usual_ns = 0
    Calls.is_open = True
    Calls.number = -1
    Calls.samples = []
    Calls.noted = {}
    Calls.loader = None  # a worker has one alone
    views.__init__()  # type: ignore[misc]
