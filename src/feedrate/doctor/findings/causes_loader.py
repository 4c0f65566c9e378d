# SPDX-License-Identifier: Apache-2.0
"""Causes inside the loader: storage, decoding, transforms, the workers and their hand-over."""

from __future__ import annotations

from collections.abc import Mapping

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.sample import Cost
from feedrate.doctor.analyse.stacks import HotPlace
from feedrate.doctor.findings.evidence import (
    WORTH_TELLING,
    Evidence,
    capped,
    percent,
    queue_share,
    saved_by,
    wait_words,
    waits_for_data,
    weigh,
)
from feedrate.doctor.findings.scenarios import (
    crops,
    decoding,
    freeing_s,
    read_blocked,
    repeated_share,
    saved_without,
    transforming,
    tried_gain,
)
from feedrate.model.pipeline import best_workers
from feedrate.units import format_bytes, format_count, format_seconds

STARVED_GAIN = 1.15  # more workers must give this much to be the cause
OVERSUBSCRIBED_GAIN = 1.08
_SMALL_FILE_BYTES = 1e6


def find_starved_workers(m: Measured) -> Evidence | None:
    if not waits_for_data(m):
        return None
    # Several loaders rarely work all at once: what was tried, with no more workers in each than there are
    # cores, tells more than the rule of a core for each.
    most = int(m.around.cores)
    tried = {n: tried_gain(m, n) for n in m.trials if m.workers < n <= most}
    if tried:
        number = max(tried, key=lambda n: tried[n])
        gain, how = tried[number], "tried in this run"
    else:
        now = m.pipeline
        number = best_workers(now, m.most_workers, m.each_worker)
        if number <= m.workers or m.idle.count:  # more would have no data either
            return None
        gain, how = now.gain_of(now.with_(workers=number * m.each_worker)), "by the cost model"
    if gain < STARVED_GAIN:
        return None
    workers = format_count(m.workers, "worker") if m.workers else "no worker"
    lines = [
        f"{workers} on {m.around.cores:.0f} usable cores; {number} give {gain:.2f}x ({how})",
        wait_words(m),
    ]
    if m.sample is not None:
        lines.append(f"a sample takes {format_seconds(m.sample.total.wall_s)} to make")
    numbers = {"workers": m.workers, "better_workers": number, "gain": round(gain, 3)}
    return _of_loader(m, capped(m, saved_by(gain)), tuple(lines), numbers)


def find_slow_decoding(m: Measured) -> Evidence | None:
    sample = m.sample
    if sample is None or not waits_for_data(m):
        return None
    decode = decoding(m)
    share = _share_of(m, Cost(decode.cpu_s, decode.queue_s, 0.0))
    if share < WORTH_TELLING:
        return None
    of_sample = percent(decode.wall_s / sample.total.wall_s)
    took = format_seconds(decode.cpu_s)
    lines = [
        f"decoding and resizing ({sample.largest('decode')}) take {took} of CPU a sample, "
        f"{of_sample} of the {format_seconds(sample.total.wall_s)} that it takes",
        wait_words(m),
    ]
    if m.kernel is not None and m.kernel.taken:
        ours = format_seconds(m.kernel.cpu_s_per_image)
        rest = f"; {m.kernel.left_words}, which it does not take" if m.kernel.left else ""
        lines.append(f"feedrate's decoder takes {ours} on {'the same files' if not rest else 'JPEGs'}{rest}")
    numbers = {"decode_cpu_s": decode.cpu_s, "sample_s": sample.total.wall_s}
    cause = "Images are decoded whole, on the CPU, and the crop throws a part away." if crops(m) else ""
    if m.reads_pack:
        cause = "feedrate decodes the pack's images in the DataLoader's workers, on the CPU."
    return _of_loader(m, share, tuple(lines), numbers, cause)


def find_slow_transforms(m: Measured) -> Evidence | None:
    sample = m.sample
    if sample is None or not waits_for_data(m):
        return None
    own = transforming(m)
    share = _share_of(m, Cost(own.cpu_s, own.queue_s, 0.0))
    if share < WORTH_TELLING:
        return None
    of_sample = percent(own.wall_s / sample.total.wall_s)
    lines = [f"the dataset's own code takes {format_seconds(own.cpu_s)} of CPU a sample, {of_sample} of it"]
    lines += [word_place(place) for place in m.looks_fetch.own[:2] if place.share > 0.1]
    if largest := sample.largest("transform"):
        lines.append(f"largest named transform: {largest}")
    lines.append(wait_words(m))
    return _of_loader(m, share, tuple(lines), {"transform_cpu_s": own.cpu_s, "sample_s": sample.total.wall_s})


