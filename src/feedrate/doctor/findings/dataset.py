# SPDX-License-Identifier: Apache-2.0
"""Causes and remedies in how a dataset is written: idle workers, large views, chunks, a slow start."""

from __future__ import annotations

from pathlib import Path

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.sample import ChunkedArray, Cost
from feedrate.doctor.findings.evidence import (
    WORTH_TELLING,
    Evidence,
    lost_share,
    make_evidence,
    make_remedy,
    predict_pipeline,
    predict_saving,
    predict_times,
    saved_by,
    share_of,
    shortened,
    wait_words,
    waits_for_data,
    weigh,
)
from feedrate.doctor.findings.step_parts import freeing_s
from feedrate.doctor.results import Remedy
from feedrate.model.pipeline import Pipeline, around
from feedrate.units import format_bytes, format_count, format_seconds

_CLONED_BYTES_PER_S = 2.5e9  # on one core
_MUCH_LARGER = 4  # times the tensors: from here on their storage is worth a word
_LEAST_COPIED_BYTES = 1e6
_LEAST_START_S = 3.0  # of decoding and reading before the first step
_LONG_START_S = 60.0  # that long is worth a word, whatever the length of the training
_UNPACKERS = {"h5py", "zarr", "zipfile"}  # readers that decompress
_MOSTLY_UNPACKED = 0.5  # of a sample's CPU
_MANY_IN_A_CHUNK = 2  # times a sample, or more: chunks of one would help
_WORTH_AN_EDIT = 1.1  # a dataset that is written anew gives at least that
_FEWEST_ROWS = 8  # in a batch
_SMALL_SAMPLE_BYTES = 16_384
_CHEAP_SAMPLE_S = 0.001  # of CPU
_LITTLE_READ = 0.2  # of a sample's time
_INDEXED_S, _INDEXED_BYTES_PER_S = 1e-4, 1e9  # a batch by indexing tensors, on one core
_INDEXED_CODE = """\
import torch


class Table(torch.utils.data.Dataset):
    def __init__(self, features, labels):  # tensors of all rows, made once
        self.features, self.labels = features, labels

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, rows):
        return self.features[rows], self.labels[rows]


def as_it_is(batch):
    return batch


# features = torch.tensor(frame[columns].to_numpy(), dtype=torch.float32)
# DataLoader(Table(features, labels), ..., collate_fn=as_it_is)
"""
_H5PY_READ_S = 1e-4  # what a read takes besides unpacking, on one core
_H5PY_BYTES_PER_S = 1e9  # of what is not compressed, from memory


def find_idle_workers(m: Measured) -> Evidence | None:
    """An iterable dataset with fewer shards than workers: some have nothing to give."""
    loader, idle = m.loader, m.loader.idle.count
    working = loader.workers - idle
    if not idle or working < 1:
        return None
    share = lost_share(m, m.pipeline.gain_of(with_all_workers(m))) if waits_for_data(m) else 0.0
    count = loader.idle.shards
    shards = "" if count is None else f"; the dataset has {format_count(count, 'shard')}"
    empty = "is empty, or less than a batch (drop_last)" if loader.get("drop_last") else "is empty"
    lines = (
        f"{idle} of {loader.workers} workers gave no batch in a whole epoch: "
        f"their part of the dataset {empty}",
        f"{format_count(working, 'worker')} made all batches{shards}",
        wait_words(m),
    )
    numbers = {"workers": loader.workers, "idle_workers": idle, "shards": count}
    return Evidence(share, lines, numbers, weight=weigh(m, share))


def with_all_workers(m: Measured) -> Pipeline:
    """Return the run with data for every worker."""
    return m.pipeline.with_(workers=m.loader.workers * m.each_worker)


