# SPDX-License-Identifier: Apache-2.0
"""The sample cache: bounded, shared, checked, and gone with its last process."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.cache import sharing, store
from feedrate.cache.limits import MemoryWatch
from feedrate.cache.store import SampleCache, Tier
from feedrate.errors import UsageError
from feedrate.machine.memory import MemoryRoom

RAM = Tier("ram", 10_000)
PLENTY = MemoryRoom(free_bytes=10**12, unwritten_bytes=0, limit_bytes=10**9)
SHORT = MemoryRoom(free_bytes=10**6, unwritten_bytes=0, limit_bytes=10**9)


@pytest.fixture
def shelve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SampleCache]]:
    """Make shelves that are nobody else's, with plenty of memory that no thread watches; close them."""
    monkeypatch.setattr(store, "Watcher", lambda *_: None)
    made: list[SampleCache] = []

    def make(*tiers: Tier, samples: int = 100, key: str = "") -> SampleCache:
        made.append(SampleCache(key or uuid.uuid4().hex, samples, tiers or (RAM,)))
        made[-1].watch._measure = lambda: PLENTY
        return made[-1]

    yield make
    for shelf in made:
        shelf.close()


def disk(tmp_path: Path, limit_bytes: int | None = None) -> Tier:
    return Tier("disk", limit_bytes, str(tmp_path))


def sample(number: int, size: int = 100) -> bytes:
    return np.random.default_rng(number).bytes(size)


def lists_of(shelf: SampleCache) -> list[str]:
    """Return the lists of a cache's files that processes have open."""
    return list(sharing._find_lists(shelf._name()))


def test_what_was_put_comes_back_and_nothing_else(shelve) -> None:
    shelf = shelve()
    assert shelf.put(3, b"three")
    assert shelf.put(4, b"", b"four")
    assert shelf.put(5, b"")
    assert [shelf.get(number) for number in (3, 4, 5, 6)] == [b"three", b"four", b"", None]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 900)), max_size=40))
def test_a_shelf_is_a_dictionary_that_stops_at_its_limit(puts: list[tuple[int, int]]) -> None:
    shelf = SampleCache(uuid.uuid4().hex, 10, (Tier("ram", 2000),))
    shelf.watch._measure = lambda: PLENTY
    model: dict[int, bytes] = {}
    try:
        for seed, (number, size) in enumerate(puts):
            fits = number in model or sum(map(len, model.values())) + size <= 2000
            assert shelf.put(number, sample(seed, size)) == fits
            if fits:
                model.setdefault(number, sample(seed, size))
        assert {n: bytes(data) for n in range(10) if (data := shelf.get(n)) is not None} == model
        (tier,) = shelf.opened.tier_stats()
        assert (tier.samples, tier.size_bytes) == (len(model), sum(map(len, model.values())))
    finally:
        shelf.close()


def test_a_sample_goes_to_the_disk_when_memory_is_full(shelve, tmp_path: Path) -> None:
    shelf = shelve(Tier("ram", 250), disk(tmp_path, 250))
    assert [shelf.put(number, sample(number)) for number in range(5)] == [True] * 4 + [False]
    assert [tier.samples for tier in shelf.opened.tier_stats()] == [2, 2]
    assert [tier.samples for tier in shelf.opened.tier_stats(np.array([0, 2, 3, 4]))] == [1, 2]
    assert all(shelf.get(number) == sample(number) for number in range(4))


