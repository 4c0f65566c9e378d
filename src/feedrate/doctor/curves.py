# SPDX-License-Identifier: Apache-2.0
"""The machine's curves for the page, made of the sampler's series."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from feedrate.doctor.columns import Floats
from feedrate.results.doctor import Curve

if TYPE_CHECKING:
    from feedrate.doctor.machine import MachineTrace

_MOST_POINTS = 600
# Series, name on the page, unit; those that a healthy machine leaves at zero are shown when they are not.
_CURVES = (
    ("cores_ours", "cores busy, this run", "cores"),
    ("cores_others", "cores busy, others", "cores"),
    ("iowait", "cores waiting for a disk", "cores"),
    ("mem_used", "memory used, page cache included", "B"),
    ("mem_cache", "page cache", "B"),
    ("disk_read_rate", "disks, read", "B/s"),
    ("disk_write_rate", "disks, written", "B/s"),
    ("disk_busy", "busiest disk", "share"),
    ("net_rx_rate", "network, received", "B/s"),
    ("nfs_read_rate", "NFS, read", "B/s"),
    ("nfs_round_trip_s", "NFS, round trip", "s"),
    ("psi_cpu", "stalled for a core", "share"),
    ("psi_io", "stalled for storage", "share"),
)
_ONLY_WHEN_SEEN = (
    ("steal", "cores taken by other virtual machines", "cores"),
    ("psi_memory", "stalled for memory", "share"),
    ("swap_in_rate", "swapped in", "B/s"),
    ("swap_out_rate", "swapped out", "B/s"),
)
_GPU_CURVES = (
    ("utilisation", "busy", "share"),
    ("memory_used", "memory used", "B"),
    ("power_w", "power", "W"),
    ("to_device_per_s", "PCIe, to the device", "B/s"),
)


def make_curves(trace: MachineTrace) -> tuple[Curve, ...]:
    shown = [(n, t, u) for n, t, u in _CURVES if np.isfinite(trace.series[n]).any()]
    shown += [(n, t, u) for n, t, u in _ONLY_WHEN_SEEN if np.nan_to_num(trace.series[n]).any()]
    limits: dict[str, float | None] = {"cores": float(len(trace.cores)) or None, "share": 1.0}
    memory = trace.series["mem_limit"]
    memory_limit = float(np.nanmax(memory)) if np.isfinite(memory).any() else None
    curves = [
        _make(trace, title, unit, trace.series[name], memory_limit if unit == "B" else limits.get(unit))
        for name, title, unit in shown
    ]
    if len(trace) and len(trace.cores) > 1:
        # One core at 100 % among idle ones is what the mean hides.
        busiest = np.max(np.nan_to_num(trace.per_core), axis=1)
        curves.insert(1, _make(trace, "busiest core", "share", busiest, 1.0))
    for gpu in range(len(trace.gpu_names)):
        curves += _make_gpu_curves(trace, gpu)
    return tuple(curves)


def _make_gpu_curves(trace: MachineTrace, gpu: int) -> list[Curve]:
    ends = {"memory_used": "memory", "power_w": "power_limit_w"}
    curves = []
    for name, title, unit in _GPU_CURVES:
        values = trace.gpu_series[name][:, gpu]
        if not np.isfinite(values).any():
            continue
        limit = 1.0 if unit == "share" else None
        if name in ends and np.isfinite(trace.gpu_series[ends[name]][:, gpu]).any():
            limit = float(np.nanmax(trace.gpu_series[ends[name]][:, gpu]))
        curves.append(_make(trace, f"GPU {gpu}, {title}", unit, values, limit))
    return curves


def _make(trace: MachineTrace, name: str, unit: str, values: Floats, limit: float | None) -> Curve:
    # A passive run may last for hours: groups of samples become one point, their mean.
    step = max(1, -(-len(values) // _MOST_POINTS))
    times, points = [], []
    for start in range(0, len(values), step):
        part = values[start : start + step]
        known = part[np.isfinite(part)]
        times.append(round(float(trace.t_s[min(start + step, len(values)) - 1]), 3))
        points.append(float(known.mean()) if len(known) else None)
    return Curve(name, unit, tuple(times), tuple(points), limit)
