# SPDX-License-Identifier: Apache-2.0
"""The facts of a report besides its findings: about the machine, the loader and the data."""

from __future__ import annotations

from feedrate.doctor.analyse.machine import MachineTrace
from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.readings import READINGS, UNKNOWN, format_reading, list_readings
from feedrate.doctor.results import Fact
from feedrate.units import format_bytes

NONE = "none"
_Facts = dict[str, object]  # None: not a fact of this run
_READINGS = {**READINGS, **list_readings(MachineSummary)}
_OF_MACHINE = (
    "cores_ours", "cores_others", "memory_limit_bytes", "memory_used_bytes", "memory_cache_bytes",
    "memory_stall_share", "io_stall_share", "disk_busy", "disk_read_bytes_per_s", "network_bytes_per_s",
    "shm_size_bytes",
)  # fmt: skip


def list_facts(m: Measured, trace: MachineTrace) -> tuple[Fact, ...]:
    loader = m.loader
    facts: _Facts = {
        "dataset": f"{loader.get('dataset', UNKNOWN)}, {_count(loader.get('dataset_len'))} samples",
        "loader": f"{loader.get('class', 'DataLoader')}, made at {loader.get('made_at', UNKNOWN)}",
        **(_pack_loader_facts(m) if loader.is_of_pack else _dataloader_facts(m)),
        **_data_facts(m),
        **_machine_facts(m),
        **{f"could not read {name}": why for name, why in trace.unread.items()},
    }
    return tuple(Fact(name, str(value)) for name, value in facts.items() if value is not None)


def _dataloader_facts(m: Measured) -> _Facts:
    loader = m.loader
    return {
        "workers": loader.workers,
        "workers without data": loader.idle.count if loader.get("iterable") else None,
        "persistent workers": bool(loader.get("persistent_workers")),
        "pinned memory": bool(loader.get("pin_memory")),
        **_batch_facts(m),
    }


def _pack_loader_facts(m: Measured) -> _Facts:
    """Return the facts of a feedrate.Loader, its settings in the words of its own options."""
    loader, stages = m.loader, m.samples.stages
    facts: _Facts = {
        "pack": str(loader.get("pack")),
        "threads": f"{loader.threads}{'' if loader.get('threads_given') else ', as many as cores'}",
        "batches ahead": str(loader.get("prefetch")),
        "cache": loader.get("cache") or NONE,
        "scratch": loader.get("scratch") or NONE,
        "batches arrive on": loader.get("device") or "the host",
        "image": loader.get("image") or NONE,
        "transform": loader.get("transform") or NONE,
        **_batch_facts(m),
    }
    if stages is not None:
        shares = {name: stages.share(name) for name in stages.busy_s}
        ordered = sorted(shares, key=lambda name: -shares[name])
        words = ", ".join(f"{name} {shares[name]:.0%}" for name in ordered if shares[name] >= 0.005)
        facts["stages of the loader"] = words or UNKNOWN
        facts["decoded by Pillow"] = f"{stages.by_pillow:.0%}"
    return facts


def _batch_facts(m: Measured) -> _Facts:
    loader, batch, module, torch = m.loader, m.loader.batch, m.training.module, m.training.torch
    precision = module.get("dtype") or UNKNOWN
    if m.training.autocast.get("enabled"):
        precision = f"autocast to {m.training.autocast.get('dtype') or 'half precision'}"
    # None for a model without filters that have a layout.
    is_last = module.get("channels_last")
    tensors = ", ".join(
        f"{t.get('dtype')} {'x'.join(str(n) for n in t.get('shape') or ())}"
        for t in batch.get("tensors") or ()
    )
    return {
        "batch size": str(loader.get("batch_size", UNKNOWN)),
        "batch": tensors or "no tensors",
        "model": f"{module.get('class', UNKNOWN)} on {module.get('device', UNKNOWN)}",
        "precision": precision,
        "channels last": None if is_last is None else bool(is_last),
        "torch": f"{torch.get('version', UNKNOWN)}, {torch.get('threads', UNKNOWN)} threads",
    }


def _data_facts(m: Measured) -> _Facts:
    data = m.machine.data
    if data is None:
        return {"data": "no files were opened while samples were made"}
    spins = {True: "spinning", False: "solid state", None: "unknown kind of disk"}[data.is_rotational]
    disk = "" if data.is_network or data.is_fuse or data.is_memory else f", {spins}"
    sizes = f"{data.files_seen:,} seen, {format_bytes(data.mean_bytes)} each"
    return {
        "data lies in": data.shown_folder,
        "file system": f"{data.kind} ({data.source}){disk}",
        "files": f"{sizes}, {', '.join(data.suffixes)}",
        "in the page cache": UNKNOWN if data.resident is None else f"{data.resident:.0%}",
    }


def _machine_facts(m: Measured) -> _Facts:
    around = m.machine
    is_shown = {
        "gpu_utilisation": around.gpus,
        "gpu_others_share": around.gpu_others,
        "gpu_memory_share": around.gpus,
        "gpu_power_w": around.gpu_power_w is not None,
    }
    of_machine = [*_OF_MACHINE, *(["steal_cores"] if around.steal_cores else [])]
    return {
        "usable cores": f"{around.cores:g}",
        **dict(_reading(around, name) for name in of_machine),
        "GPU": around.gpu_name or NONE,
        **dict(_reading(around, name) for name, is_known in is_shown.items() if is_known),
    }


def _reading(around: MachineSummary, name: str) -> tuple[str, str]:
    return _READINGS[name].fact, format_reading(getattr(around, name), _READINGS[name])


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else UNKNOWN