def find_large_views(m: Measured) -> Evidence | None:
    """Tensors that are small views: torch hands their whole storage to the other process."""
    views = m.loader.views
    if views is None or not has_large_views(m):
        return None
    in_loader = lost_share(m, m.pipeline.gain_of(without_views(m))) if waits_for_data(m) else 0.0
    freed = freeing_s(m) / m.loop.step_s
    share = min(in_loader + freed, 1.0)
    if share < WORTH_TELLING:
        return None
    lines = [
        f"a batch is {format_bytes(views.used_bytes)} of tensors, which are views of "
        f"{format_bytes(views.copied_bytes)}: all of that is copied to the training process",
        f"handing a batch over takes {format_seconds(m.samples.feeder_cpu_s)} of CPU in a worker",
    ]
    if freed >= 0.01:
        lines.append(f"giving its memory back takes {format_seconds(freeing_s(m))} in the training process")
    numbers = {"used_bytes": views.used_bytes, "copied_bytes": views.copied_bytes}
    return Evidence(share, (*lines, wait_words(m)), numbers, weight=weigh(m, in_loader) + freed)


def has_large_views(m: Measured) -> bool:
    views = m.loader.views
    if views is None or m.loader.workers == 0:
        return False
    return views.copied_bytes >= max(_MUCH_LARGER * views.used_bytes, _LEAST_COPIED_BYTES)


def without_views(m: Measured) -> Pipeline:
    """Return the run with tensors that have their own, small storage; to make them costs a copy of each."""
    now, views = m.pipeline, m.loader.views
    if views is None:
        return now
    kept = views.used_bytes / views.copied_bytes
    cloning_s = views.used_bytes / _CLONED_BYTES_PER_S
    return now.with_(
        fetch_cpu_s=max(now.fetch_cpu_s - (1 - kept) * m.samples.feeder_cpu_s + cloning_s, 0.0),
        # What a batch takes beyond its making and pickling is receiving, which small ones need as well.
        handover_s=max(now.handover_s - (1 - kept) * m.unseen_s, 0.0),
    )


def find_unpacking(m: Measured) -> Evidence | None:
    """Reads that compute: what is stored compressed, in chunks of many samples, is unpacked for each one."""
    sample = m.samples.cost
    parts = [(name, cost) for (kind, name), cost in sample.parts.items() if kind == "read"]
    unpacked = [(name, cost) for name, cost in parts if name.partition(".")[0] in _UNPACKERS]
    cpu_s = sum(cost.cpu_s for _, cost in unpacked)
    if cpu_s < _MOSTLY_UNPACKED * sample.total.cpu_s:
        return None
    share = share_of(m, Cost(cpu_s))
    if share < WORTH_TELLING:
        return None
    name = max(unpacked, key=lambda item: item[1].cpu_s)[0]
    lines = [
        f"reading ({name}) takes {format_seconds(cpu_s)} of CPU a sample, "
        f"{cpu_s / sample.total.cpu_s:.0%} of it"
    ]
    array = m.samples.chunked
    if array is not None and array.chunks is not None:
        # Of the file its name, of the line's the same: a short report has little room for folders.
        where = f", read at {Path(array.place).name}," if array.place else ""
        stored = f"{array.array} of {Path(array.file).name if where else array.file}{where}"
        stored += f" has chunks of {array.chunks}, {array.filter or 'not compressed'}"
        read, used = format_bytes(array.read_bytes), format_bytes(array.sample_bytes)
        lines.append(
            f"{stored}: {read} are {'unpacked' if array.filter else 'read'} for the {used} of a sample"
        )
    lines += [
        f"{hot.share:.0%} of the looks at the workers: {hot.place}: {hot.source}"
        for hot in m.samples.looks.own[:1]
    ]
    numbers = {"read_cpu_s": cpu_s, "sample_s": sample.total.wall_s}
    return make_evidence(m, share, [*lines, wait_words(m)], numbers)


