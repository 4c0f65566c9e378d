# SPDX-License-Identifier: Apache-2.0
"""Proves a loader before it is taken: two forked children make the same samples, one of them with recipes.

Each child has the process's random state, counters and generators as they are at this moment, and takes them
with it when it ends. Nothing of the script's own process changes (apart.py).
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import os
import pickle
import select
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from feedrate.run.inside import counters, switch
from feedrate.run.inside.apart import take_apart

SAMPLES, SECONDS = 64, 2.0
LEAST_GAIN = 1.05
_CHUNK = 16  # samples that are collated at a time
_GRACE_S = 10.0  # beyond its time, for a sample that takes long
_DEEPEST = 20  # of objects within objects
_MOST_SAID = 200  # characters of an error


class Verdict(str, enum.Enum):
    """How the proof of a loader ended."""

    EQUAL = "equal"
    DIFFERS = "differs"
    RESTLESS = "restless"
    NO_GAIN = "no-gain"
    NO_IMAGES = "no-images"
    NOTHING_MADE = "nothing-made"
    ENDED = "ended"
    NOT_POSSIBLE = "not-possible"

    @property
    def words(self) -> str:
        return _WORDS[self]

    @property
    def is_good(self) -> bool:
        return self in (Verdict.EQUAL, Verdict.NO_GAIN)

    @property
    def is_fault(self) -> bool:
        """Whether the loader could not be taken, where it might have been expected."""
        return not self.is_good and self is not Verdict.NO_IMAGES


_WORDS = {
    Verdict.EQUAL: "equal to the last bit",
    Verdict.DIFFERS: "samples differ from the bare run's",
    Verdict.RESTLESS: "its samples differ from one run to the next, so that nothing can be proved",
    Verdict.NO_GAIN: "less than 5 % of the CPU time would be saved",
    Verdict.NO_IMAGES: "it reads no JPEG through Pillow that the kernel could make",
    Verdict.NOTHING_MADE: "no sample could be made in the time of the proof",
    Verdict.ENDED: "the process of the proof ended early",
    Verdict.NOT_POSSIBLE: "a loader of this kind cannot be proved",
}


@dataclass
class Proof:
    """What was seen.

    Attributes:
        gain: CPU time a sample, bare over with recipes, once entry points are kept; `gain_first`: before.
        differing: position of the first sample that differs; `sample`: its name, or why none could be made.
        left: images left to Pillow, by reason.
    """

    verdict: Verdict
    samples: int = 0
    gain: float = 1.0
    gain_first: float = 1.0
    differing: int | None = None
    sample: str = ""
    left: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def explain(verdict: Verdict, sample: str, left: Mapping[str, int]) -> str:
    """Return a verdict in words, with the sample that differs, or what kept the kernel from every image."""
    if verdict is Verdict.NO_IMAGES:
        sample = ", ".join(f"{count} {counters.Left(reason).words}" for reason, count in left.items())
    return f"{verdict.words}: {sample}" if sample else verdict.words


@dataclass
class _Made:
    """What a child made. Of each chunk: samples, CPU time and the part of it for scans, in nanoseconds."""

    digests: list[str] = field(default_factory=list)
    indices: list[Any] = field(default_factory=list)
    chunks: list[tuple[int, int, int]] = field(default_factory=list)
    failed: int = 0
    error: str = ""
    taken: float = 0.0
    left: dict[str, int] = field(default_factory=dict)
    is_whole: bool = False


def prove(loader: Any, most: int = SAMPLES, seconds: float = SECONDS) -> Proof:
    """Make so many samples of a loader both ways, or as many as fit into the time, and compare them."""
    started = time.monotonic()
    if not hasattr(os, "fork"):
        return Proof(Verdict.NOT_POSSIBLE)
    bare, lazy = _make_both(loader, (False, True), most, seconds)
    proof = _compare(bare, lazy)
    if proof.verdict is Verdict.DIFFERS:
        again, once_more = _make_both(loader, (False, False), most, seconds)
        if any(one != other for one, other in zip(again.digests, once_more.digests)):  # noqa: B905
            proof = Proof(Verdict.RESTLESS, proof.samples)
        else:
            proof.sample = _name_sample(loader, bare.indices, proof.differing or 0)
    proof.seconds = time.monotonic() - started
    return proof


def _compare(bare: _Made, lazy: _Made) -> Proof:
    count = min(len(bare.digests), len(lazy.digests))
    for number in range(count):
        if bare.digests[number] != lazy.digests[number]:
            return Proof(Verdict.DIFFERS, count, differing=number, left=lazy.left)
    if bare.is_whole and not lazy.is_whole:
        return Proof(Verdict.ENDED, count)
    if count <= min(bare.failed, lazy.failed):
        return Proof(Verdict.NOTHING_MADE, count, sample=bare.error)
    if not lazy.taken:
        return Proof(Verdict.NO_IMAGES, count, left=lazy.left)
    bare_ns, _ = _mean_times(bare)
    lazy_ns, scan_ns = _mean_times(lazy)
    first, later = bare_ns / max(lazy_ns, 1.0), bare_ns / max(lazy_ns - scan_ns, 1.0)
    verdict = Verdict.EQUAL if later >= LEAST_GAIN else Verdict.NO_GAIN
    return Proof(verdict, count, later, first, left=lazy.left)


def _mean_times(made: _Made) -> tuple[float, float]:
    """Return CPU time a sample and the part of it for scans; the first chunk also pays for what is begun."""
    chunks = made.chunks[1:] or made.chunks
    samples = max(sum(count for count, _, _ in chunks), 1)
    return sum(ns for _, ns, _ in chunks) / samples, sum(ns for _, _, ns in chunks) / samples


def _name_sample(loader: Any, indices: list[Any], number: int) -> str:
    """Return a sample's index, and the file where the dataset lists it as torchvision's folders do."""
    if number >= len(indices) or indices[number] == "None":  # an IterableDataset is asked for the next
        return f"sample {number}"
    index = indices[number]
    try:
        row = loader.dataset.samples[index]
        return f"sample {index} ({row[0]})"
    except Exception:  # of any kind: it is the user's code
        return f"sample {index}"


def _make_both(loader: Any, ways: tuple[bool, bool], most: int, seconds: float) -> tuple[_Made, _Made]:
    children = [_fork(loader, is_lazy, most, seconds) for is_lazy in ways]
    try:
        texts = _read(dict(children), time.monotonic() + seconds + _GRACE_S)
        first, second = (_parse(texts[descriptor]) for descriptor, _ in children)
        return first, second
    finally:
        for descriptor, pid in children:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)


def _fork(loader: Any, is_lazy: bool, most: int, seconds: float) -> tuple[int, int]:
    """Return the descriptor that a child writes to, and its number."""
    read, write = os.pipe()
    chance: Any = sys.modules.get("random")
    state = chance.getstate() if chance is not None else None  # Python seeds it anew in a child
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads that a fork leaves behind: torch's workers do the same
        pid = os.fork()
    if pid:
        os.close(write)
        return read, pid
    status = 1
    try:
        os.close(read)
        if state is not None:
            chance.setstate(state)
        _work(loader, is_lazy, most, seconds, write)
        status = 0
    finally:
        os._exit(status)


def _read(children: Mapping[int, int], until: float) -> dict[int, bytes]:
    texts = dict.fromkeys(children, b"")
    open_ones = set(children)
    while open_ones and (left := until - time.monotonic()) > 0:
        for descriptor in select.select(open_ones, [], [], left)[0]:
            data = os.read(descriptor, 1 << 16)
            texts[descriptor] += data
            if not data:
                open_ones.remove(descriptor)
    return texts


def _parse(text: bytes) -> _Made:
    made = _Made()
    for line in text.split(b"\n")[:-1]:
        told = json.loads(line)
        if told.get("end"):
            made.is_whole = True
            break
        made.taken, made.left = told["taken"], told["left"]
        made.digests += told["digests"]
        made.indices += told["indices"]
        made.failed += told["failed"]
        made.error = made.error or told["error"]
        made.chunks.append((len(told["digests"]), told["cpu_ns"], told["scan_ns"]))
    return made


def _work(loader: Any, is_lazy: bool, most: int, seconds: float, write: int) -> None:
    """Make samples in a child, unheard, and write what they are."""
    switch.is_proof = True
    take_apart(write)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    until = time.monotonic() + seconds
    fetcher = _make_fetcher(loader)
    mine = counters.here.current = counters.open_counters("", 0)
    for asked in _list_chunks(loader, most):
        size = len(asked) if isinstance(asked, list) else 1
        scan_before, began = mine.get("scan_ns"), time.process_time_ns()
        failed, said = 0, ""
        switch.here.is_on = is_lazy
        try:
            batch = fetcher.fetch(asked)
        except StopIteration:
            break
        except Exception as error:
            batch, failed = f"{type(error)}: {error}", size
            said = f"{type(error).__name__}: {error}"[:_MOST_SAID]
        switch.here.is_on = False
        left = {reason.value: int(mine.get(f"left_{reason.value}")) for reason in counters.Left}
        line = {
            "cpu_ns": time.process_time_ns() - began, "scan_ns": int(mine.get("scan_ns") - scan_before),
            "digests": _digest(batch, size), "failed": failed, "error": said,
            "indices": [one if isinstance(one, int) else str(one) for one in _as_list(asked, size)],
            "taken": mine.get("taken"), "left": {name: n for name, n in left.items() if n},
        }  # fmt: skip
        os.write(write, json.dumps(line).encode() + b"\n")
        if time.monotonic() > until:
            break
    os.write(write, b'{"end": true}\n')


def _as_list(asked: Any, size: int) -> list[Any]:
    return list(asked) if isinstance(asked, list) else [asked] * size


def _make_fetcher(loader: Any) -> Any:
    """Return what a worker of this loader fetches with, after what torch does to begin one."""
    import torch
    from torch.utils import data
    from torch.utils.data._utils import worker

    torch.set_num_threads(1)
    # torch makes numpy's random module with the seed of a worker; one that is made here would have its own.
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" not in sys.modules:
        numpy.random.seed(0)
    if loader.num_workers:
        worker._worker_info = worker.WorkerInfo(
            id=0, num_workers=loader.num_workers, seed=torch.initial_seed(), dataset=loader.dataset
        )
        if loader.worker_init_fn is not None:
            loader.worker_init_fn(0)
    kinds: Any = data.dataloader._DatasetKind
    return kinds.create_fetcher(
        loader._dataset_kind, loader.dataset, loader._auto_collation, loader.collate_fn, loader.drop_last
    )


def _list_chunks(loader: Any, most: int) -> Iterator[Any]:
    """Yield what the sampler asks for, some samples at a time, and so many of them."""
    for asked in loader._index_sampler:
        if isinstance(asked, list):
            for first in range(0, min(len(asked), most), _CHUNK):
                yield asked[first : min(first + _CHUNK, most)]
            most -= len(asked)
        else:
            yield asked
            most -= 1
        if most <= 0:
            break


def _digest(batch: Any, size: int) -> list[str]:
    """Return a checksum of each sample of a batch, all of them with what belongs to no single one."""
    digest = _Digest(size)
    digest.walk(batch, 0)
    rest = digest.whole.digest()
    for row in digest.rows:
        row.update(rest)
    return [row.hexdigest() for row in digest.rows]


class _Digest:
    """Of a batch: `rows` get what belongs to one sample, `whole` what belongs to no single one."""

    def __init__(self, size: int) -> None:
        self.whole = hashlib.blake2b(digest_size=12)
        self.rows = [hashlib.blake2b(digest_size=12) for _ in range(size)]
        self._seen: dict[int, Any] = {}  # objects, so that each is walked once

    def walk(self, value: Any, depth: int) -> None:
        whole = self.whole
        whole.update(f"{type(value).__module__}.{type(value).__qualname__}".encode())
        if depth > _DEEPEST or value is None:
            return
        if isinstance(value, (str, bytes, bytearray, int, float, complex)):
            whole.update(repr(value).encode("utf-8", "surrogatepass"))
        elif isinstance(value, sys.modules["torch"].Tensor):
            self._walk_tensor(value, depth)
        elif hasattr(value, "__array_interface__"):
            import numpy as np

            array = np.asarray(value)
            facts = (array.dtype.str, array.shape, array.strides, getattr(value, "mode", ""))
            whole.update(repr(facts).encode())
            whole.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
        elif isinstance(value, Mapping):
            for name, one in value.items():
                whole.update(repr(name).encode("utf-8", "surrogatepass"))
                self.walk(one, depth + 1)
        elif isinstance(value, (list, tuple, set, frozenset)):
            whole.update(b"%d" % len(value))
            for one in sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value:
                self.walk(one, depth + 1)
        elif hasattr(value, "__dict__"):
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self.walk(vars(value), depth + 1)
        else:
            with contextlib.suppress(Exception):  # of any kind: it is the user's code
                whole.update(pickle.dumps(value))

    def _walk_tensor(self, tensor: Any, depth: int) -> None:
        torch = sys.modules["torch"]
        self.whole.update(repr((tensor.dtype, tuple(tensor.shape), tensor.device)).encode())
        if vars(tensor):  # a box's format
            self.walk(vars(tensor), depth + 1)
        plain = tensor.detach()
        if plain.layout is torch.strided:
            self.whole.update(repr(plain.stride()).encode())
            self._add_rows(plain.cpu().as_subclass(torch.Tensor))
        else:
            self.whole.update(repr(plain).encode())

    def _add_rows(self, tensor: Any) -> None:
        """Add a tensor's bytes: a row of them to each sample, where it has as many."""
        uint8 = sys.modules["torch"].uint8

        def read(part: Any) -> bytes:
            flat = part.contiguous().reshape(-1)
            return bytes(flat.view(uint8).numpy().data) if flat.numel() else b""

        if tensor.dim() and tensor.shape[0] == len(self.rows):
            for row, part in zip(self.rows, tensor):  # noqa: B905 (Python 3.8 has no strict)
                row.update(read(part))
        else:
            self.whole.update(read(tensor))
