# SPDX-License-Identifier: Apache-2.0
"""What the report says of the machine, the loader and the data besides the findings."""

from __future__ import annotations

from feedrate.doctor.analyse.machine import MachineTrace
from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.results import Fact
from feedrate.units import format_bytes

UNKNOWN = "unknown"
NONE = "none"


def list_facts(m: Measured, trace: MachineTrace) -> tuple[Fact, ...]:
    return (*_loader_facts(m), *_data_facts(m), *_machine_facts(m), *_sampler_facts(trace))


def _loader_facts(m: Measured) -> list[Fact]:
    if m.is_pack_loader:
        return _pack_loader_facts(m)
    if m.opaque:
        return [
            *_dataset_facts(m),
            Fact("pipeline threads", str(m.loader.get("pipeline_threads") or UNKNOWN)),
            Fact("batches ahead", str(m.loader.get("prefetch") or UNKNOWN)),
            *_batch_facts(m),
        ]
    return [
        *_dataset_facts(m),
        Fact("workers", str(m.workers)),
        *([Fact("workers without data", str(m.idle.count))] if m.loader.get("iterable") else []),
        Fact("persistent workers", str(bool(m.loader.get("persistent_workers")))),
        Fact("pinned memory", str(bool(m.loader.get("pin_memory")))),
        *_batch_facts(m),
    ]


def _pack_loader_facts(m: Measured) -> list[Fact]:
    """Return the facts of a feedrate.Loader, its settings in the words of its own options."""
    loader, stages = m.loader, m.stages
    named = [
        ("pack", loader.get("pack")),
        ("threads", f"{m.threads}{'' if loader.get('threads_given') else ', as many as cores'}"),
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
    loader, batch = m.loader, m.batch
    tensors = ", ".join(
        f"{t.get('dtype')} {'x'.join(str(n) for n in t.get('shape') or ())}"
        for t in batch.get("tensors") or ()
    )
    return [
        Fact("batch size", str(loader.get("batch_size", UNKNOWN))),
        Fact("batch", tensors or "no tensors"),
        Fact("model", f"{m.module.get('class', UNKNOWN)} on {m.module.get('device', UNKNOWN)}"),
        Fact("precision", _precision(m)),
        *_layout(m),
        Fact("torch", f"{m.torch.get('version', UNKNOWN)}, {m.torch.get('threads', UNKNOWN)} threads"),
    ]


def _precision(m: Measured) -> str:
    if m.autocast.get("enabled"):
        return f"autocast to {m.autocast.get('dtype') or 'half precision'}"
    return str(m.module.get("dtype") or UNKNOWN)


def _layout(m: Measured) -> list[Fact]:
    """Return nothing for a model without filters that have a layout."""
    is_last = m.module.get("channels_last")
    return [] if is_last is None else [Fact("channels last", str(bool(is_last)))]


def _data_facts(m: Measured) -> list[Fact]:
    data = m.around.data
    if data is None:
        return [Fact("data", "no files were opened while samples were made")]
    spins = {True: "spinning", False: "solid state", None: "unknown kind of disk"}[data.is_rotational]
    disk = "" if data.is_network or data.is_fuse or data.is_memory else f", {spins}"
    resident = UNKNOWN if data.resident is None else f"{data.resident:.0%}"
    return [
        Fact("data lies in", data.folder),
        Fact("file system", f"{data.kind} ({data.source}){disk}"),
        Fact(
            "files",
            f"{data.files_seen:,} seen, {format_bytes(data.mean_bytes)} each, {', '.join(data.suffixes)}",
        ),
        Fact("in the page cache", resident),
    ]


def _machine_facts(m: Measured) -> list[Fact]:
    around = m.around
    return [
        Fact("usable cores", f"{around.cores:g}"),
        Fact("cores used by the run", _number(around.cores_ours)),
        Fact("cores used by others", _number(around.cores_others)),
        Fact("memory limit", _size(around.memory_limit_bytes)),
        Fact("memory used", _size(around.memory_used_bytes)),
        Fact("page cache", _size(around.memory_cache_bytes)),
        Fact("memory pressure", _share(around.memory_stall_share)),
        Fact("I/O pressure", _share(around.io_stall_share)),
        Fact("disk busy", _share(around.disk_busy)),
        Fact("read from disks", _rate(around.disk_read_bytes_per_s)),
        Fact("received from the network", _rate(around.network_bytes_per_s)),
        Fact("/dev/shm", _size(around.shm_size_bytes)),
        Fact("GPU", around.gpu_name or "none"),
        *([Fact("GPU utilisation", _share(around.gpu_utilisation))] if around.gpus else []),
        *([Fact("GPU used by others", _share(around.gpu_others_share))] if around.gpu_others else []),
        *([Fact("GPU memory", _share(around.gpu_memory_share))] if around.gpus else []),
        *([Fact("GPU power", f"{around.gpu_power_w:.0f} W")] if around.gpu_power_w is not None else []),
    ]


def _sampler_facts(trace: MachineTrace) -> list[Fact]:
    return [Fact(f"could not read {name}", why) for name, why in trace.troubles.items()]


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else UNKNOWN


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}"


def _size(value: float | None) -> str:
    return UNKNOWN if value is None else format_bytes(value)


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{format_bytes(value)}/s"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"
