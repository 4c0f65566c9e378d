# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.loader.order import Shuffled
from feedrate.loader.ranks import Shares
from feedrate.model import limits
from feedrate.model.ways import (
    Load,
    Store,
    choose_shard_bytes,
    cold_s,
    copy_s,
    count_epochs_to_pay,
    epoch,
    find_unevenness,
    find_workers,
    lru_share,
    pack_s,
    share,
)

SLOW = Store(
    stat_s=0.002, file_s=0.006, read_s=0.002, stream_bytes_per_s=50e6, total_bytes_per_s=100e6,
    files_per_s=2000, warm_file_s=2e-5, warm_bytes_per_s=4e9, write_bytes_per_s=80e6, create_s=0.004,
    keeps_pages=True,
)  # fmt: skip
FAST = Store(2e-5, 1e-4, 5e-5, 1e9, 3e9, 1e5, 2e-5, 4e9, 1e9, 5e-5, True)
PHOTOS = Load(
    samples=10_000, sample_bytes=110e3, is_files=True, fetch_cpu_s=0.007, cores=2.0, workers=2, device_s=0.0
)

stores = st.builds(
    Store, st.floats(1e-6, 1), st.floats(1e-6, 1), st.floats(1e-6, 1), st.floats(1e5, 1e10),
    st.floats(1e6, 1e11), st.floats(1, 1e6), st.floats(1e-6, 1e-3), st.floats(1e8, 1e10),
    st.floats(1e6, 1e10),
    st.floats(1e-6, 1), st.booleans(),
)  # fmt: skip
loads = st.builds(
    Load, samples=st.floats(1, 1e9), sample_bytes=st.floats(1, 1e8), is_files=st.booleans(),
    fetch_cpu_s=st.floats(1e-6, 10), cores=st.floats(0.5, 512), workers=st.floats(1, 512),
    device_s=st.floats(0, 1),
)  # fmt: skip


@given(loads, stores)
def test_an_epoch_from_memory_is_never_slower_than_one_from_the_store(load: Load, store: Store) -> None:
    store = replace(
        store, warm_file_s=min(store.warm_file_s, store.file_s), warm_bytes_per_s=store.stream_bytes_per_s
    )
    assert epoch(load, store, warm=1.0).seconds <= epoch(load, store, warm=0.0).seconds * 1.0001


@given(loads, stores, st.floats(1, 100))
def test_a_slower_store_never_makes_an_epoch_faster(load: Load, store: Store, factor: float) -> None:
    slower = replace(store, file_s=store.file_s * factor, read_s=store.read_s * factor,
                     stream_bytes_per_s=store.stream_bytes_per_s / factor)  # fmt: skip
    assert epoch(load, slower, warm=0.0).seconds >= epoch(load, store, warm=0.0).seconds * 0.9999


@given(loads, stores)
def test_no_epoch_is_faster_than_its_device_its_cores_or_its_store(load: Load, store: Store) -> None:
    seconds = epoch(load, store, warm=0.0).seconds / load.samples
    for least in (load.device_s, load.fetch_cpu_s / load.cores, load.sample_bytes / store.total_bytes_per_s):
        assert seconds >= least * 0.9999


def test_two_readers_that_wait_for_a_slow_store_take_half_of_its_latency_per_file() -> None:
    found = epoch(replace(PHOTOS, fetch_cpu_s=1e-6), SLOW, warm=0.0)
    assert found.seconds == pytest.approx(10_000 * (0.006 + 110e3 / 50e6) / 2, rel=0.01)
    assert found.limit == limits.STORAGE


def test_two_workers_that_decode_on_two_cores_wait_for_the_cores() -> None:
    assert epoch(PHOTOS, FAST, warm=1.0).limit == limits.DECODE


def test_a_slow_device_is_the_limit_whatever_the_store() -> None:
    found = epoch(replace(PHOTOS, device_s=0.1), SLOW, warm=0.0)
    assert (found.limit, found.seconds) == (limits.DEVICE, pytest.approx(1000, rel=0.01))


