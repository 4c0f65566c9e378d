# SPDX-License-Identifier: Apache-2.0
"""feedrate's own Loader: what it is, and what its stages did so far.

Its iterators are watched as a DataLoader's are (loader.py, loaders.py). It makes batches in threads of this
process, so there are no fetches to record: `stats()`, noted now and then, says where its time went. The
script's feedrate may be another one than the doctor's; what it does not tell is None.

NVIDIA DALI's iterators: loaders that are no DataLoader. Their waits are seen, their stages are not.

An iterator of DALI is its own loader; its pipelines read, decode and augment in threads of their own and on
the GPU, in code that Python never enters.
"""

from __future__ import annotations

import copy
import gc
import sys
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from .. import layout
from ..session import session
from ..wrapping import name_of
from .parts import here

CLASS = "feedrate.Loader"
_FRAMEWORKS = {"feedrate.tensorflow": "TensorFlow", "feedrate.jax": "JAX"}
_DEEPEST = 12  # frames between iter() and the adapter that called it
_MOST_NOTES = 300
_MOST_ARRAYS = 32


class FoundLoader:
    loader: ClassVar[Any] = None  # the class, once it is imported


def is_pack_loader(loader: Any) -> bool:
    return FoundLoader.loader is not None and isinstance(loader, FoundLoader.loader)


# -- what it is --------------------------------------------------------------------------------------------


def describe_pack_loader(loader: Any, name: str, made_at: str) -> dict[str, Any]:
    """Return the facts of a Loader, under the names of a DataLoader's where there are such."""
    options = getattr(loader, "_options", None)
    pack = getattr(getattr(loader, "_resources", None), "pack", None)
    transform, image = getattr(options, "transform", None), getattr(options, "image", None)
    cache, device = getattr(loader, "_cache", None), getattr(options, "device", None)
    return {
        "loader": name,
        "class": CLASS,
        "made_at": made_at,
        "dataset": "feedrate pack",
        "dataset_len": _count(pack, getattr(loader, "_subset", None)),
        "batch_size": getattr(options, "batch_size", None),
        "drop_last": getattr(options, "drop_last", None),
        "shuffle": getattr(options, "shuffle", None),
        "num_workers": 0,
        "iterable": False,
        "threads": getattr(loader, "_threads", None),
        "threads_given": getattr(options, "threads", None) is not None,
        "prefetch": getattr(loader, "_prefetch", None),
        "pack": getattr(pack, "name", None),
        "remote": is_fetching(loader),
        "scratch": getattr(options, "scratch", None),
        "cache": None if cache is None else repr(cache),
        "device": None if device is None else str(device),
        "output": getattr(loader, "output", None),
        "transform": None if transform is None else name_of(transform),
        "image": None if image is None else type(image).__name__,
        "framework": _find_framework(),
    }


def _count(pack: Any, subset: Any) -> int | None:
    try:
        return len(subset if subset is not None else pack)
    except Exception:
        return None


def is_fetching(loader: Any) -> bool:
    """Whether the pack is remote, or on its way to scratch: threads of the loader then fetch and write."""
    pack = getattr(getattr(loader, "_resources", None), "pack", None)
    return hasattr(pack, "fetch_stats")


def _find_framework() -> str | None:
    """Return the framework whose adapter is about to iterate the loader; None: the user's own code is."""
    frame: Any = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None:
            return None
        framework = _FRAMEWORKS.get(frame.f_globals.get("__name__", ""))
        if framework is not None:
            return framework
        frame = frame.f_back
    return None


def leave_alone(facts: dict[str, Any]) -> None:
    """There are no experiments where torch does not train: no step of another framework can be fed by us."""
    framework = facts.get("framework")
    if framework is not None or session.torch is None:
        whose = f"{framework} trains" if framework is not None else "torch is not used"
        skip_experiments(f"{whose}, and experiments need a loop of torch's")