def word_place(place: HotPlace) -> str:
    how = ", a Python loop" if place.is_python else ""
    source = f": {place.source}" if place.source else ""
    return f"{place.function} ({place.place}) has {percent(place.share)} of the looks{how}{source}"


def find_slow_storage(m: Measured) -> Evidence | None:
    sample, data = m.sample, m.around.data
    if sample is None or not waits_for_data(m):
        return None
    blocked = read_blocked(m)
    share = _share_of(m, blocked)
    if share < WORTH_TELLING:
        return None
    of_sample = percent(blocked.blocked_s / sample.total.wall_s)
    rate = format_bytes(sample.read_bytes / max(blocked.blocked_s, 1e-9))
    lines = (
        f"a sample waits {format_seconds(blocked.blocked_s)} for storage, {of_sample} of its time",
        word_storage(m),
        f"{format_bytes(sample.read_bytes)} are read a sample, at {rate}/s",
    )
    small = data is not None and data.mean_bytes < _SMALL_FILE_BYTES and data.files_seen > 50
    why = "many small files, each of which costs round trips" if small else "the storage gives no more"
    numbers = {
        "blocked_s": blocked.blocked_s,
        "read_bytes": sample.read_bytes,
        "kind": data.kind if data else None,
    }
    return _of_loader(m, share, lines, numbers, f"Reading is slow: {why}.")


def word_storage(m: Measured) -> str:
    data = m.around.data
    if data is None:
        return "where the files lie is unknown"
    if data.is_network:
        where = f"a network mount ({data.kind}, {data.source})"
    elif data.is_fuse:
        where = f"a FUSE file system ({data.kind})"
    else:
        disk = {True: "a spinning disk", False: "a solid-state disk", None: "a local disk"}[
            data.is_rotational
        ]
        where = f"{disk} ({data.kind})"
    return f"{data.files_seen:,} files seen, of {format_bytes(data.mean_bytes)}, in {data.folder}, on {where}"


def find_cold_cache(m: Measured) -> Evidence | None:
    """Local files that are simply not in memory yet."""
    sample, again, data = m.sample, m.sample_again, m.around.data
    if sample is None or again is None or data is None or data.is_network or data.is_fuse:
        return None
    if not waits_for_data(m) or sample.device_bytes <= 0.3 * sample.read_bytes:
        return None
    blocked = read_blocked(m)
    if again.total.blocked_s > 0.5 * blocked.blocked_s:
        return None
    limit = m.around.memory_limit_bytes
    if limit and data.dataset_bytes and data.dataset_bytes > 0.8 * limit:
        return None  # the next epoch will be as cold as this one
    share = _share_of(m, blocked)
    if share < WORTH_TELLING:
        return None
    warm = format_seconds(again.total.blocked_s)
    lines = (
        f"a sample waits {format_seconds(blocked.blocked_s)} for the disk, {warm} when it is read again",
        _word_disk(sample.device_bytes, sample.read_bytes),
        word_storage(m),
    )
    return _of_loader(m, share, lines, {"cold_s": blocked.blocked_s, "warm_s": again.total.blocked_s})


def _word_disk(given: float, read: float) -> str:
    if not read:
        return f"the disk gave {format_bytes(given)} a sample, for files that are mapped into memory"
    if given <= 1.05 * read:
        return f"{percent(min(given / read, 1.0))} of the bytes came from the disk, not memory"
    asked = f"the {format_bytes(read)} that a sample reads"
    return f"the disk gave {format_bytes(given)} for {asked}: it reads ahead, or whole blocks"


