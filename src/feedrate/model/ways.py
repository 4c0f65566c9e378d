# SPDX-License-Identifier: Apache-2.0
"""How long copying, packing and an epoch take: what a sample costs the device, the cores and the stores.

Times are in seconds, of one sample where nothing else is said. Every part of an epoch is found alone; the
slowest decides, by the same soft maximum as in a training step (pipeline.py). docs/model.md has the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from feedrate.model import limits
from feedrate.model.pipeline import Pipeline, best_workers, soft_max

COPY_STREAMS = 8  # reads in flight of `feedrate stage`
COPY_BLOCK_BYTES = 4 << 20  # larger files are read in blocks, several at a time
# Files of at most so many bytes are brought in groups, each by one stream.
COPY_SMALL_BYTES, COPY_GROUP_FILES, COPY_GROUP_BYTES = 1 << 20, 64, 4 << 20
# CPU time of `feedrate stage` for a file, in one thread at a time: made, checked, renamed, synced.
COPY_FILE_S = 0.25e-3
# Until a command has been loaded, until a DataLoader's workers have been started, and a Loader's threads.
START_S, WORKERS_START_S, LOADER_START_S = 0.4, 0.06, 0.03
PAGE_BYTES = 4096
DEFAULT_SHARD_BYTES = 256_000_000  # as `feedrate pack` makes them
_LEAST_SHARD_BYTES = 16_000_000  # below, opening a shard takes as long as reading it on a network
# In one folder. "limit each directory to less than 100K files": docs.aws.amazon.com/fsx/latest/LustreGuide,
# performance tips.
_MOST_SHARDS = 100_000


@dataclass(frozen=True, slots=True)
class Store:
    """A file system, as `StoreSpeed` has it: one reader waits `file_s` per file and `read_s` per read."""

    stat_s: float
    file_s: float
    read_s: float
    stream_bytes_per_s: float
    total_bytes_per_s: float
    files_per_s: float
    warm_file_s: float
    warm_bytes_per_s: float
    write_bytes_per_s: float
    create_s: float
    keeps_pages: bool
    copy_bytes_per_s: float | None = None

    def shared_by(self, nodes: int, shared_bytes_per_s: float | None = None) -> Store:
        """Return what one of several nodes has of it when all read at once.

        `shared_bytes_per_s`: what it gives all of them; None: what one was seen to get.
        """
        each = share(self.total_bytes_per_s, shared_bytes_per_s, nodes)
        part = each / self.total_bytes_per_s
        copied = self.copy_bytes_per_s and self.copy_bytes_per_s * part
        files_per_s = self.files_per_s * part
        return replace(self, total_bytes_per_s=each, files_per_s=files_per_s, copy_bytes_per_s=copied)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Pipeline):
    """What an epoch asks of a node: a training loop whose times are those of one sample, and what it reads.

    Its workers are samples that are made at a time: worker processes or threads; each reads, then decodes.
    0: the training processes make them between their steps. Its cores are what all make, in units of one.

    Attributes:
        samples: of this node. A sample is read from its own file (`is_files`) or from the middle of a shard.
        sample_bytes: encoded, as they are read.
        asked: the share of the samples that is read at all; the others are in a cache.
        wait_s: what one reader waits for a sample that is not in memory, where that was measured;
            None: as the store's figures say.
        read_cpu_s, server_s: CPU time for a sample that is not in memory, more than `fetch_cpu_s`: of the
            reader, and of a process that serves the store on this node.
        reads: reads of the store for one sample of a shard: fewer than one where several share a page.
        ranks: training processes.
    """

    device_cpu_s: float = 0.0
    fetch_blocked_s: float = 0.0
    handover_s: float = 0.0
    samples: float
    sample_bytes: float
    is_files: bool
    wait_s: float | None = None
    reads: float = 1.0
    read_cpu_s: float = 0.0
    server_s: float = 0.0
    ranks: int = 1
    asked: float = 1.0


@dataclass(frozen=True, slots=True)
class Epoch:
    """`limit`: a code of model/limits.py."""

    seconds: float
    limit: str


def cold_s(load: Load, store: Store) -> float:
    """Return what one reader waits for a sample that is not in memory."""
    if load.wait_s is not None:
        return load.wait_s
    streaming = load.sample_bytes / store.stream_bytes_per_s
    if load.is_files:
        return store.file_s + streaming
    # A store answers at most so many bytes at a time, and its rate holds the wait for each answer: on average
    # the last one is half full.
    return load.reads * max(store.read_s, store.read_s / 2 + streaming)


def find_workers(load: Load, store: Store, most: int, *, each: float) -> int:
    """Return the smallest number of workers, of `each` ranks, that is about as good as any up to `most`."""
    return best_workers(replace(load, workers=1.0, fetch_blocked_s=cold_s(load, store)), most, each)


def epoch(load: Load, store: Store, *, warm: float) -> Epoch:
    """Return how long an epoch takes, and what limits it; `warm`: in memory, of the bytes that are read."""
    cold, warm = load.asked * (1 - warm), load.asked * warm
    waiting_s = cold * cold_s(load, store)
    warm_s = (store.warm_file_s if load.is_files else 0.0) + load.sample_bytes / store.warm_bytes_per_s
    makers = 1 if load.workers else load.ranks
    step = replace(
        load,
        fetch_cpu_s=(load.fetch_cpu_s + cold * load.read_cpu_s) / makers,
        fetch_blocked_s=(waiting_s + warm * warm_s) / makers,
        device_cpu_s=load.device_cpu_s + cold * load.server_s,
    )
    ceiling = cold * max(
        load.sample_bytes / store.total_bytes_per_s, 1 / store.files_per_s if load.is_files else 0.0
    )
    parts = {**step.limits, "store": ceiling}
    slowest = max(parts, key=lambda part: parts[part])
    # More readers would help: those that wait for the store name it, those that compute, themselves.
    if slowest == "store" or (slowest == "workers" and waiting_s > load.fetch_cpu_s):
        limit = limits.STORAGE
    elif slowest == "workers" and load.workers < load.cores:
        limit = limits.STARVED
    else:
        is_device = slowest == "device" or step.device_cpu_s > step.fetch_cpu_s
        limit = limits.DEVICE if is_device else limits.DECODE
    return Epoch(load.samples * soft_max(step.step_s, ceiling), limit)


def copy_s(files: float, size_bytes: float, source: Store, target: Store) -> float:
    """Return how long `feedrate stage` takes: asking for sizes, then reading, several files at a time.

    Where its copier was tried on such files, that says what reading takes; else single calls are added up.
    """
    streams = min(COPY_STREAMS, max(files, size_bytes / COPY_BLOCK_BYTES, 1.0))
    writing = size_bytes / target.write_bytes_per_s + files * target.create_s / streams
    if source.copy_bytes_per_s:
        reading = size_bytes / source.copy_bytes_per_s * _find_last_round(files, size_bytes / max(files, 1.0))
        return START_S + files * COPY_FILE_S + soft_max(reading, writing)
    copying = soft_max(
        (files * source.file_s + size_bytes / source.stream_bytes_per_s) / streams,
        size_bytes / source.total_bytes_per_s,
        files / source.files_per_s,
        writing,
    )
    return START_S + files * (source.stat_s / streams + COPY_FILE_S) + copying


def _find_last_round(files: float, each_bytes: float) -> float:
    """Return how much longer a copy of small files takes than if all its streams ended at once."""
    if each_bytes > COPY_SMALL_BYTES:
        return 1.0
    groups = math.ceil(files / min(COPY_GROUP_FILES, max(COPY_GROUP_BYTES / max(each_bytes, 1.0), 1.0)))
    return math.ceil(groups / COPY_STREAMS) * COPY_STREAMS / max(groups, 1)


def pack_s(
    load: Load, source: Store, target: Store, *, warm: float, list_s: float, size_bytes: float
) -> float:
    """Return how long `feedrate pack` takes: `load.fetch_cpu_s` is what packing a sample costs.

    Folders are listed, and files asked for their sizes, by all cores but one.
    """
    asking = load.samples * source.stat_s / max(load.workers - 1, 1.0) if load.is_files else 0.0
    reading = epoch(load, source, warm=warm).seconds
    return START_S + list_s + asking + soft_max(reading, size_bytes / target.write_bytes_per_s)


def share(node_per_s: float, store_per_s: float | None, nodes: int) -> float:
    """Return what one node has of a store while `nodes` use it, in bytes or files per second.

    Args:
        node_per_s: what one node gets when it is alone: its link, or its own requests in flight.
        store_per_s: what the store gives all nodes together; None: not known, and taken to be what one node
            was seen to get. A parallel file system gives more: the answer is the least that is to be had.
    """
    return min(node_per_s, (node_per_s if store_per_s is None else store_per_s) / nodes)


def choose_shard_bytes(size_bytes: float, nodes: int) -> int:
    """Return how large shards should be: many enough for all nodes' streams, few enough for one folder."""
    usual = max(min(size_bytes / (nodes * COPY_STREAMS), DEFAULT_SHARD_BYTES), _LEAST_SHARD_BYTES)
    return math.ceil(max(usual, size_bytes / _MOST_SHARDS))