def skip_experiments(why: str) -> None:
    """This run has none of them, unless it had none anyway."""
    if not session.is_passive:
        session.is_passive = True
        for phase in range(layout.DRAIN, len(layout.PHASES)):
            session.facts("skipped", phase=phase, why=why)


# -- what its stages did -----------------------------------------------------------------------------------


class Notes:
    """When the statistics of one loader are noted: after the warm-up, then ever more rarely."""

    def __init__(self) -> None:
        self.taken = 0
        self._next = 0
        self._written = 0

    def gave(self, loader: Any, name: str) -> None:
        """A batch was given to the user's loop."""
        self.taken += 1
        if self.taken >= self._next:
            # The first after one batch, for short runs; then when the steps that count begin.
            warmup = max(int(session.settings.get("warmup") or 10), 2)
            self._next = warmup if self.taken < warmup else 2 * self.taken
            self.write(loader, name)

    def write(self, loader: Any, name: str) -> None:
        if loader is None or self._written >= _MOST_NOTES:
            return
        self._written += 1
        try:
            session.facts("loader-stats", loader=name, taken=self.taken, **read_stats(loader))
        except Exception as error:
            session.trouble("stats", error)


def read_stats(loader: Any) -> dict[str, Any]:
    """Return what a Loader did since it was made, as plain numbers."""
    stats = loader.stats()
    fact: dict[str, Any] = {
        "stages": {stage.name: stage.busy_s for stage in stats.stages},
        "cpu_s": time.process_time(),
    }
    for field in ("batches", "samples", "by_pillow", "bytes_read", "consumer_waited_s", "makers_waited_s"):
        fact[field] = getattr(stats, field, None)
    fact["pillow_reasons"] = dict(getattr(stats, "pillow_reasons", None) or {})
    fetch, cache = getattr(stats, "fetch", None), getattr(stats, "cache", None)
    if fetch is not None:
        for field in ("requests", "bytes_fetched", "values_from_scratch", "values_from_source"):
            fact[field] = getattr(fetch, field, None)
    if cache is not None:
        fact["cached_share"], fact["hit_rate"] = cache.cached_share, cache.hit_rate
    return fact


# -- its batches -------------------------------------------------------------------------------------------


def arrays_of(batch: Any, found: list[Any] | None = None, depth: int = 0) -> list[Any]:
    """Return the tensors and arrays of a batch, of torch or numpy."""
    found = [] if found is None else found
    if depth > 4 or len(found) >= _MOST_ARRAYS:
        return found
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        found.append(batch)
    elif isinstance(batch, (list, tuple)):
        for element in batch[:_MOST_ARRAYS]:
            arrays_of(element, found, depth + 1)
    elif isinstance(batch, Mapping):
        for element in list(batch.values())[:_MOST_ARRAYS]:
            arrays_of(element, found, depth + 1)
    return found


def count_samples(batch: Any) -> int:
    """Return how many samples a batch holds: the first dimension of its arrays, or the length of a column."""
    sizes = [int(array.shape[0]) for array in arrays_of(batch) if len(array.shape)]
    if sizes:
        return max(set(sizes), key=sizes.count)
    column = batch[0] if isinstance(batch, tuple) and batch else batch
    return len(column) if isinstance(column, (list, tuple)) else 1


def describe_batch(batch: Any) -> list[dict[str, Any]]:
    torch = session.torch
    cuda = torch is not None and torch.cuda.is_initialized()
    described = []
    for array in arrays_of(batch):
        is_tensor = torch is not None and isinstance(array, torch.Tensor)
        described.append(
            {
                "shape": list(array.shape),
                "dtype": str(array.dtype).replace("torch.", ""),
                "bytes": array.numel() * array.element_size() if is_tensor else int(array.nbytes),
                "pinned": bool(is_tensor and cuda and array.device.type == "cpu" and array.is_pinned()),
                "device": str(array.device) if is_tensor else "cpu",
            }
        )
    return described


