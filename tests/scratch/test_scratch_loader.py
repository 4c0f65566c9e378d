# SPDX-License-Identifier: Apache-2.0
"""Train while staging: a pack flows to scratch while it is read; whatever happens there, training goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate import Cache, ColumnOptions, Loader, RandomResizedCrop, add_column
from feedrate.draws import order_shards
from feedrate.errors import FeedrateError, UsageError
from feedrate.format.manifest import read_manifest
from feedrate.format.pack import Pack
from feedrate.loader.order import Shuffled, Staged
from feedrate.remote.pack import RemotePack
from feedrate.scratch.copy import Copy
from feedrate.scratch.listing import describe_copy
from support.damage import flip_byte
from support.range_server import COUNT, RangeServer
from support.shuffles import measure_shuffle


def make(source: Any, scratch: Path | None, **options: Any) -> Loader:
    fields = ("image", "number")
    image = RandomResizedCrop(24)
    return Loader(source, 4, fields=fields, image=image, output="numpy", scratch=scratch, **options)


def read(loader: Loader) -> list[Any]:
    return list(loader)


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_equal(one, other)


def wait_for_copy(loader: Loader) -> Copy:
    """Return the copy once all of it has landed."""
    pack = loader._resources.pack
    assert isinstance(pack, RemotePack)
    assert pack.copy is not None
    pack.copy.let_flow()
    pack.copy._thread.join(120)
    assert pack.copy.copy.is_complete()
    pack.copy._looked = 0.0
    return pack.copy.copy


def test_every_epoch_gives_the_samples_that_it_would_without_scratch(
    served_pack: Path, scratch: Path, pack_server: RangeServer
) -> None:
    with make(served_pack, None, order="staged") as plain:
        expected = [read(plain), read(plain)]
    for address in (str(served_pack), f"{pack_server.url}/pack"):
        with make(address, scratch) as loader:
            assert_same(read(loader), expected[0])
            wait_for_copy(loader)
            assert_same(read(loader), expected[1])
            stats = loader.stats().fetch
            assert stats is not None
            assert stats.values_from_scratch >= COUNT


def test_the_copy_is_the_source(served_pack: Path, scratch: Path, pack_server: RangeServer) -> None:
    with make(f"{pack_server.url}/pack", scratch) as loader:
        read(loader)
        copy = wait_for_copy(loader)
        assert len(describe_copy(copy).leases) == 1
    assert {p.name: p.read_bytes() for p in copy.data.iterdir()} == {
        p.name: p.read_bytes() for p in served_pack.iterdir()
    }
    assert describe_copy(copy).leases == ()


def test_a_finished_copy_is_read_without_the_source(scratch: Path, pack_server: RangeServer) -> None:
    with make(f"{pack_server.url}/pack", scratch) as loader:
        expected = read(loader)
        wait_for_copy(loader)
    asked = len(pack_server.asked)
    with make(f"{pack_server.url}/pack", scratch) as loader:
        wait_for_copy(loader)
        assert_same(read(loader), expected)
    assert {path for path, _ in pack_server.asked[asked:]} <= {"/pack", "/pack/", "/pack/pack.json"}


def test_most_bytes_are_fetched_once(scratch: Path, pack_server: RangeServer, served_pack: Path) -> None:
    with make(f"{pack_server.url}/pack", scratch) as loader:
        read(loader)
        wait_for_copy(loader)
        sent = pack_server.bytes_sent
        list(loader)
        assert pack_server.bytes_sent == sent
    size_bytes = sum(p.stat().st_size for p in served_pack.iterdir())
    # The first batch is fetched by itself, and the index.
    assert sent <= 1.7 * size_bytes


def test_what_another_process_brings_is_waited_for_and_read_as_it_comes(
    scratch: Path, pack_server: RangeServer, served_pack: Path
) -> None:
    with make(served_pack, None, order="staged") as plain:
        expected = read(plain)
    with make(f"{pack_server.url}/pack", scratch) as loader:
        copy = loader._resources.pack.copy.copy  # type: ignore[attr-defined]
        with copy.take_writer():
            batches = iter(loader)
            found = [next(batches)]
            for name in copy.files:
                if name.endswith(".tar"):
                    copy.part(name).write_bytes((served_pack / name).read_bytes())
            found += batches
    assert_same(found, expected)
    # The first batch of four samples alone.
    assert sum(path.endswith(".tar") for path, _ in pack_server.asked) <= 4


def test_what_another_process_does_not_bring_comes_from_the_source(
    scratch: Path, pack_server: RangeServer, served_pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedrate.scratch.live.IDLE_S", 0.2)
    with make(served_pack, None, order="staged") as plain:
        expected = read(plain)
    with make(f"{pack_server.url}/pack", scratch) as loader:
        live = loader._resources.pack.copy  # type: ignore[attr-defined]
        with live.copy.take_writer():
            assert_same(read(loader), expected)
        assert live._impatient_until
        wait_for_copy(loader)  # the lock is free: this process takes over


def test_a_copy_that_was_interrupted_is_gone_on_with(
    scratch: Path, pack_server: RangeServer, served_pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedrate.scratch.live.CHUNK_BYTES", 1000)
    monkeypatch.setattr("feedrate.scratch.live.STREAMS", 1)
    hangs = threading.Event()

    def hang_soon(_path: str, number: int) -> str | None:
        if number > 40:
            hangs.set()
        return "stall" if number > 40 else None

    pack_server.fault = hang_soon
    loader = make(f"{pack_server.url}/pack", scratch)
    loader._resources.pack.copy.let_flow()  # type: ignore[attr-defined]
    assert hangs.wait(120)
    folder = loader._resources.pack.copy.copy  # type: ignore[attr-defined]
    loader.close()
    parts = sorted(p.name for p in folder.data.iterdir() if p.name.endswith(".part"))
    assert parts
    pack_server.fault = lambda _path, _number: None
    pack_server.released.set()
    with make(f"{pack_server.url}/pack", scratch) as loader:
        copy = wait_for_copy(loader)
    assert {p.name: p.read_bytes() for p in copy.data.iterdir()} == {
        p.name: p.read_bytes() for p in served_pack.iterdir()
    }


def test_a_process_that_ends_while_its_pack_flows_says_nothing(
    scratch: Path, pack_server: RangeServer
) -> None:
    pack_server.fault = lambda path, _number: "stall" if path.endswith(".tar") else None
    code = """if True:
        import sys, time, feedrate
        loader = feedrate.Loader(sys.argv[1], 4, output="numpy", scratch=sys.argv[2])
        loader._resources.pack.copy.let_flow()
        while loader._resources.pack.reader.most_in_flight < 3:
            time.sleep(0.01)"""
    command = [sys.executable, "-c", code, f"{pack_server.url}/pack", str(scratch)]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_copy_that_is_opened_by_its_path_is_held(served_pack: Path, scratch: Path) -> None:
    with make(served_pack, scratch) as loader:
        copy = wait_for_copy(loader)
    with make(copy.path, None) as loader:
        assert len(describe_copy(copy).leases) == 1
        read(loader)
    assert describe_copy(copy).leases == ()


# What can happen to a copy under a running job.


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGE = {
    "flipped": flip,
    "cut short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "deleted": Path.unlink,
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("kind", ["tar", "arrow"])
def test_a_copy_that_is_damaged_under_a_job_is_noticed_and_read_from_the_source(
    scratch: Path, pack_server: RangeServer, what: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with make(f"{pack_server.url}/pack", None, order="staged") as plain:
        expected = [read(plain) for _ in range(5)]
    with make(f"{pack_server.url}/pack", scratch) as loader:
        wait_for_copy(loader)
        assert_same(read(loader), expected[0])
        pack = loader._resources.pack
        for path in sorted(pack.copy.copy.data.glob(f"*.{kind}")):  # type: ignore[attr-defined]
            DAMAGE[what](path)
        pack.files.close()  # as if they had been closed for others
        for wanted in expected[1:]:
            assert_same(read(loader), wanted)
        stats = loader.stats()
    assert stats.bad_samples == 0
    assert stats.fetch is not None
    if kind == "tar":
        assert stats.fetch.spoilt_on_scratch >= 5
        said = [
            r.getMessage()
            for r in caplog.records
            if "the copy on scratch is damaged or gone" in r.getMessage()
        ]
        assert len(said) == 1


def test_a_key_that_is_damaged_on_scratch_is_read_from_the_source(
    served_pack: Path, scratch: Path, pack_server: RangeServer
) -> None:
    options: dict[str, Any] = {"fields": ("key", "number"), "output": "numpy", "seed": 3}
    with Loader(served_pack, 4, order="staged", **options) as plain:
        expected = read(plain)
    with make(f"{pack_server.url}/pack", scratch) as loader:
        copy = wait_for_copy(loader)
    for shard in read_manifest(served_pack).shards:
        flip_byte(copy.data / shard.index.name, shard.index.columns["key"][1] + 2)
    with Loader(f"{pack_server.url}/pack", 4, scratch=scratch, **options) as loader:
        assert_same(read(loader), expected)


def test_a_copy_that_vanishes_while_it_is_made_does_not_stop_training(
    scratch: Path, pack_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedrate.scratch.live.CHUNK_BYTES", 500)
    with make(f"{pack_server.url}/pack", None, order="staged") as plain:
        expected = read(plain)
    with make(f"{pack_server.url}/pack", scratch) as loader:
        found = []
        for batch in loader:
            found.append(batch)
            if len(found) == 2:
                folder = scratch / f"feedrate-{os.getuid()}"
                while folder.exists():  # its files get their names meanwhile
                    shutil.rmtree(folder, ignore_errors=True)
    assert_same(found, expected)


def test_scratch_that_is_full_does_not_stop_training(
    small_disk: Path,
    pack_server: RangeServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("feedrate.scratch.staging.check_room", lambda *_: None)
    (small_disk / "other").write_bytes(bytes(20_000))  # somebody fills the rest
    with make(f"{pack_server.url}/pack", None, order="staged") as plain:
        expected = read(plain)
    with make(f"{pack_server.url}/pack", small_disk) as loader:
        loader._resources.pack.copy.let_flow()  # type: ignore[attr-defined]
        loader._resources.pack.copy._thread.join(120)  # type: ignore[attr-defined]
        assert_same(read(loader), expected)
    assert "copying to" in caplog.text
    assert "the disk is full" in caplog.text


def test_no_scratch_is_no_reason_to_stop(
    served_pack: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("feedrate.scratch.folder.list_scratch", lambda *_: [])
    with Loader(served_pack, 4, scratch="auto", output="numpy") as loader:
        assert len(list(loader)) == COUNT // 4
    assert "is read without a copy on scratch: no scratch disk found" in caplog.text


def test_scratch_that_was_named_and_is_not_there_is_an_error(served_pack: Path, tmp_path: Path) -> None:
    with pytest.raises(FeedrateError, match="no scratch folder at"):
        Loader(served_pack, scratch=tmp_path / "no" / "such")
    with (
        Loader(served_pack, 4, output="numpy") as loader,
        pytest.raises(UsageError, match="not an opened pack"),
    ):
        Loader(loader._resources.pack, scratch=tmp_path)


def test_with_a_cache_too_a_damaged_copy_is_read_from_the_source(
    scratch: Path, pack_server: RangeServer
) -> None:
    with make(f"{pack_server.url}/pack", None, order="staged") as plain:
        expected = [read(plain) for _ in range(3)]
    cache = Cache(ram="25KB")  # a part of them
    with make(f"{pack_server.url}/pack", scratch, cache=cache) as loader:
        copy = wait_for_copy(loader)
        for path in sorted(copy.data.glob("*.tar")):
            flip(path)
        for wanted in expected:
            assert_same(read(loader), wanted)
        stats = loader.stats()
    assert stats.fetch is not None
    assert stats.cache is not None
    # Of five damaged samples some may have come from the source at first, and be in the cache since.
    assert (stats.bad_samples, stats.fetch.spoilt_on_scratch > 0) == (0, True)


def test_what_the_cache_keeps_is_not_fetched_again(pack_server: RangeServer) -> None:
    with make(f"{pack_server.url}/pack", None, cache=Cache(ram="10MB")) as loader:
        read(loader)
        asked = len(pack_server.asked)
        read(loader)
    assert len(pack_server.asked) == asked


# The order while a pack flows to scratch.


def edges(*sizes: int) -> np.ndarray:
    return np.cumsum([0, *sizes]).astype(np.int64)


@pytest.mark.parametrize("sizes", [(5,), (300, 300), (1000, 10, 0, 700, 256), (100,) * 40])
def test_the_first_epoch_has_every_sample_once(sizes: tuple[int, ...]) -> None:
    order = Staged(sum(sizes), 3, edges(*sizes), block=16, window_blocks=4)
    slots = np.arange(sum(sizes))
    assert np.array_equal(np.sort(order.at(0).indices(slots)), slots)


def test_later_epochs_are_full_shuffles() -> None:
    order, full = Staged(999, 3, edges(500, 499)), Shuffled(999, 3)
    slots = np.arange(999)
    assert np.array_equal(order.at(5).indices(slots), full.at(5).indices(slots))


def test_shards_are_read_from_their_beginning_a_group_at_a_time() -> None:
    sizes = (640,) * 8
    order = Staged(sum(sizes), 0, edges(*sizes), block=16, window_blocks=4)
    windows = order.at(0).indices(np.arange(sum(sizes))).reshape(-1, 64)
    turns = order_shards(8)
    for number, window in enumerate(windows):
        shards = np.unique(window // 640)
        assert set(shards) == set(turns[4 * (number // 40) :][:4])
        assert (window % 640 // 16 == number % 40).all()


def test_other_seeds_mix_otherwise_and_take_the_same_windows() -> None:
    one, two = (Staged(4000, seed, edges(*(400,) * 10)).at(0).indices(np.arange(4000)) for seed in (1, 2))
    assert not np.array_equal(one, two)
    assert np.array_equal(np.sort(one[:4000]), np.sort(two[:4000]))


def test_the_first_epoch_shuffles_well() -> None:
    sizes = (2000,) * 64
    found = measure_shuffle(Staged(sum(sizes), 0, edges(*sizes)).at(0).indices(np.arange(sum(sizes))))
    assert found.displacement > 0.9
    assert found.batch_spread > 0.85
    assert found.neighbours < 0.001


def test_a_split_is_read_in_the_order_of_the_flow(served_pack: Path) -> None:
    with make(served_pack, None, order="staged", split=(0, 0.5)) as loader:
        numbers = np.concatenate([numbers for _, numbers in loader])
    with make(served_pack, None, split=(0, 0.5)) as loader:
        expected = np.concatenate([numbers for _, numbers in loader])
    assert sorted(numbers) == sorted(expected)


def test_a_state_of_the_first_epoch_goes_on_without_scratch(served_pack: Path, scratch: Path) -> None:
    with make(served_pack, scratch) as loader:
        given = iter(loader)
        next(given)
        state, rest = loader.state_dict(), list(given)
    assert state["order"] == "staged"
    with make(served_pack, None, order="staged") as loader:
        loader.load_state_dict(state)
        assert_same(read(loader), rest)
    with make(served_pack, None) as loader, pytest.raises(UsageError, match="another kind of order"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("damaged", ["shard", "column"])
def test_no_sample_of_a_pack_with_an_added_text_is_lost_by_a_flipped_bit_on_scratch(
    served_pack: Path, scratch: Path, tmp_path: Path, damaged: str
) -> None:
    pack = Pack(served_pack)
    keys = pack.keys(np.arange(COUNT))[0]
    (tmp_path / "t.csv").write_text("key,note\n" + "".join(f"{key},about {key}\n" for key in keys))
    add_column(served_pack, tmp_path / "t.csv", ColumnOptions(key_column="key", kind="text"))
    fields = ("key", "note", "image")
    with Loader(served_pack, 4, fields=fields, image=RandomResizedCrop(24), output="numpy") as loader:
        expected = sorted((key, note) for batch in loader for key, note in zip(*batch[:2], strict=True))
    image = RandomResizedCrop(24)
    with Loader(served_pack, 4, fields=fields, image=image, output="numpy", scratch=scratch) as loader:
        read(loader)
        copy = wait_for_copy(loader)
    rows, _ = pack.rows(np.arange(COUNT))
    if damaged == "shard":
        flip_byte(copy.data / pack.manifest.shards[0].name, int(rows["image.offset"][0]) + 300)
    else:
        part = copy.data / read_manifest(served_pack).parts[0].name
        flip_byte(part, part.read_bytes().index(f"about {keys[0]}".encode()) + 2)
    with Loader(served_pack, 4, fields=fields, image=image, output="numpy", scratch=scratch) as loader:
        found = sorted((key, note) for batch in loader for key, note in zip(*batch[:2], strict=True))
    assert found == expected


def test_a_damaged_part_of_the_index_costs_no_sample_where_two_threads_meet_it(
    served_pack: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = Pack(served_pack)
    part = pack.manifest.shards[0].index.name
    with make(served_pack, scratch) as loader:
        copy = wait_for_copy(loader)
        expected = pack.keys(np.arange(2))
    flip_byte(copy.data / part, (copy.data / part).read_bytes().index(expected[0][0].encode()))
    with make(served_pack, scratch) as loader:
        remote = loader._resources.pack
        assert isinstance(remote, RemotePack)
        has_met_it, found, bring = threading.Event(), [], remote._index.bring
        other = threading.Thread(target=lambda: found.append(remote.keys(np.arange(2))))

        def renew(self: RemotePack, positions: Any, real: Any = RemotePack._renew_index) -> bool:
            if threading.current_thread() is other:
                has_met_it.set()
            return bool(real(self, positions))

        def bring_slowly(files: Any, *, again: bool = False) -> None:
            if again:  # the other thread finds the same damage before it is mended
                other.start()
                assert has_met_it.wait(60)
            bring(files, again=again)

        monkeypatch.setattr(RemotePack, "_renew_index", renew)
        monkeypatch.setattr(remote._index, "bring", bring_slowly)
        assert remote.keys(np.arange(2)) == expected
        other.join(60)
    assert found == [expected]
