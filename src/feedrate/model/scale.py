# SPDX-License-Identifier: Apache-2.0
"""One job on many nodes: what each has of the source, how long until all have a copy, shards, steps, epochs.

On paper, from one node to thousands of GPUs and petabytes: nothing here was measured on more than one node.
Left out: what the GPUs say to each other after a step, and nodes that are slower than the others.

    share      min(node, store / nodes)           bytes per second that a node reads while all do
    staging    size / share                       each node copies everything: the source moves nodes x size
    slices     size / nodes / share               each node copies another part
    epoch      max(samples / (nodes x gpus x rate), size / (nodes x share))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from feedrate.model.pipeline import soft_max

DEFAULT_SHARD_BYTES = 256_000_000  # as `feedrate pack` makes them
LEAST_SHARD_BYTES = 16_000_000  # below, opening a shard takes as long as reading it on a network
# In one folder. "limit each directory to less than 100K files": docs.aws.amazon.com/fsx/latest/LustreGuide,
# performance tips.
MOST_SHARDS = 100_000
# Of photographs, with the places where a decoder can enter them: benchmarks/README.md, indexing.
INDEX_BYTES_PER_SAMPLE = 700
_STREAMS = 8  # that a node copies at a time (`feedrate stage`)


@dataclass(frozen=True, slots=True)
class Scale:
    """One dataset on several equal nodes. Times in seconds, rates per second.

    Attributes:
        node_bytes_per_s: what one node reads of the source while all do; `source_bytes_per_s`: what all do.
        served: nodes that the source serves at a time as fast as their links are; `waves`: turns that it
            takes to serve all, if no more than `served` copy at a time.
        first_copy_s: until the first wave has its copy; `stage_s`: until all nodes have all of the dataset,
            in waves or at once; `slice_s`: until each has another part of it.
        local_share: of the samples that a node needs in an epoch, which lie in its own part. The order is
            shuffled over the whole dataset, so over the epochs every node needs every sample.
        shards: of `shard_bytes`, enough that every node has a stream of its own to each.
        samples_per_rank, steps: of an epoch; `device_s`, `source_s`: an epoch, by the GPUs and by the source
            alone; `epoch_s`: by both. A job whose model rate is unknown: `device_s` is 0.
        index_bytes: beside the shards, and beside every copy of them. The order is computed, not stored.
    """

    nodes: int
    gpus: int
    node_bytes_per_s: float
    source_bytes_per_s: float
    served: int
    waves: int
    first_copy_s: float
    stage_s: float
    slice_s: float
    local_share: float
    shards: int
    shard_bytes: int
    samples_per_rank: int
    steps: int
    device_s: float
    source_s: float
    index_bytes: float

    @property
    def epoch_s(self) -> float:
        return soft_max(self.device_s, self.source_s)


def share(node_per_s: float, store_per_s: float | None, nodes: int) -> float:
    """Return what one node has of a store while `nodes` use it, in bytes or files per second.

    Args:
        node_per_s: what one node gets when it is alone: its link, or its own requests in flight.
        store_per_s: what the store gives all nodes together; None: not known, and taken to be what one node
            was seen to get. A parallel file system gives more: the answer is the least that is to be had.
    """
    return min(node_per_s, (node_per_s if store_per_s is None else store_per_s) / nodes)


def choose_shard_bytes(size_bytes: float, nodes: int) -> int:
    """Return how large shards should be: many enough for all streams, few enough for one folder."""
    wanted = size_bytes / (nodes * _STREAMS)
    usual = max(min(wanted, DEFAULT_SHARD_BYTES), LEAST_SHARD_BYTES)
    return math.ceil(max(usual, size_bytes / MOST_SHARDS))


def at_scale(
    *,
    samples: float,
    size_bytes: float,
    nodes: int,
    gpus: int,
    node_bytes_per_s: float,
    store_bytes_per_s: float | None = None,
    write_bytes_per_s: float = math.inf,
    model_rate: float | None = None,
    batch_size: int = 256,
) -> Scale:
    """Reckon with one dataset on `nodes` nodes with `gpus` GPUs each.

    Args:
        node_bytes_per_s: what one node reads of the source when it is alone.
        store_bytes_per_s: what the source gives all nodes together; None: as much as one node gets.
        write_bytes_per_s: of each node's scratch.
        model_rate: images per second that one GPU trains on; None: not known.
        batch_size: of one GPU.
    """
    store = node_bytes_per_s if store_bytes_per_s is None else store_bytes_per_s
    alone = min(node_bytes_per_s, store, write_bytes_per_s)
    each = share(node_bytes_per_s, store, nodes)
    served = max(min(int(store / alone), nodes), 1)
    ranks = nodes * max(gpus, 1)
    shard_bytes = choose_shard_bytes(size_bytes, nodes)
    copying = min(each, write_bytes_per_s)
    return Scale(
        nodes=nodes,
        gpus=nodes * gpus,
        node_bytes_per_s=each,
        source_bytes_per_s=each * nodes,
        served=served,
        waves=math.ceil(nodes / served),
        first_copy_s=size_bytes / alone,
        stage_s=size_bytes / copying,
        slice_s=size_bytes / nodes / copying,
        local_share=1 / nodes,
        shards=max(math.ceil(size_bytes / shard_bytes), 1),
        shard_bytes=shard_bytes,
        samples_per_rank=math.ceil(samples / ranks),
        steps=math.ceil(samples / (ranks * batch_size)),
        device_s=0.0 if model_rate is None else samples / (ranks * model_rate),
        source_s=size_bytes / (each * nodes),
        index_bytes=samples * INDEX_BYTES_PER_SAMPLE,
    )