def find_slow_start(m: Measured) -> Evidence | None:
    """Samples that are decoded one after the other before the first step."""
    start = m.samples.start
    if start is None or start.decode_s + start.read_s < _LEAST_START_S:
        return None
    spent, share = start.decode_s + start.read_s, saved_by(faster_start(m))
    if share < WORTH_TELLING and spent < _LONG_START_S:
        return None
    parts = {"decoding": start.decode_s, "reading": start.read_s}
    of_it = " and ".join(
        f"{name} {format_seconds(s)} ({s / start.seconds:.0%})"
        for name, s in parts.items()
        if s >= 0.05 * start.seconds or s == max(parts.values())
    )
    where = f" at {start.place}" if start.place else ""
    lines = (
        f"the first batch was asked for after {format_seconds(start.seconds)}; of that took {of_it}, in one "
        "thread of the training process",
        f"{start.name} was called {start.calls:,} times{where}",
        f"{m.machine.cores:.0f} cores are usable; the share is that of the start and "
        f"{'an epoch' if _epoch_s(m) > m.loop.seconds else 'the steps that were seen'} together",
    )
    numbers = {"start_s": start.seconds, "decode_s": start.decode_s, "read_s": start.read_s}
    return Evidence(share, lines, {**numbers, "calls": start.calls})


def faster_start(m: Measured) -> float:
    """Return the speed-up of start and epoch when all usable cores decode before the first step."""
    start = m.samples.start
    if start is None:
        return 1.0
    whole = start.seconds + max(_epoch_s(m), m.loop.seconds)
    saved = (start.decode_s + start.read_s) * (1 - 1 / max(m.machine.cores, 1.0))
    return whole / max(whole - saved, 1e-9)


def _epoch_s(m: Measured) -> float:
    batches = m.loader.get("batches")
    return float(batches) * m.loop.step_s if isinstance(batches, int) else 0.0


def feed_all_workers(m: Measured) -> Remedy | None:
    """As many shards as workers."""
    workers, idle = m.loader.workers, m.loader.idle.count
    working = workers - idle
    if not idle or working < 1:
        return None
    return make_remedy(
        m, "more-shards", f"divide the data into {workers} shards or more, so that every worker has some",
        predict_pipeline(m, with_all_workers(m)),
        change=f"{workers} shards or more, or DataLoader(..., num_workers={working})",
        note=f"num_workers={working} is as fast as now, with {idle} fewer to start",
    )  # fmt: skip


def clone_views(m: Measured) -> Remedy | None:
    """Only what is used goes to the training process."""
    views = m.loader.views
    if views is None or not has_large_views(m):
        return None
    then = without_views(m)
    then = then.with_(device_s=shortened(m, (1 - views.used_bytes / views.copied_bytes) * freeing_s(m)))
    used, copied = format_bytes(views.used_bytes), format_bytes(views.copied_bytes)
    return make_remedy(
        m, "clone-views", f"hand over copies of the parts in use: {used} a batch instead of {copied}",
        predict_pipeline(m, then),
        change="return part.clone() in the dataset, where part is a slice of a larger tensor",
    )  # fmt: skip


def rechunk(m: Measured) -> Remedy | None:
    """Chunks of one sample; where they are that already, no filter."""
    sample, array = m.samples.cost, m.samples.chunked
    if not sample.samples or array is None or array.chunks is None:
        return None
    cpu_s = sample.parts.get(("read", "h5py"), Cost()).cpu_s
    is_shared = array.read_bytes >= _MANY_IN_A_CHUNK * array.sample_bytes
    if not is_shared and array.filter is None:
        return None
    if is_shared:
        title, note = "store each sample in a chunk of its own", "written once, with all else of the file"
        then_s, kept = _H5PY_READ_S + cpu_s * array.sample_bytes / array.read_bytes, array.filter
    else:
        title, kept = f"store samples without {array.filter}, or with lzf, which unpacks faster", None
        then_s = _H5PY_READ_S + array.sample_bytes / _H5PY_BYTES_PER_S
        note = f"the file grows to {format_bytes(array.sample_bytes)} a sample; lzf lies in between"
    # A filter as an argument of h5py's: its own by name, plug-ins by number.
    word = kept if kept is None or kept.isdigit() else f'"{kept}"'
    options = f"chunks={(array.rows, *array.shape[1:])}, compression={word}"
    return make_remedy(
        m, "rechunk", title, predict_saving(m, max(cpu_s - then_s, 0.0)),
        change=f'create_dataset("{array.array}", ..., {options})', note=note, code=_rewrite(array, options),
    )  # fmt: skip


