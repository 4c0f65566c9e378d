# SPDX-License-Identifier: Apache-2.0
"""Remedies outside of the script."""

from __future__ import annotations

from feedrate.doctor.measured import Measured
from feedrate.doctor.what_if import change, make_remedy
from feedrate.model.predict import WIDEST, predict_change
from feedrate.results.doctor import Remedy


def stop_others(m: Measured) -> Remedy | None:
    others = m.around.cores_others
    if others < 0.1 * m.around.cores:
        return None
    now = m.pipeline
    then = now.with_(cores=m.around.cores)
    # What computes on cores shared with others computes slower by their share.
    freed = (m.around.cores - others) / m.around.cores
    if not m.is_on_gpu:
        then = then.with_(device_s=now.device_s * freed, fetch_blocked_s=now.fetch_blocked_s)
    prediction = predict_change(now, then, m.step_s, WIDEST)
    return make_remedy(
        m,
        "stop-others",
        f"have the machine alone: {m.around.biggest_other or 'others'} takes cores",
        prediction,
        then,
    )


def use_less_memory(m: Measured) -> Remedy | None:
    if m.sample is None or not m.around.memory_limit_bytes or m.sample.major_faults < 0.5:
        return None
    prediction, then = change(m, fetch_blocked_s=0.0, width=WIDEST)
    return make_remedy(m, "use-less-memory", "use less memory, or ask for more (--mem)", prediction, then)


def use_gpu(m: Measured) -> Remedy | None:
    """Assumes that a GPU computes the model ten times as fast as these cores; the data then limits soon."""
    if m.around.gpus == 0 or m.is_on_gpu:
        return None
    prediction, then = change(m, device_s=m.device_s / 10, device_cpu_s=m.device_cpu_s / 10, width=WIDEST)
    return make_remedy(
        m, "use-gpu", "compute on the GPU", prediction, then, change="model.to('cuda'), batch.to('cuda')",
        note="assumes that the GPU computes this model ten times as fast as the CPU",
    )  # fmt: skip