def seen_share(parts: int, epoch: float) -> float:
    """Return which share of the samples one of `parts` readers has read before an epoch; the first is 1.

    Every epoch's order is new, and each reader has one of as many slices of it.
    """
    return 1.0 - math.pow(1 - 1 / parts, epoch - 1)


def lru_share(share: float, parts: int = 1, epoch: float = math.inf) -> float:
    """Return how often a cache hits that evicts the least recently used, and holds `share` of the samples.

    The page cache of Linux is near to this. A sample that was read `ago` epochs before is still there if what
    was read since then fits: the rest of that epoch's slice, those between, and the beginning of this one.
    """
    if share >= 1:
        return seen_share(parts, epoch)
    if share <= 0:
        return 0.0
    without, left, last = 1 - 1 / parts, 1 - share, epoch - 1
    # So long ago, and everything since then fits for sure.
    sure = min(max(math.floor(math.log(left) / math.log(without)) - 1, 0) if parts > 1 else 0, last)
    hits, ago = 1.0 - math.pow(without, sure), sure + 1
    while ago <= last and (unread := math.pow(without, ago - 1)) > left:
        hits += unread / parts * _share_of_products_above(left / unread, without)
        ago += 1
    return hits


def _share_of_products_above(bound: float, least: float) -> float:
    """Return how often the product of two numbers between `least` and 1 is above a bound."""
    if bound <= least**2:
        return 1.0
    area = (1 - least) ** 2
    if bound >= least:
        return (1 - bound + bound * math.log(bound)) / area
    return 1 - (bound * math.log(bound / least**2) - bound + least**2) / area


