# SPDX-License-Identifier: Apache-2.0
"""Remedies in how a dataset is written: data for all workers, tensors of their own, decoding side by side."""

from __future__ import annotations

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.findings.causes_dataset import (
    faster_start,
    find_slow_start,
    has_large_views,
    with_all_workers,
    without_views,
)
from feedrate.doctor.findings.scenarios import freeing_s, make_remedy, shortened
from feedrate.doctor.results import Remedy
from feedrate.model.predict import around, predict_change
from feedrate.units import format_bytes


def feed_all_workers(m: Measured) -> Remedy | None:
    """As many shards as workers."""
    working = m.workers - m.idle.count
    if not m.idle.count or working < 1:
        return None
    then = with_all_workers(m)
    return make_remedy(
        m, "more-shards", f"divide the data into {m.workers} shards or more, so that every worker has some",
        predict_change(m.pipeline, then, m.step_s), then,
        change=f"{m.workers} shards or more, or DataLoader(..., num_workers={working})",
        note=f"num_workers={working} is as fast as now, with {m.idle.count} fewer to start",
    )  # fmt: skip


def clone_views(m: Measured) -> Remedy | None:
    """Only what is used goes to the training process."""
    views = m.views
    if views is None or not has_large_views(m):
        return None
    then = without_views(m)
    then = then.with_(device_s=shortened(m, (1 - views.used_bytes / views.copied_bytes) * freeing_s(m)))
    used, copied = format_bytes(views.used_bytes), format_bytes(views.copied_bytes)
    return make_remedy(
        m, "clone-views", f"hand over copies of the parts in use: {used} a batch instead of {copied}",
        predict_change(m.pipeline, then, m.step_s), then,
        change="return part.clone() in the dataset, where part is a slice of a larger tensor",
    )  # fmt: skip


def decode_side_by_side(m: Measured) -> Remedy | None:
    """All cores for what is decoded before the first step."""
    cores = int(m.around.cores)
    if cores < 2 or find_slow_start(m) is None:
        return None
    return make_remedy(
        m, "decode-side-by-side", f"decode with {cores} threads before the loop, or in workers as it goes on",
        around(faster_start(m)),
        change=f"ThreadPoolExecutor({cores}).map(decode, paths), or decode in __getitem__ with workers",
        note="of the start and what follows it together; decoders let other threads run meanwhile",
    )  # fmt: skip