def test_the_disk_has_no_file_with_a_name(shelve, tmp_path: Path) -> None:
    shelf = shelve(disk(tmp_path))
    shelf.put(0, sample(0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["ram", "disk"])
@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_damaged_bytes_are_never_returned(shelve, tmp_path: Path, kind: str, damage: str) -> None:
    shelf = shelve(RAM if kind == "ram" else disk(tmp_path))
    for number in range(3):
        shelf.put(number, sample(number))
    offset = int(shelf.opened.locate(np.array([1])).rows["offset"][0])
    with open(shelf.opened.paths[0], "r+b") as file:
        if damage == "cut":
            file.truncate(offset + 50)
        else:
            file.seek(offset + 50)
            file.write(bytes([sample(1)[50] ^ 4]))
    assert shelf.get(0) == sample(0)
    assert shelf.get(1) is None
    assert (shelf.get(2) is None) == (damage == "cut")
    assert shelf.opened.damaged == (2 if damage == "cut" else 1)
    # There is no second try with the same bytes; from its source it may come back.
    assert not shelf.opened.locate(np.array([1])).found[0]
    assert shelf.put(1, sample(1))
    assert shelf.get(1) == sample(1)


def test_a_row_with_a_flipped_bit_is_not_used(shelve) -> None:
    shelf = shelve()
    shelf.put(1, sample(1))
    rows = shelf.opened.table._rows
    rows["offset"][1] ^= 64
    assert shelf.get(1) is None


def test_a_full_disk_ends_the_filling_and_nothing_else(small_disk: Path, shelve) -> None:
    shelf = shelve(Tier("disk", None, str(small_disk)))
    kept = [number for number in range(100) if shelf.put(number, sample(number, 3000))]
    assert 5 < len(kept) < 25
    assert all(shelf.get(number) == sample(number, 3000) for number in kept)


def test_a_disk_that_refuses_to_write_ends_the_filling(shelve, tmp_path: Path, monkeypatch) -> None:
    shelf = shelve(disk(tmp_path))
    shelf.put(0, sample(0))

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        assert not shelf.put(1, sample(1))
    assert not shelf.put(2, sample(2))
    assert shelf.get(0) == sample(0)


def test_shelves_of_one_key_are_one_and_those_of_another_are_not(shelve) -> None:
    first, second, other = shelve(key="a-key"), shelve(key="a-key"), shelve(key="another")
    first.put(7, sample(7))
    assert second.get(7) == sample(7)
    assert other.get(7) is None
    first.close()
    assert second.get(7) == sample(7)


def test_a_shelf_is_gone_when_its_last_user_leaves(shelve) -> None:
    first = shelve(key="goes")
    first.put(7, sample(7))
    assert len(lists_of(first)) == 1
    first.close()
    assert lists_of(first) == []
    assert shelve(key="goes").get(7) is None


def test_a_closed_shelf_says_so(shelve) -> None:
    shelf = shelve()
    shelf.close()
    shelf.close()
    with pytest.raises(UsageError, match="closed"):
        shelf.put(0, b"")


@pytest.mark.parametrize("number", [-1, 100])
def test_a_number_that_is_none_is_refused(shelve, number: int) -> None:
    with pytest.raises(IndexError, match=r"sample -?1(00)? of a cache that has 100"):
        shelve().put(number, b"")


def test_a_fork_shares_the_shelf_of_its_parent(shelve) -> None:
    shelf = shelve()
    shelf.put(0, sample(0))
    child = os.fork()
    if not child:
        is_there = shelf.get(0) == sample(0) and shelf.put(1, sample(1)) and len(lists_of(shelf)) == 2
        os._exit(0 if is_there else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert shelf.get(1) == sample(1)


CHILD = """
import pickle, sys
shelf = pickle.loads(sys.stdin.buffer.read())
ok = all(shelf.get(n) is not None for n in range(5)) and shelf.put(50, b"from a child")
shelf.close()
sys.exit(0 if ok else 1)
"""


def test_another_process_finds_the_shelf_by_what_it_was_made_of(shelve) -> None:
    shelf = shelve()
    for number in range(5):
        shelf.put(number, sample(number))
    done = subprocess.run([sys.executable, "-c", CHILD], input=pickle.dumps(shelf), check=False)
    assert done.returncode == 0
    assert shelf.get(50) == b"from a child"


FILLER = """
import sys, numpy as np
from feedrate.cache.store import SampleCache as Shelf, Tier
shelf = Shelf(sys.argv[1], 400, (Tier("ram", 10**8),))
for number in np.random.default_rng(int(sys.argv[2])).permutation(400).tolist():
    assert shelf.put(number, np.random.default_rng(number).bytes(500 + number))
print("done", flush=True)
sys.stdin.read()
"""


def test_processes_that_fill_at_once_lose_nothing(shelve) -> None:
    shelf = shelve(Tier("ram", 10**8), samples=400, key=(key := uuid.uuid4().hex))
    words = [sys.executable, "-c", FILLER, key]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    children = [subprocess.Popen([*words, str(seed)], **pipes) for seed in range(3)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
    assert all(shelf.get(number) == sample(number, 500 + number) for number in range(400))
    (tier,) = shelf.opened.tier_stats()
    assert (tier.samples, tier.size_bytes) == (400, sum(range(500, 900)))
    for child in children:
        child.communicate()
        assert child.returncode == 0


def test_a_killed_process_leaves_nothing(shelve) -> None:
    key = uuid.uuid4().hex
    words = [sys.executable, "-c", FILLER, key, "0"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        child.send_signal(signal.SIGKILL)
    shelf = shelve(Tier("ram", 10**8), samples=400, key=key)
    assert len(lists_of(shelf)) == 1  # its own
    assert shelf.get(0) is None


def test_a_gate_that_others_can_enter_is_not_used(tmp_path: Path) -> None:
    (tmp_path / f"feedrate-shared-{os.getuid()}").mkdir(0o755)
    assert sharing.find_gate((str(tmp_path),)) is None
    (tmp_path / "other").mkdir()
    found = sharing.find_gate((str(tmp_path), str(tmp_path / "other")))
    assert found is not None
    assert found.parent == tmp_path / "other"
    assert found.stat().st_mode & 0o777 == 0o700


def test_a_link_in_place_of_the_gate_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / f"feedrate-shared-{os.getuid()}").symlink_to(tmp_path / "real")
    assert sharing.find_gate((str(tmp_path),)) is None


def test_a_job_is_named_by_its_scheduler() -> None:
    assert sharing.name_job({"SLURM_JOB_ID": "17"}) == "SLURM_JOB_ID=17"
    assert sharing.name_job({"SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n2"}) == "SLURM_JOB_ID=17 n2"
    assert sharing.name_job({}) == sharing.name_job({})


def test_memory_that_runs_short_is_given_back_and_the_rest_stays(shelve) -> None:
    shelf = shelve(Tier("ram"))
    for number in range(100):
        assert shelf.put(number, sample(number, 100_000))
    before = os.stat(shelf.opened.paths[0]).st_blocks
    shelf.watch._measure = lambda: MemoryRoom(146 * 10**6, 0, 10**9)
    assert shelf.opened.relieve() == 0  # the margin is 100 MB
    shelf.watch._measure = lambda: MemoryRoom(96 * 10**6, 0, 10**9)
    assert shelf.opened.relieve() == 100 * 100_000
    assert os.stat(shelf.opened.paths[0]).st_blocks < before / 50
    assert shelf.opened.returned_bytes == 10_000_000
    assert shelf.opened.damaged == 0


def test_only_as_much_is_given_back_as_is_needed(shelve) -> None:
    shelf = shelve(Tier("ram"))
    for number in range(100):
        assert shelf.put(number, sample(number, 100_000))
    shelf.watch.must_return = lambda: 950_000  # type: ignore[method-assign]
    assert shelf.opened.relieve() == 1_000_000
    assert [number for number in range(100) if shelf.get(number) is None] == list(range(90, 100))
    assert all(shelf.get(number) == sample(number, 100_000) for number in range(90))


def test_a_sample_that_was_being_written_when_memory_was_given_back_is_not_kept(shelve, monkeypatch) -> None:
    shelf = shelve(Tier("ram"))
    for number in range(10):
        assert shelf.put(number, sample(number, 5000))
    write = store.write_all

    def write_late(*arguments) -> None:
        shelf.watch.must_return = lambda: 10**9  # type: ignore[method-assign]
        shelf.opened.relieve()
        write(*arguments)

    monkeypatch.setattr(store, "write_all", write_late)
    assert not shelf.put(20, sample(20, 5000))
    assert shelf.get(20) is None
    assert shelf.opened.tier_stats()[0].size_bytes == 0
    monkeypatch.setattr(store, "write_all", write)
    shelf.watch.must_return = lambda: 0  # type: ignore[method-assign]
    assert shelf.put(20, sample(20, 5000))
    assert shelf.get(20) == sample(20, 5000)


def test_nothing_is_taken_while_memory_is_short(shelve) -> None:
    shelf = shelve(Tier("ram"))
    shelf.watch._measure = lambda: SHORT
    assert not shelf.opened.has_room(1)
    assert not shelf.put(0, b"x")


def test_what_samples_are_made_of_is_left_in_the_page_cache() -> None:
    watch = MemoryWatch(lambda: MemoryRoom(10**9, 0, 10**9))
    assert watch.may_take(10**6, keep_bytes=8 * 10**8)
    assert not watch.may_take(10**6, keep_bytes=86 * 10**7)


def test_a_shelf_that_is_collected_while_another_is_opened_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: list[SampleCache] = [SampleCache("lost", 4, [Tier("ram", 1 << 20)])]

    def collect(*_: object) -> list[str]:
        if lost:
            lost.pop().close()  # as its finalizer does, whenever the garbage collector runs
        return []

    monkeypatch.setattr("feedrate.cache.sharing._find_lists", collect)
    SampleCache("found", 4, [Tier("ram", 1 << 20)]).close()
    assert lost == []
