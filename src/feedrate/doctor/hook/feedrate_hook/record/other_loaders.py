# SPDX-License-Identifier: Apache-2.0
"""feedrate's own Loader, where the script trains with one.

Its iterators are watched as a DataLoader's are (loaders.py). It makes batches in threads of this process, so
there are no fetches to record: `stats()`, noted now and then, says where its time went. The script's feedrate
may be another one than the doctor's; what it does not tell is None.
"""

from __future__ import annotations

import sys
from typing import Any

from .. import layout
from ..session import Noted, session
from ..wrapping import living, name_of
from .describe import leaves_in, length_of, usual_size

CLASS = "feedrate.Loader"
_FRAMEWORKS = {"feedrate.tensorflow": "TensorFlow", "feedrate.jax": "JAX"}
_DEEPEST = 12  # frames between iter() and the adapter that called it
_MOST_NOTES = 300


def is_pack_loader(loader: Any) -> bool:
    kind = _loader_class()
    return kind is not None and isinstance(loader, kind)


def _loader_class() -> Any:
    """Return the class of the script's feedrate; None: it is not imported."""
    return getattr(sys.modules.get("feedrate.loader.loader"), "Loader", None)


def describe_pack_loader(loader: Any, name: str, made_at: str) -> dict[str, Any]:
    """Return the facts of a Loader, under the names of a DataLoader's where there are such."""
    options = getattr(loader, "_options", None)
    pack = getattr(getattr(loader, "_resources", None), "pack", None)
    transform, image = getattr(options, "transform", None), getattr(options, "image", None)
    cache, device = getattr(loader, "_cache", None), getattr(options, "device", None)
    subset = getattr(loader, "_subset", None)
    return {
        "loader": name,
        "class": CLASS,
        "made_at": made_at,
        "dataset": "feedrate pack",
        "dataset_len": length_of(pack if subset is None else subset),
        **{name: getattr(options, name, None) for name in ("batch_size", "drop_last", "shuffle", "scratch")},
        "num_workers": 0,
        "iterable": False,
        "threads": getattr(loader, "_threads", None),
        "threads_given": getattr(options, "threads", None) is not None,
        "prefetch": getattr(loader, "_prefetch", None),
        "pack": getattr(pack, "name", None),
        "remote": is_fetching(loader),
        "cache": None if cache is None else repr(cache),
        "device": None if device is None else str(device),
        "output": getattr(loader, "output", None),
        "transform": None if transform is None else name_of(transform),
        "image": None if image is None else type(image).__name__,
        "framework": _find_framework(),
    }


def is_fetching(loader: Any) -> bool:
    """Whether the pack is remote, or on its way to scratch: threads of the loader then fetch and write."""
    pack = getattr(getattr(loader, "_resources", None), "pack", None)
    return hasattr(pack, "fetch_stats")


def _find_framework() -> str | None:
    """Return the framework whose adapter is about to iterate the loader; None: the user's own code is."""
    frame: Any = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None or frame.f_globals.get("__name__", "") in _FRAMEWORKS:
            break
        frame = frame.f_back
    return None if frame is None else _FRAMEWORKS.get(frame.f_globals.get("__name__", ""))


def leave_alone(facts: dict[str, Any]) -> None:
    """There are no experiments where torch does not train: no step of another framework can be fed by us."""
    framework = facts.get("framework")
    if framework is not None or session.torch is None:
        whose = f"{framework} trains" if framework is not None else "torch is not used"
        if not session.is_passive:
            session.is_passive = True
            session.skip(f"{whose}, and experiments need a loop of torch's", *layout.EXPERIMENTS)


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
        with Noted("stats"):
            session.facts("loader-stats", loader=name, taken=self.taken, **read_stats(loader))


def read_stats(loader: Any) -> dict[str, Any]:
    """Return what a Loader did since it was made, as plain numbers."""
    stats = loader.stats()
    fact: dict[str, Any] = {"stages": {stage.name: stage.busy_s for stage in stats.stages}}
    for field in ("batches", "samples", "by_pillow", "bytes_read", "consumer_waited_s", "makers_waited_s"):
        fact[field] = getattr(stats, field, None)
    fact["pillow_reasons"] = dict(getattr(stats, "pillow_reasons", None) or {})
    fetch, cache = getattr(stats, "fetch", None), getattr(stats, "cache", None)
    if fetch is not None:
        for field in ("requests", "bytes_fetched"):
            fact[field] = getattr(fetch, field, None)
    if cache is not None:
        fact["cached_share"] = cache.cached_share
    return fact


def arrays_of(batch: Any) -> list[Any]:
    """Return the tensors and arrays of a batch, of torch or numpy."""
    return leaves_in(batch, lambda thing: hasattr(thing, "shape") and hasattr(thing, "dtype"))


def count_samples(batch: Any) -> int:
    """Return how many samples a batch holds: the first dimension of its arrays, or the length of a column."""
    column = batch[0] if isinstance(batch, tuple) and batch else batch
    size = usual_size(arrays_of(batch))
    return size if size is not None else len(column) if isinstance(column, (list, tuple)) else 1


def close_fetching() -> None:
    """The process ends without its usual exit: let loaders of remote packs remove their temporary folders."""
    for loader in filter(is_fetching, living(_loader_class())):
        loader.close()