# -- for the experiments -----------------------------------------------------------------------------------


class PackSource:
    """Batches of the user's Loader, epoch after epoch: behind the guard its state is nobody's any more.

    `again` goes back to where it began, so that the same samples come once more.
    """

    def __init__(self, loader: Any, iterator: Any) -> None:
        self._loader = loader
        self._state = copy.deepcopy(loader.state_dict())
        self.iterator = iterator if len(iterator) else iter(loader)

    def next(self) -> Any:
        """A batch, without a record."""
        return self._next(unhooked)

    def next_recorded(self) -> Any:
        return self._next(lambda iterator: session.loaders.take(iterator, unhooked))

    def _next(self, take: Any) -> Any:
        try:
            return take(self.iterator)
        except StopIteration:
            self.iterator = iter(self._loader)
            return take(self.iterator)

    def again(self) -> None:
        self.close()
        self._loader.load_state_dict(self._state)
        self.iterator = iter(self._loader)

    def close(self) -> None:
        shut_down(self.iterator)


def unhooked(iterator: Any) -> Any:
    """A batch without the hook around it. What the loader calls there (on_bad_sample) is the user's."""
    method: Any = type(iterator).__next__
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    before, here.taking = here.taking, iterator
    try:
        if session.scope is None:
            return method(iterator)
        with session.scope.lent():
            return method(iterator)
    finally:
        here.taking = before


def close_fetching() -> None:
    """The process ends without its usual exit: let loaders of remote packs remove their temporary folders."""
    if FoundLoader.loader is None:
        return
    for thing in gc.get_objects():
        # type(), not isinstance(): lazy proxies answer __class__ by running code.
        if issubclass(type(thing), FoundLoader.loader) and is_fetching(thing):
            thing.close()


def shut_down(iterator: Any) -> None:
    """Let the threads of an iteration end: they would make batches beside what is measured next."""
    end = getattr(iterator, "end", None)
    if end is not None:
        end("the doctor feeds this loop now")


NAME = "DALI"
CLASSES = ("DALIGenericIterator", "DALIRaggedIterator")  # others, as for classification, derive from these


class FoundDali:
    classes: ClassVar[tuple[Any, ...]] = ()  # once they are imported


def is_dali(loader: Any) -> bool:
    return bool(FoundDali.classes) and isinstance(loader, FoundDali.classes)


def describe_dali(loader: Any, name: str, made_at: str) -> dict[str, Any]:
    """Return the facts of an iterator, under the names of a DataLoader's where there are such."""
    pipelines = getattr(loader, "_pipes", None) or [None]
    return {
        "loader": name,
        "class": type(loader).__name__,
        "made_at": made_at,
        "opaque": NAME,
        "dataset": "DALI pipeline",
        "dataset_len": _positive(getattr(loader, "_size", None)),
        "batch_size": getattr(loader, "batch_size", None),
        "num_workers": 0,
        "iterable": True,
        "pipelines": len(pipelines),
        "pipeline_threads": getattr(pipelines[0], "num_threads", None),
        "prefetch": _queue_depth(pipelines[0]),
    }


def _positive(size: Any) -> int | None:
    return size if isinstance(size, int) and size > 0 else None


def _queue_depth(pipeline: Any) -> int | None:
    depth = getattr(pipeline, "prefetch_queue_depth", None)  # of CPU and GPU stages: a mapping
    depths = list(depth.values()) if isinstance(depth, dict) else [depth]
    return min((one for one in depths if isinstance(one, int)), default=None)


def made_unseen(original: Any) -> Any:
    """An iterator takes its first batch while it is made: that is not asked for by the training yet."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        before, here.taking = here.taking, self
        try:
            original(self, *args, **kwargs)
        finally:
            here.taking = before
        try:
            session.loaders.note_made(self)
        except Exception as error:
            session.trouble("DALI", error)

    return __init__
