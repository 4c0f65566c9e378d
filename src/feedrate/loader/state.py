# SPDX-License-Identifier: Apache-2.0
"""The saved state of a loader: a few numbers and words, and what must agree when it is loaded again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedrate import kernel
from feedrate.errors import UsageError
from feedrate.format.manifest import Manifest
from feedrate.loader.options import Options
from feedrate.loader.order import Order, Split

VERSION = 1
_WORDS = {
    "pack": "was taken from another pack",
    "seed": "has another seed",
    "order": "has another kind of order",
    "detail": "has other weights, positions or window sizes",
    "split": "is of another split",
}


def fingerprint(manifest: Manifest) -> str:
    """Return what tells packs apart: the checksums of their shards, in order."""
    known = (shard.known_by for shard in manifest.shards)
    checks = ",".join(f"{samples}:{size_bytes}:{crc32c:08x}" for samples, size_bytes, crc32c in known)
    return f"{manifest.samples}-{kernel.crc32c(checks.encode()):08x}"


def dump_state(
    pack: str, options: Options, split: Split, order: Order, place: tuple[int, int, int]
) -> dict[str, Any]:
    """Return the state at `place`: epoch, samples given and samples skipped in it, on all ranks together."""
    epoch, samples, skipped = place
    return {
        "version": VERSION,
        "pack": pack,
        "seed": int(options.seed),
        "order": order.kind,
        "detail": order.identity(),
        "split": split.identity(),
        "epoch": epoch,
        "samples": samples,
        "skipped": skipped,
    }


def check_state(state: Mapping[str, Any], mine: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return (epoch, samples, skipped) of a state that fits this loader.

    Raises:
        UsageError: it does not fit.
    """
    needed = [name for name in mine if name != "skipped"]  # states of earlier versions do not have it
    missing = [name for name in needed if name not in state] if isinstance(state, Mapping) else needed
    if missing:
        raise UsageError(f"this is not the state of a feedrate Loader: it lacks {', '.join(missing)}")
    if state["version"] != VERSION:
        raise UsageError(f"the state has version {state['version']!r}; this feedrate reads version {VERSION}")
    for name, words in _WORDS.items():
        if state[name] != mine[name]:
            raise UsageError(f"the state {words}: {state[name]!r} there, {mine[name]!r} here")
    epoch, samples, skipped = state["epoch"], state["samples"], state.get("skipped", 0)
    if not all(isinstance(value, int) and value >= 0 for value in (epoch, samples, skipped)):
        raise UsageError(f"the state is damaged: epoch {epoch!r}, samples {samples!r}, skipped {skipped!r}")
    return epoch, samples, skipped