def find_slow_handover(m: Measured) -> Evidence | None:
    sample, freed = m.sample, freeing_s(m)
    if sample is None or (not waits_for_data(m) and freed < WORTH_TELLING * m.step_s):
        return None
    n, now = m.samples_per_step, m.pipeline
    collate = sample.kind("collate")
    then = now.with_(
        fetch_cpu_s=max(now.fetch_cpu_s - collate.cpu_s * n - m.feeder_cpu_s, 0.0),
        fetch_blocked_s=max(now.fetch_blocked_s - collate.blocked_s * n, 0.0),
        handover_s=0.0,
    )
    in_loader = capped(m, saved_by(now.gain_of(then)))
    share = min(in_loader + freed / m.step_s, 1.0)
    if share < WORTH_TELLING:
        return None
    size, unseen = m.batch_bytes, m.unseen_s
    collated, pickled = format_seconds(collate.wall_s * n), format_seconds(m.feeder_cpu_s)
    received = format_seconds(m.receive_cpu_s)
    made_s = max(sample.total.wall_s - collate.wall_s, 0.0) * n
    handed_s = collate.wall_s * n + m.feeder_cpu_s + m.receive_cpu_s + unseen + freed
    given_back = [f"giving a batch's memory back takes {format_seconds(freed)}"]
    lines = (
        *(given_back if freed > in_loader * m.step_s else []),
        f"a batch takes {collated} to collate, {pickled} to pickle, {received} to receive",
        f"its samples take {format_seconds(made_s)} to make",
        *([f"{format_seconds(unseen)} more pass on its way"] if unseen > 0.05 * handed_s else []),
        f"a batch is {format_bytes(size)} of tensors" if size else "a batch holds no tensors: it is pickled",
        *(given_back if 0.01 * m.step_s < freed <= in_loader * m.step_s else []),
    )
    numbers = {"collate_s": collate.wall_s * n, "pickle_s": m.feeder_cpu_s, "receive_s": m.receive_cpu_s}
    cause = "Collating, pickling and shared memory cost more than the samples." if handed_s > made_s else ""
    weight = weigh(m, in_loader) + freed / m.step_s
    return Evidence(share, lines, {**numbers, "batch_bytes": size}, cause, weight)


def find_too_many_workers(m: Measured) -> Evidence | None:
    if m.sample is None or m.workers <= m.around.cores:
        return None
    fewer = {n: tried_gain(m, n) for n in m.trials if n < m.workers}
    best = max(fewer, key=lambda n: fewer[n], default=None)
    if best is None or fewer[best] < OVERSUBSCRIBED_GAIN:
        return None
    cores = f"{m.workers} workers on {m.around.cores:.0f} usable core{'' if m.around.cores == 1 else 's'}"
    lines = (
        f"{cores}; {best} give {fewer[best]:.2f}x (tried in this run)",
        f"a sample spends {percent(queue_share(m))} of its time waiting for a core",
    )
    return Evidence(saved_by(fewer[best]), lines, {"workers": m.workers, "better_workers": best})


def find_pinned_workers(m: Measured) -> Evidence | None:
    sets = [set(fact["affinity"]) for fact in m.worker_facts if fact.get("affinity")]
    if m.sample is None or not sets or not waits_for_data(m):
        return None
    allowed: set[int] = set().union(*sets)
    useful = min(m.workers, int(m.around.cores))
    queue = queue_share(m)
    if len(allowed) >= useful or queue < 0.1:
        return None
    # As many more cores as are usable, for a loader that waits for cores.
    share = capped(m, saved_by(useful / len(allowed)))
    cores = ", ".join(str(core) for core in sorted(allowed))
    lines = (
        f"{m.workers} workers may run on core {cores} only, of {m.around.cores:.0f} usable ones",
        f"a sample spends {percent(queue)} of its time waiting for a core",
        wait_words(m),
    )
    return _of_loader(m, share, lines, {"cores": len(allowed), "usable_cores": m.around.cores})


def find_repeated_work(m: Measured) -> Evidence | None:
    """Heavy preprocessing in compiled code that is the same every epoch; decoding alone is not meant."""
    sample, repeated_part = m.sample, repeated_share(m)
    if sample is None or repeated_part is None or repeated_part < 0.5 or not waits_for_data(m):
        return None
    if m.loop.is_single_pass:
        return None
    own = transforming(m)
    repeated = own.cpu_s * min(repeated_part, 1.0)
    # A Python loop is slow because it is one: that is the transform's finding.
    interpreted = sum(place.share for place in m.looks_fetch.own if place.is_python)
    if interpreted > 0.4 or repeated < 0.4 * (sample.total.cpu_s + m.helpers_cpu_s / m.samples_per_step):
        return None
    share = _share_of(m, Cost(repeated, 0.0, 0.0))
    if share < WORTH_TELLING:
        return None
    proof = "before a sample's first random number"
    lines = [
        f"{format_seconds(repeated)} of CPU a sample, besides reading and decoding, repeat in every epoch",
        "the same samples gave the same batch twice" if m.is_repeatable else f"it happens {proof}",
        *(word_place(place) for place in m.looks_fetch.own[:1]),
        wait_words(m),
    ]
    return _of_loader(m, share, tuple(lines), {"repeated_cpu_s": repeated, "sample_s": sample.total.wall_s})


def _of_loader(
    m: Measured,
    share: float,
    lines: tuple[str, ...],
    numbers: Mapping[str, float | int | str | None],
    cause: str = "",
) -> Evidence:
    return Evidence(share, lines, numbers, cause, weigh(m, share))


def _share_of(m: Measured, cost: Cost) -> float:
    return capped(m, saved_without(m, cost))
