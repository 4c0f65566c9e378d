# SPDX-License-Identifier: Apache-2.0
"""Batches of a loader as JAX arrays: the next ones are on their way to the device while this one is used."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from feedrate.errors import MissingExtra
from feedrate.format.pack import Pack
from feedrate.loader.arguments import check_whole
from feedrate.loader.loader import Loader, open_for
from feedrate.loader.ranks import Rank


def batches(
    pack: str | os.PathLike[str] | Pack | Loader, *, device: Any = None, ahead: int = 2, **options: Any
) -> Iterator[Any]:
    """Yield the batches of one epoch, arrays on the device; lists (keys, texts, boxes) stay what they are.

    Images are uint8 N,H,W,C (uint16 where `depth` says so): turn them to float on the device. JAX keeps 32
    bits of int64 and float64 unless `jax_enable_x64` is set.

    Args:
        pack: the pack's folder; or a `Loader` with `output="numpy"`, to go through several epochs.
        device: a device or a sharding, as `jax.device_put` takes it; None: JAX's default.
        ahead: batches that are put on the device before they are asked for.
        options: what `Loader` takes. Where JAX has several processes and no `rank` is given, each gets its
            part, as `jax.process_index()` says.

    Raises:
        MissingExtra: JAX is not installed.
        UsageError: `ahead` is below 1, or the loader gives torch tensors.
    """
    jax = _import_jax()
    check_whole("ahead", ahead, least=1)
    loader = open_for("jax", _find_rank(jax), pack, options)
    return _put_ahead(jax, loader, device, ahead, loader is not pack)


def _find_rank(jax: Any) -> Rank | None:
    processes = jax.process_count()
    return (jax.process_index(), processes) if processes > 1 else None


def _put_ahead(jax: Any, loader: Loader, device: Any, ahead: int, is_ours: bool) -> Iterator[Any]:
    waiting: deque[Any] = deque()
    try:
        for batch in loader:
            # Returns at once: the copy goes on while the loop computes.
            waiting.append(_put(jax, batch, device))
            if len(waiting) > ahead:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        if is_ours:
            loader.close()


def _put(jax: Any, value: Any, device: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return jax.device_put(value, device)
    if isinstance(value, tuple):
        return tuple(_put(jax, one, device) for one in value)
    if isinstance(value, dict):
        return {name: _put(jax, one, device) for name, one in value.items()}
    return value


def _import_jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise MissingExtra(
            f"feedrate.jax needs JAX, which cannot be imported ({error})", hint="pip install 'feedrate[jax]'"
        ) from error
    return jax
