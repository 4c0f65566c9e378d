# SPDX-License-Identifier: Apache-2.0
"""One job on many nodes, on paper: the shares, the copies, the shards, the steps."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.model.scale import LEAST_SHARD_BYTES, MOST_SHARDS, at_scale, choose_shard_bytes, share

rates, sizes = st.floats(1e6, 1e13), st.floats(1e3, 1e16)
counts, samples = st.integers(1, 20_000), st.integers(1, 10**12)


def test_nodes_below_the_stores_rate_have_their_whole_link() -> None:
    assert share(1e9, 10e9, 8) == 1e9


def test_nodes_above_the_stores_rate_share_it() -> None:
    assert share(1e9, 10e9, 40) == 0.25e9


def test_a_store_of_unknown_rate_gives_all_nodes_what_one_was_seen_to_get() -> None:
    assert share(1e9, None, 4) == 0.25e9


def test_a_copy_on_every_node_takes_as_long_as_the_source_needs_for_all_of_them() -> None:
    scale = at_scale(
        samples=1e6, size_bytes=100e9, nodes=40, gpus=8, node_bytes_per_s=1e9, store_bytes_per_s=10e9
    )
    assert (scale.served, scale.waves) == (10, 4)
    assert scale.first_copy_s == 100
    assert scale.stage_s == pytest.approx(40 * 100e9 / 10e9)
    assert scale.stage_s == pytest.approx(scale.waves * scale.first_copy_s)


def test_slices_take_as_long_as_the_source_needs_for_one_copy() -> None:
    scale = at_scale(
        samples=1e6, size_bytes=100e9, nodes=40, gpus=8, node_bytes_per_s=1e9, store_bytes_per_s=10e9
    )
    assert scale.slice_s == pytest.approx(10)
    assert scale.local_share == 1 / 40


def test_a_slow_scratch_disk_is_what_a_copy_waits_for() -> None:
    scale = at_scale(
        samples=1e6, size_bytes=1e12, nodes=2, gpus=1, node_bytes_per_s=5e9, store_bytes_per_s=50e9,
        write_bytes_per_s=0.5e9,
    )  # fmt: skip
    assert scale.stage_s == scale.first_copy_s == 2000
    assert scale.source_s == 100


def test_a_petabyte_on_a_thousand_gpus_stays_finite_and_sensible() -> None:
    scale = at_scale(
        samples=1e15 / 110e3, size_bytes=1e15, nodes=125, gpus=8, node_bytes_per_s=25e9,
        store_bytes_per_s=1e12, model_rate=4695,
    )  # fmt: skip
    assert all(math.isfinite(value) for value in astuple(scale))
    assert scale.gpus == 1000
    assert scale.node_bytes_per_s == 8e9
    assert scale.shards <= MOST_SHARDS
    assert scale.shard_bytes == 10e9
    assert scale.samples_per_rank == 9_090_910
    assert scale.steps == 35_512
    assert scale.device_s == pytest.approx(1936, rel=0.01)
    assert scale.source_s == pytest.approx(1000)
    assert scale.stage_s == pytest.approx(1e15 / 8e9)  # a day and a half, and no scratch disk holds it


def test_a_model_of_unknown_rate_leaves_the_source_as_the_limit() -> None:
    scale = at_scale(samples=1e6, size_bytes=100e9, nodes=2, gpus=4, node_bytes_per_s=1e9)
    assert scale.device_s == 0
    assert scale.epoch_s == scale.source_s == 100


def test_nodes_without_a_gpu_count_as_one_rank_each() -> None:
    scale = at_scale(samples=1000, size_bytes=1e9, nodes=4, gpus=0, node_bytes_per_s=1e9, batch_size=10)
    assert (scale.gpus, scale.samples_per_rank, scale.steps) == (0, 250, 25)


@given(rates, rates, counts)
def test_more_nodes_never_have_more_each_and_never_less_together(
    node: float, store: float, nodes: int
) -> None:
    few, many = share(node, store, nodes), share(node, store, nodes + 1)
    assert many <= few
    assert many * (nodes + 1) >= few * nodes * (1 - 1e-12)
    assert few * nodes <= store * (1 + 1e-12)


@given(samples, sizes, counts, st.integers(0, 16), rates, rates, st.floats(1, 1e5))
def test_an_epoch_is_never_longer_on_more_nodes_or_with_a_faster_store(
    count: int, size: float, nodes: int, gpus: int, node: float, store: float, rate: float
) -> None:
    def reckon(nodes: int, store: float) -> float:
        return at_scale(
            samples=count, size_bytes=size, nodes=nodes, gpus=gpus, node_bytes_per_s=node,
            store_bytes_per_s=store, model_rate=rate,
        ).epoch_s  # fmt: skip

    once = reckon(nodes, store)
    assert 0 < once < math.inf
    assert reckon(nodes * 2, store) <= once * (1 + 1e-9)
    assert reckon(nodes, store * 2) <= once * (1 + 1e-9)


@given(samples, sizes, counts, rates, rates, rates)
def test_copies_take_longer_on_more_nodes_and_slices_never_do(
    count: int, size: float, nodes: int, node: float, store: float, write: float
) -> None:
    few, many = (
        at_scale(
            samples=count, size_bytes=size, nodes=n, gpus=8, node_bytes_per_s=node, store_bytes_per_s=store,
            write_bytes_per_s=write,
        )
        for n in (nodes, nodes + 1)
    )  # fmt: skip
    assert few.stage_s <= many.stage_s * (1 + 1e-9)
    assert many.slice_s <= few.slice_s * (1 + 1e-9)
    assert few.first_copy_s <= few.stage_s * (1 + 1e-9)
    assert few.slice_s <= few.stage_s
    assert 1 <= few.served <= nodes
    assert few.waves * few.served >= nodes


@given(sizes, counts)
def test_shards_fill_a_folder_and_no_more(size: float, nodes: int) -> None:
    shard_bytes = choose_shard_bytes(size, nodes)
    assert shard_bytes >= LEAST_SHARD_BYTES
    assert math.ceil(size / shard_bytes) <= MOST_SHARDS


@given(samples, counts, st.integers(1, 16), st.integers(1, 4096))
def test_all_ranks_together_see_every_sample(count: int, nodes: int, gpus: int, batch: int) -> None:
    scale = at_scale(
        samples=count, size_bytes=1e9, nodes=nodes, gpus=gpus, node_bytes_per_s=1e9, batch_size=batch
    )
    ranks = nodes * gpus
    assert (scale.samples_per_rank - 1) * ranks < count <= scale.samples_per_rank * ranks
    assert (scale.steps - 1) * batch * ranks < count <= scale.steps * batch * ranks