def test_workers_that_wait_for_a_store_are_wanted_in_larger_numbers_than_there_are_cores() -> None:
    waiting = replace(PHOTOS, fetch_cpu_s=0.001, device_s=0.0005)
    assert find_workers(waiting, SLOW, 64, each=1) > 4
    assert find_workers(waiting, FAST, 64, each=1) <= 3


def test_copying_many_small_files_takes_their_latency_in_eight_streams() -> None:
    asking, copying = 8000 * 0.002 / 8, 8000 * 0.006 / 8
    assert copy_s(8000, 8000 * 100, SLOW, FAST) == pytest.approx(asking + copying + 8000 * 0.25e-3, rel=0.05)


def test_copying_one_large_file_takes_the_rate_of_the_store() -> None:
    assert copy_s(1, 10e9, SLOW, FAST) == pytest.approx(100, rel=0.02)


@given(st.floats(1, 1e9), st.floats(1, 1e15), stores, stores)
def test_copying_is_never_faster_than_the_source_gives_or_the_target_takes(
    files: float, size: float, source: Store, target: Store
) -> None:
    least = max(size / source.total_bytes_per_s, size / target.write_bytes_per_s)
    assert copy_s(files, size, source, target) >= least * 0.9999


def test_packing_reads_every_file_once() -> None:
    found = pack_s(replace(PHOTOS, fetch_cpu_s=0.0005), SLOW, FAST, warm=0.0, list_s=3.0, size_bytes=1.2e9)
    asking = 10_000 * 0.002
    assert found == pytest.approx(3 + asking + 10_000 * (0.006 + 110e3 / 50e6 + 0.0005) / 2, rel=0.03)


def test_a_cache_that_evicts_hits_less_often_than_it_holds() -> None:
    assert lru_share(0.5) == pytest.approx(0.153, abs=0.001)
    assert (lru_share(0.0), lru_share(1.0), lru_share(7.0)) == (0.0, 1.0, 1.0)


@given(st.floats(0, 1))
def test_the_share_of_hits_lies_between_nothing_and_what_is_held(share: float) -> None:
    assert -1e-9 <= lru_share(share) <= share + 1e-9


def test_a_way_has_paid_when_its_epochs_have_made_up_for_its_beginning() -> None:
    assert count_epochs_to_pay(100, 50, 50, (60, 60)) == pytest.approx(1 + 90 / 10)
    assert count_epochs_to_pay(0, 50, 50, (60, 60)) == 1.0
    assert count_epochs_to_pay(0, 50, 61, (60, 60), epochs=5) == 1.0
    assert math.isinf(count_epochs_to_pay(0, 50, 61, (60, 60), epochs=50))
    assert math.isinf(count_epochs_to_pay(100, 60, 60, (60, 60)))


@given(stores, st.integers(1, 1000))
def test_nodes_that_read_at_once_share_the_rate_and_not_the_latency(store: Store, nodes: int) -> None:
    shared = store.shared_by(nodes)
    assert shared.total_bytes_per_s * nodes == pytest.approx(store.total_bytes_per_s)
    assert shared.file_s == store.file_s


def test_the_busiest_of_several_workers_has_whole_batches() -> None:
    assert find_unevenness(800, 64, 4) == pytest.approx(224 * 4 / 800)  # the fourth batch is half full
    assert find_unevenness(830, 64, 4) == pytest.approx(254 * 4 / 830)
    assert find_unevenness(1_000_000, 64, 4) == pytest.approx(1.0, abs=0.001)
    assert find_unevenness(10, 64, 4) == 4.0


@given(st.floats(1, 1e9), st.integers(1, 4096), st.integers(1, 512))
def test_no_worker_makes_less_than_nothing_or_more_than_all(samples: float, batch: int, workers: int) -> None:
    assert 1.0 <= find_unevenness(samples, batch, workers) <= workers


def test_a_wait_that_was_measured_counts_in_place_of_what_the_store_would_give() -> None:
    measured = replace(PHOTOS, fetch_cpu_s=1e-6, wait_s=0.1)
    assert epoch(measured, SLOW, warm=0.0).seconds == pytest.approx(10_000 * 0.1 / 2, rel=0.01)


