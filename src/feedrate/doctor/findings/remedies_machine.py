# SPDX-License-Identifier: Apache-2.0
"""Remedies outside of the script."""

from __future__ import annotations

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.findings.evidence import on_gpu_of_others, waiting_for_cores
from feedrate.doctor.findings.scenarios import change, make_remedy
from feedrate.doctor.results import Remedy
from feedrate.model.predict import around, without

_GPU_IN_CORES = 200.0  # some 10 TFLOP/s in training against 50 GFLOP/s of a core, both single precision


def stop_others(m: Measured) -> Remedy | None:
    others, on_gpu = m.around.cores_others, on_gpu_of_others(m)
    if on_gpu > waiting_for_cores(m):
        return make_remedy(m, "stop-others", "have the GPU alone", around(without(on_gpu), "device-bound"))
    if others < 0.1 * m.around.cores:
        return None
    then = m.pipeline.with_(cores=m.around.cores)
    # What waited for a core no longer does; our own processes beyond the cores go on waiting for each other.
    prediction = around(without(waiting_for_cores(m)), then.slowest)
    return make_remedy(
        m,
        "stop-others",
        f"have the machine alone: other processes use {others:.1f} of {m.around.cores:.0f} cores",
        prediction,
        then,
    )


def use_less_memory(m: Measured) -> Remedy | None:
    if m.sample is None or not m.around.memory_limit_bytes or m.sample.major_faults < 0.5:
        return None
    prediction, then = change(m, fetch_blocked_s=0.0)
    return make_remedy(m, "use-less-memory", "use less memory, or ask for more (--mem)", prediction, then)


def use_gpu(m: Measured) -> Remedy | None:
    """Assumes that a GPU computes as fast as 200 cores; the data then limits soon."""
    if m.around.gpus == 0 or m.is_on_gpu:
        return None
    faster = min(max(_GPU_IN_CORES / m.around.cores, 5.0), 50.0)
    prediction, then = change(m, device_s=m.device_s / faster, device_cpu_s=m.device_cpu_s / faster, drag=0.0)
    return make_remedy(
        m, "use-gpu", "compute on the GPU", prediction, then, change="model.to('cuda'), batch.to('cuda')",
        note=f"assumes that the GPU computes this model {faster:.0f} times as fast as these cores",
    )  # fmt: skip