def pick_epochs(epochs: int, parts: int) -> list[tuple[int, int]]:
    """Return some of the epochs after the first, each with how many it stands for.

    One reader has seen everything after the first. Of several, caches fill ever more slowly.
    """
    if parts == 1:
        return [(2, epochs - 1)] if epochs > 1 else []
    picked, begin = [], 2
    while begin <= epochs:
        count = min(max(begin // 3, 1), epochs - begin + 1)
        picked.append((begin + (count - 1) // 2, count))
        begin += count
    return picked


def count_epochs_to_pay(
    before_s: float, first_s: float, later_s: float, against: tuple[float, float], epochs: float = math.inf
) -> float:
    """Return after how many epochs a way has caught up with one that starts at once; infinite: never.

    What is ahead after the first epoch, and loses in every later one, has not paid: it falls behind for good.

    Args:
        against: the other's first and later epochs.
        epochs: of the whole run, after which nobody falls behind any more.
    """
    behind, gain = before_s + first_s - against[0], against[1] - later_s
    if behind > 0:
        return math.inf if gain <= 0 else 1 + behind / gain
    lead = (epochs - 1) * gain - behind if gain else -behind
    return 1.0 if lead > 0 else math.inf


def find_unevenness(samples: float, batch_size: float, workers: float) -> float:
    """Return how much more than its part the busiest of several workers makes: whole batches, in turn."""
    batches = math.ceil(samples / batch_size)
    rounds = math.ceil(batches / workers)
    most = rounds * batch_size
    if (batches - 1) % workers < 1:  # the last round is one batch, which need not be full
        most += samples - batches * batch_size
    return max(workers * (min(most, samples) / samples), 1.0)
