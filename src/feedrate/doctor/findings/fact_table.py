# SPDX-License-Identifier: Apache-2.0
"""What the report says of the machine, the loader and the data besides the findings."""

from __future__ import annotations

from feedrate.doctor.analyse.machine import MachineTrace
from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.readings import READINGS, UNKNOWN, format_reading, list_readings
from feedrate.doctor.results import Fact
from feedrate.units import format_bytes

NONE = "none"
_READINGS = {**READINGS, **list_readings(MachineSummary)}
_OF_MACHINE = (
    "cores_ours", "cores_others", "memory_limit_bytes", "memory_used_bytes", "memory_cache_bytes",
    "memory_stall_share", "io_stall_share", "disk_busy", "disk_read_bytes_per_s", "network_bytes_per_s",
    "shm_size_bytes",
)  # fmt: skip


def list_facts(m: Measured, trace: MachineTrace) -> tuple[Fact, ...]:
    unread = (Fact(f"could not read {name}", why) for name, why in trace.unread.items())
    return (*_loader_facts(m), *_data_facts(m), *_machine_facts(m), *unread)


def _loader_facts(m: Measured) -> list[Fact]:
    if m.loader.is_of_pack:
        return _pack_loader_facts(m)
    return [
        *_dataset_facts(m),
        Fact("workers", str(m.loader.workers)),
        *([Fact("workers without data", str(m.loader.idle.count))] if m.loader.get("iterable") else []),
        Fact("persistent workers", str(bool(m.loader.get("persistent_workers")))),
        Fact("pinned memory", str(bool(m.loader.get("pin_memory")))),
        *_batch_facts(m),
    ]


def _pack_loader_facts(m: Measured) -> list[Fact]:
    """Return the facts of a feedrate.Loader, its settings in the words of its own options."""
    loader, stages = m.loader, m.samples.stages
    named = [
        ("pack", loader.get("pack")),
        ("threads", f"{m.loader.threads}{'' if loader.get('threads_given') else ', as many as cores'}"),
        ("batches ahead", loader.get("prefetch")),
        ("cache", loader.get("cache") or NONE),
        ("scratch", loader.get("scratch") or NONE),
        ("batches arrive on", loader.get("device") or "the host"),
        ("image", loader.get("image") or NONE),
        ("transform", loader.get("transform") or NONE),
    ]
    facts = [*_dataset_facts(m), *(Fact(name, str(value)) for name, value in named), *_batch_facts(m)]
    if stages is not None:
        shares = {name: stages.share(name) for name in stages.busy_s}
        ordered = sorted(shares, key=lambda name: -shares[name])
        words = ", ".join(f"{name} {shares[name]:.0%}" for name in ordered if shares[name] >= 0.005)
        facts.append(Fact("stages of the loader", words or UNKNOWN))
        facts.append(Fact("decoded by Pillow", f"{stages.by_pillow:.0%}"))
    return facts


def _dataset_facts(m: Measured) -> list[Fact]:
    loader = m.loader
    return [
        Fact("dataset", f"{loader.get('dataset', UNKNOWN)}, {_count(loader.get('dataset_len'))} samples"),
        Fact("loader", f"{loader.get('class', 'DataLoader')}, made at {loader.get('made_at', UNKNOWN)}"),
    ]


def _batch_facts(m: Measured) -> list[Fact]:
    loader, batch, module, torch = m.loader, m.loader.batch, m.training.module, m.training.torch
    precision = str(module.get("dtype") or UNKNOWN)
    if m.training.autocast.get("enabled"):
        precision = f"autocast to {m.training.autocast.get('dtype') or 'half precision'}"
    # None for a model without filters that have a layout.
    is_last = module.get("channels_last")
    tensors = ", ".join(
        f"{t.get('dtype')} {'x'.join(str(n) for n in t.get('shape') or ())}"
        for t in batch.get("tensors") or ()
    )
    return [
        Fact("batch size", str(loader.get("batch_size", UNKNOWN))),
        Fact("batch", tensors or "no tensors"),
        Fact("model", f"{module.get('class', UNKNOWN)} on {module.get('device', UNKNOWN)}"),
        Fact("precision", precision),
        *([] if is_last is None else [Fact("channels last", str(bool(is_last)))]),
        Fact("torch", f"{torch.get('version', UNKNOWN)}, {torch.get('threads', UNKNOWN)} threads"),
    ]


def _data_facts(m: Measured) -> list[Fact]:
    data = m.machine.data
    if data is None:
        return [Fact("data", "no files were opened while samples were made")]
    spins = {True: "spinning", False: "solid state", None: "unknown kind of disk"}[data.is_rotational]
    disk = "" if data.is_network or data.is_fuse or data.is_memory else f", {spins}"
    resident = UNKNOWN if data.resident is None else f"{data.resident:.0%}"
    return [
        Fact("data lies in", data.shown_folder),
        Fact("file system", f"{data.kind} ({data.source}){disk}"),
        Fact(
            "files",
            f"{data.files_seen:,} seen, {format_bytes(data.mean_bytes)} each, {', '.join(data.suffixes)}",
        ),
        Fact("in the page cache", resident),
    ]


def _machine_facts(m: Measured) -> list[Fact]:
    around = m.machine
    is_shown = {
        "gpu_utilisation": around.gpus,
        "gpu_others_share": around.gpu_others,
        "gpu_memory_share": around.gpus,
        "gpu_power_w": around.gpu_power_w is not None,
    }
    return [
        Fact("usable cores", f"{around.cores:g}"),
        *(_reading(around, name) for name in _OF_MACHINE),
        *([_reading(around, "steal_cores")] if around.steal_cores else []),
        Fact("GPU", around.gpu_name or NONE),
        *(_reading(around, name) for name, is_known in is_shown.items() if is_known),
    ]


def _reading(around: MachineSummary, name: str) -> Fact:
    return Fact(_READINGS[name].fact, format_reading(getattr(around, name), _READINGS[name]))


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else UNKNOWN