def test_a_read_in_a_shard_waits_once_per_answer_of_the_store() -> None:
    """Answers of 100 KB at most, each after 2 ms: 50 MB/s."""
    shard = replace(PHOTOS, is_files=False)
    assert cold_s(replace(shard, sample_bytes=4e3), SLOW) == pytest.approx(0.002)
    assert cold_s(replace(shard, sample_bytes=150e3), SLOW) == pytest.approx(0.004)
    assert cold_s(replace(shard, sample_bytes=10e6), SLOW) == pytest.approx(0.2, rel=0.01)


def test_the_process_that_serves_a_store_takes_cores_from_workers_that_are_many() -> None:
    many = replace(PHOTOS, workers=64.0, wait_s=0.006, server_s=0.007, read_cpu_s=0.0)
    few = replace(many, workers=1.0)
    alone = replace(many, server_s=0.0)
    assert epoch(many, SLOW, warm=0.0).seconds > 1.7 * epoch(alone, SLOW, warm=0.0).seconds
    assert epoch(few, SLOW, warm=0.0).seconds == pytest.approx(
        epoch(replace(few, server_s=0.0), SLOW, warm=0.0).seconds, rel=0.1
    )
    assert epoch(many, SLOW, warm=1.0) == epoch(alone, SLOW, warm=1.0)


def test_reading_takes_cpu_time_of_what_is_not_in_memory() -> None:
    reading = replace(PHOTOS, workers=1.0, wait_s=0.006, read_cpu_s=0.002)
    costs_s = [epoch(reading, SLOW, warm=warm).seconds / 10_000 for warm in (0.0, 0.5)]
    assert costs_s[0] == pytest.approx(0.015, rel=0.02)
    assert costs_s[1] == pytest.approx(0.011, rel=0.05)


def count_lru_hits(share: float, parts: int, epoch: int) -> float:
    """Return how often one of several readers hits in an epoch, in the Loader's own order and slices."""
    samples = 2000 * parts
    order, shares = Shuffled(samples, seed=5), Shares(samples, batch_size=10, world=parts)
    cache: dict[int, None] = {}
    hits = 0
    for number in range(epoch):
        mine = (
            order.at(number).indices(np.concatenate([shares.slots(i) for i in range(len(shares))])).tolist()
        )
        hits = 0
        for sample in mine:
            hits += sample in cache
            cache.pop(sample, None)
            cache[sample] = None
            if len(cache) > share * samples:
                del cache[next(iter(cache))]
    return hits / len(mine)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(("parts", "epoch"), [(1, 4), (2, 2), (2, 9), (5, 3), (5, 30), (30, 12)])
def test_the_page_cache_of_one_of_several_nodes_hits_as_in_the_loaders_own_order(
    share: float, parts: int, epoch: int
) -> None:
    assert lru_share(share, parts, epoch) == pytest.approx(count_lru_hits(share, parts, epoch), abs=0.04)


def test_nodes_below_the_stores_rate_have_their_whole_link_and_above_it_share_it() -> None:
    assert share(1e9, 10e9, 8) == 1e9
    assert share(1e9, 10e9, 40) == 0.25e9
    assert share(1e9, None, 4) == 0.25e9


@given(st.floats(1e6, 1e13), st.floats(1e6, 1e13), st.integers(1, 20_000))
def test_more_nodes_never_have_more_each_and_never_less_together(
    node: float, store: float, nodes: int
) -> None:
    few, many = share(node, store, nodes), share(node, store, nodes + 1)
    assert many <= few
    assert many * (nodes + 1) >= few * nodes * (1 - 1e-12)
    assert few * nodes <= store * (1 + 1e-12)


@given(st.floats(1e3, 1e16), st.integers(1, 20_000))
def test_shards_fill_a_folder_and_no_more(size: float, nodes: int) -> None:
    shard_bytes = choose_shard_bytes(size, nodes)
    assert shard_bytes >= 16_000_000
    assert size / shard_bytes <= 100_000