def _rewrite(array: ChunkedArray, options: str) -> str:
    """Return the code that writes the file anew, with this array stored otherwise."""
    path = Path(array.file)
    rows = max(array.chunks[0] if array.chunks else 1, array.rows)
    return f"""\
import h5py

NAME = {array.array.lstrip("/")!r}
old = h5py.File({str(path)!r})
new = h5py.File({str(path.with_stem(f"{path.stem}-rechunked"))!r}, "x")


def copy(name, thing):
    if isinstance(thing, h5py.Group):
        new.require_group(name).attrs.update(thing.attrs)
    elif name != NAME:
        old.copy(thing, new, name)


old.visititems(copy)
new.attrs.update(old.attrs)
samples = new.create_dataset(
    NAME, old[NAME].shape, old[NAME].dtype,
    {options},
)
samples.attrs.update(old[NAME].attrs)
for i in range(0, len(samples), {rows}):
    samples[i : i + {rows}] = old[NAME][i : i + {rows}]
new.close()
"""


def index_batches(m: Measured) -> Remedy | None:
    """Small, cheap samples of which Python's part is the cost: rows of a table, taken one by one."""
    sample, n = m.samples.cost, m.loop.samples_per_step
    if m.loader.get("iterable") or m.loader.get("takes_batches") or n < _FEWEST_ROWS:
        return None
    is_small = 0 < m.loader.batch_bytes <= _SMALL_SAMPLE_BYTES * n and sample.total.cpu_s <= _CHEAP_SAMPLE_S
    made = sample.kind("read").plus(sample.kind("decode"))
    is_python = made.wall_s + sample.total.blocked_s < _LITTLE_READ * sample.total.wall_s
    # A random number for each sample may be drawn for all of them at once, but that is another edit.
    if not (is_small and is_python and waits_for_data(m)) or m.experiments.is_repeatable is False:
        return None
    then_s = m.samples.feeder_cpu_s + _INDEXED_S + m.loader.batch_bytes / _INDEXED_BYTES_PER_S
    prediction, then = predict_times(m, fetch_cpu_s=min(m.pipeline.fetch_cpu_s, then_s))
    if prediction.speedup < _WORTH_AN_EDIT:
        return None
    return make_remedy(
        m, "index-batches", f"take the {n:.0f} samples of a batch at once, by indexing arrays",
        (prediction, then),
        change="def __getitems__(self, rows): return self.features[rows], self.labels[rows]",
        note=f"a sample is {format_seconds(sample.total.cpu_s)} of Python and "
        f"{format_bytes(m.loader.batch_bytes / n)}; the table has to be in memory as arrays",
        code=_INDEXED_CODE,
    )  # fmt: skip


def decode_side_by_side(m: Measured) -> Remedy | None:
    """All cores for what is decoded before the first step."""
    cores = int(m.machine.cores)
    if cores < 2 or find_slow_start(m) is None:
        return None
    return make_remedy(
        m, "decode-side-by-side", f"decode with {cores} threads before the loop, or in workers as it goes on",
        (around(faster_start(m)), None),
        change=f"ThreadPoolExecutor({cores}).map(decode, paths), or decode in __getitem__ with workers",
        note="of the start and what follows it together; decoders let other threads run meanwhile",
    )  # fmt: skip
