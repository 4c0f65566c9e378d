# SPDX-License-Identifier: Apache-2.0
"""A script of TensorFlow or JAX that loads its data by their own means: what was seen of it from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedrate.doctor.launch import Observed
from feedrate.doctor.machine import Means, read_machine
from feedrate.doctor.standstill import LOADERS
from feedrate.probe.cpu import measure_usable_cores
from feedrate.units import format_bytes, format_seconds

_END_NS = 2**62
_BUSY = 0.8  # of the time, or of the cores
_WAITING = 0.3  # of the time, in which some task waited for a disk
_LEAST_READINGS = 2
_NEXT = {
    "tensorflow": (
        "TensorFlow",
        "TensorBoard's profiler (tf.profiler.experimental.start) shows what tf.data waits for; with "
        "feedrate.tensorflow.dataset(PACK) the doctor sees waits and stages",
    ),
    "jax": (
        "JAX",
        "jax.profiler.trace(FOLDER) shows when the device waits; with feedrate.jax.batches(PACK) the doctor "
        "sees waits and stages",
    ),
}


def explain_framework(observed: Observed, fact: Mapping[str, Any]) -> tuple[str, str]:
    """Return what could be seen of such a run and what could not, and what to do next."""
    name, next_step = _NEXT[str(fact["module"])]
    version = f" {fact['version']}" if fact.get("version") else ""
    message = (
        f"the command uses {name}{version}, and asked no {LOADERS} for a batch: its steps, what they wait "
        f"for and what a sample costs cannot be seen"
    )
    trace = read_machine(observed.run_folder)
    if len(trace) < _LEAST_READINGS:
        return f"{message}; it was too short to see what it used of the machine", next_step
    means = trace.between(observed.started_ns, _END_NS)
    cores = measure_usable_cores()
    seen = f"from outside, in {format_seconds(observed.seconds)}: {_word_use(means, cores)}"
    return f"{message}; {seen}", f"{_judge(means, cores)}; {next_step}"


def _word_use(means: Means, cores: float) -> str:
    words = []
    if means.cores_busy_ours is not None:
        words.append(f"it used {means.cores_busy_ours:.1f} of {cores:g} cores")
    if means.disk_read_rate is not None:
        busy = "" if means.disk_busy is None else f" (the busiest {means.disk_busy:.0%} of the time)"
        words.append(f"disks gave {format_bytes(means.disk_read_rate)}/s{busy}")
    if means.net_rx_rate is not None:
        words.append(f"the network {format_bytes(means.net_rx_rate)}/s")
    gpus = [
        f"GPU {number} was {use:.0%} busy" for number, use in enumerate(means.gpu_util) if use is not None
    ]
    return ", ".join([*words, *(gpus or ["how busy a GPU was is not known"])])


def _judge(means: Means, cores: float) -> str:
    """Say what the readings leave as the limit; from outside that is no more than likely."""
    used = max((use for use in means.gpu_util if use is not None), default=None)
    if used is not None and used >= _BUSY:
        return "the GPU is busy, so data is hardly what it waits for"
    idle = "the GPU is idle for much of the time and " if used is not None else ""
    others = means.cores_busy_others or 0.0
    if means.cores_busy_ours is not None and means.cores_busy_ours + others >= _BUSY * cores:
        with_whom = f", {others:.1f} of them with other processes" if others > means.cores_busy_ours else ""
        return f"{idle}all cores are busy{with_whom}: they may be the limit"
    if (means.disk_busy or 0.0) >= _BUSY or (means.psi_io or 0.0) >= _WAITING:
        return f"{idle}disks are waited for: they may be the limit"
    if means.cores_busy_ours is None or (means.disk_busy is None and means.psi_io is None):
        return f"{idle}it is not known how busy cores and disks are"
    return f"{idle}neither cores nor disks are busy: too little may be done side by side"
