# SPDX-License-Identifier: Apache-2.0
"""NVIDIA DALI's iterators: loaders that are no DataLoader. Their waits are seen, their stages are not.

An iterator of DALI is its own loader; its pipelines read, decode and augment in threads of their own and on
the GPU, in code that Python never enters.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .parts import here
from .session import session

NAME = "DALI"
CLASSES = ("DALIGenericIterator", "DALIRaggedIterator")  # others, as for classification, derive from these


class Found:
    classes: ClassVar[tuple[Any, ...]] = ()  # once they are imported


def is_dali(loader: Any) -> bool:
    return bool(Found.classes) and isinstance(loader, Found.classes)


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
