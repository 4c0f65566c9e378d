# SPDX-License-Identifier: Apache-2.0
"""A pack behind an address gives the batches that it gives from a folder of this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import fsspec.asyn
import numpy as np
import pytest

from feedrate import Dataset, Loader, PackOptions, RandomResizedCrop, append, index, pack
from feedrate.errors import BadSample, NotFound, PackError, StorageError
from feedrate.format.pack import Pack
from feedrate.loader.packs import open_pack
from feedrate.remote.index_files import PREFIX, sweep
from feedrate.remote.pack import RemotePack
from feedrate.remote.prefetch import Ahead
from feedrate.remote.retry import RetryPolicy
from support.images import save_image
from support.packs import write_everything, write_images
from support.range_server import RangeServer, serve
from support.scratches import wait_for

QUICK = RetryPolicy(stall_s=120, give_up_s=120, first_wait_s=0.001, longest_wait_s=0.01)


@pytest.fixture(autouse=True)
def index_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Temporary folders are made here, and none is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield
    assert [name for name in os.listdir(folder) if name.startswith(PREFIX)] == []


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/packs"):
        system.rm("/packs", recursive=True)


@pytest.fixture
def everything(tmp_path: Path, memory: Any) -> Path:
    folder = write_everything(tmp_path / "pack", count=30)
    memory.put(str(folder), "/packs/pack", recursive=True)
    return folder


def batches(source: Any, size: int = 7, epochs: int = 2, **options: Any) -> list[Any]:
    with Loader(source, size, image=RandomResizedCrop(24), output="numpy", **options) as loader:
        return [batch for _ in range(epochs) for batch in loader]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for value, wanted in zip(one, other, strict=True):
            np.testing.assert_equal(value, wanted)


FIELDS = (
    "image", "small", "mask", "label", "weight", "points", "ragged", "caption", "meta", "blob", "boxes",
    "key", "number",
)  # fmt: skip


@pytest.mark.parametrize("order", ["shuffled", "windowed", "staged", "sequential"])
def test_batches_are_the_same_from_there(everything: Path, order: str) -> None:
    options: dict[str, Any] = {"shuffle": False} if order == "sequential" else {"order": order}
    options["fields"] = FIELDS
    assert_same(batches("memory://packs/pack", **options), batches(everything, **options))


def test_ranks_and_states_are_the_same_from_there(everything: Path) -> None:
    for rank in range(2):
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "seed": 3}
        assert_same(batches("memory://packs/pack", 4, **options), batches(everything, 4, **options))
    with Loader(everything, 4, image=RandomResizedCrop(24), output="numpy") as here:
        before = iter(here)
        next(before)
        state, rest = here.state_dict(), list(before)
    with Loader("memory://packs/pack", 4, image=RandomResizedCrop(24), output="numpy") as there:
        there.load_state_dict(state)
        assert_same(list(there), rest)


def test_a_dataset_reads_from_there(everything: Path) -> None:
    there, here = (Dataset(p, output="numpy") for p in ("memory://packs/pack", str(everything)))
    assert len(there) == len(here)
    for i in (3, 17, -1):
        np.testing.assert_equal(there[i], here[i])
    copy = pickle.loads(pickle.dumps(there))
    np.testing.assert_equal(copy[5], here[5])
    assert there.targets == here.targets
    there._open().pack.close()
    copy._open().pack.close()


def test_packs_that_name_files_of_others_are_read_from_there(tmp_path: Path, memory: Any) -> None:
    for name in ("one", "two"):
        for n in range(5):
            save_image(tmp_path / name / "cat" / f"{name}{n}.jpg", n)
        pack(tmp_path / name, tmp_path / "packs" / name, PackOptions(workers=1))
    append(tmp_path / "packs" / "two", tmp_path / "packs" / "one")
    save_image(tmp_path / "three" / "cat" / "new.jpg", 9)
    append(tmp_path / "three", tmp_path / "packs" / "one")
    memory.put(str(tmp_path / "packs"), "/packs", recursive=True)
    assert_same(batches("memory://packs/one", 3), batches(tmp_path / "packs" / "one", 3))


def test_files_that_were_indexed_in_place_are_read_from_there(tmp_path: Path, memory: Any) -> None:
    for n in range(6):
        save_image(tmp_path / "packs" / "photos" / "cat" / f"{n}.jpg", n)
    index(tmp_path / "packs" / "photos", tmp_path / "packs" / "index")
    memory.put(str(tmp_path / "packs"), "/packs", recursive=True)
    assert_same(batches("memory://packs/index", 4), batches(tmp_path / "packs" / "index", 4))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    write_images(tmp_path / "served" / "pack", count=60, shards=3)
    with serve(tmp_path / "served") as server:
        yield server


def test_a_web_server_gives_the_same_batches(server: RangeServer) -> None:
    assert_same(batches(f"{server.url}/pack"), batches(server.folder / "pack"))


def test_neighbours_are_asked_for_together(server: RangeServer) -> None:
    batches(f"{server.url}/pack", 4, epochs=1, shuffle=False)
    shards = [path for path, _ in server.asked if path.endswith(".tar")]
    # The first batch alone, then two, four, eight: 15 batches of neighbours.
    assert len(shards) <= 8


def test_bytes_are_fetched_once_per_epoch(server: RangeServer) -> None:
    with Loader(f"{server.url}/pack", 4, output="numpy") as loader:
        list(loader)
        stats = loader.stats().fetch
    assert stats is not None
    size_bytes = sum(p.stat().st_size for p in (server.folder / "pack").iterdir())
    assert stats.bytes_fetched <= 2 * size_bytes  # with gaps between neighbours
    assert stats.requests == len(server.asked) - 1  # pack.json


def test_a_server_that_errs_now_and_then_costs_no_sample(server: RangeServer) -> None:
    expected = batches(server.folder / "pack", 4, fields=("image", "number"))
    server.fault = lambda _path, number: ("error", "cut", None)[number % 3]
    source = open_pack(f"{server.url}/pack", policy=QUICK)
    assert_same(batches(source, 4, fields=("image", "number")), expected)
    source.close()


def test_a_line_that_breaks_within_every_request_is_gone_on_with_where_it_broke(server: RangeServer) -> None:
    expected = batches(server.folder / "pack", 20, fields=("image", "number"))
    server.fault = lambda path, _number: "break" if path.endswith((".tar", ".arrow")) else None
    source = open_pack(f"{server.url}/pack", policy=replace(QUICK, tries=4))
    assert_same(batches(source, 20, fields=("image", "number")), expected)
    source.close()
    asked = [int(wanted.removeprefix("bytes=").split("-")[0]) for _, wanted in server.asked if wanted]
    assert len(set(asked)) > 10 * len(expected)  # never twice from the same byte on within an epoch


def test_a_line_that_breaks_again_and_again_is_said_once(
    server: RangeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "feedrate")
    server.fault = lambda path, _number: "break" if path.endswith(".tar") else None
    source = open_pack(f"{server.url}/pack", policy=QUICK)
    batches(source, 20, fields=("image", "number"))
    source.close()
    assert ["answers again" in record.getMessage() for record in caplog.records] == [False, True]


def test_a_loader_that_is_left_while_requests_wait_says_nothing(
    server: RangeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedrate.remote.prefetch.STOP_S", 0.01)
    loop, held = fsspec.asyn.get_loop(), threading.Event()
    with Loader(f"{server.url}/pack", 4, output="numpy") as loader:
        loop.call_soon_threadsafe(held.wait)
        iter(loader)
        wait_for(lambda: loader.stats().fetch.requests > 0, "something to be asked for")
    held.set()
    for _ in range(3):  # until what was asked for had its turn
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
    assert [record.getMessage() for record in caplog.records] == []


def test_a_server_that_is_restarted_under_an_epoch_costs_no_sample(server: RangeServer) -> None:
    expected = batches(server.folder / "pack", 2, epochs=1, fields=("number", "image"))
    source = open_pack(f"{server.url}/pack", policy=QUICK)
    found = []
    with Loader(source, 2, output="numpy", image=RandomResizedCrop(24), fields=("number", "image")) as loader:
        for step, batch in enumerate(loader):
            found.append(batch)
            if step == 2:
                server.stop()
                restart = threading.Timer(0.3, server.start)
                restart.start()
    restart.join()
    source.close()
    assert_same(found, expected)


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_server_that_stays_away_ends_in_a_sentence(server: RangeServer, policy: Any) -> None:
    source = open_pack(f"{server.url}/pack", policy=RetryPolicy(give_up_s=0.05, first_wait_s=0.01))
    server.fault = lambda path, _number: "error" if path.endswith(".tar") else None
    with (
        Loader(source, 4, output="numpy", on_bad_sample=policy) as loader,
        pytest.raises(StorageError, match=r"cannot read .*/pack/shard-0000\d\.tar"),
    ):
        list(loader)
    source.close()


def test_a_file_of_a_folder_index_that_is_gone_or_short_at_the_source_is_one_sample(
    server: RangeServer,
) -> None:
    for n in range(30):
        save_image(server.folder / "s" / "cat" / f"{n:02}.jpg", n)
    index(server.folder / "s")
    (server.folder / "s" / "cat" / "03.jpg").unlink()
    os.truncate(server.folder / "s" / "cat" / "05.jpg", 100)
    source = open_pack(f"{server.url}/s.index", policy=QUICK)
    options = {"image": RandomResizedCrop(8), "fields": ("key", "image"), "output": "numpy"}
    with Loader(source, 4, on_bad_sample="skip", **options) as loader:
        keys = {key for keys, _ in loader for key in keys}
        assert len(keys) == 28
        assert not {"cat/03", "cat/05"} & keys
        (server.folder / "s").rename(server.folder / "gone")
        with pytest.raises(
            StorageError, match=r"the files of .*/s\.index are gone: 8 were looked for, and none is there"
        ):
            list(loader)
    source.close()


def test_a_shard_that_is_cut_short_at_the_source_is_not_skipped(server: RangeServer) -> None:
    os.truncate(server.folder / "pack" / "shard-00001.tar", 200)
    source = open_pack(f"{server.url}/pack", policy=QUICK)
    with (
        Loader(source, 4, shuffle=False, output="numpy", on_bad_sample="skip") as loader,
        pytest.raises(StorageError, match=r"shard-00001\.tar"),
    ):
        list(loader)
    source.close()


def test_leaving_a_loop_that_waits_for_a_dead_server_takes_no_time(server: RangeServer) -> None:
    server.fault = lambda path, _number: "stall" if path.endswith(".tar") else None
    loader = Loader(f"{server.url}/pack", 4, output="numpy")
    iter(loader)
    loader.close()  # would hang


def test_a_wrong_byte_at_the_source_is_a_bad_sample(server: RangeServer) -> None:
    shard = server.folder / "pack" / "shard-00001.tar"
    spoilt = bytearray(shard.read_bytes())
    spoilt[10] ^= 1
    shard.write_bytes(spoilt)
    with (
        Loader(f"{server.url}/pack", 4, output="numpy") as loader,
        pytest.raises(BadSample, match=r"shard-00001\.tar at byte 0"),
    ):
        list(loader)
    with Loader(f"{server.url}/pack", 4, on_bad_sample="skip", fields=("number",), output="numpy") as loader:
        assert sum(len(numbers) for (numbers,) in loader) == 60


def test_addresses_without_a_pack_get_a_sentence(server: RangeServer, memory: Any) -> None:
    del memory
    for url in (f"{server.url}/nothing", "memory://packs/nothing"):
        with pytest.raises(NotFound, match=f"no pack at {url}: it has no pack.json"):
            Loader(url)


def test_a_damaged_index_at_the_source_gets_a_sentence(server: RangeServer) -> None:
    part = server.folder / "pack" / "shard-00000.arrow"
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(PackError, match=r"shard-00000\.arrow is not what pack\.json describes"):
        batches(f"{server.url}/pack")


def test_a_part_of_the_index_that_came_damaged_is_fetched_once_more(server: RangeServer) -> None:
    damaged: list[str] = []

    def flip_once(path: str, _number: int) -> str | None:
        if not path.endswith((".arrow", "pack.json")) or path in damaged:
            return None
        damaged.append(path)
        return "flip"

    expected = batches(server.folder / "pack")
    server.fault = flip_once
    assert_same(batches(f"{server.url}/pack"), expected)
    assert len(damaged) == 4


def test_a_pack_json_that_does_not_come_at_once_is_asked_for_again(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once by who reads the pack, and once by who copies it."""
    monkeypatch.setattr("feedrate.remote.retry.RetryPolicy.wait_s", lambda *_: 0.0)
    (tmp_path / "scr").mkdir()
    expected = batches(server.folder / "pack", order="staged")
    asked: list[str] = []

    def fail_now_and_then(path: str, _number: int) -> str | None:
        asked.append(path)
        return "error" if path.endswith("pack.json") and asked.count(path) % 4 else None

    server.fault = fail_now_and_then
    found = batches(f"{server.url}/pack", order="staged", scratch=tmp_path / "scr")
    assert_same(found, expected)
    assert asked.count("/pack/pack.json") == 8


def test_memory_is_bounded(server: RangeServer) -> None:
    """Groups of batches are planned only while there is room; one is always allowed."""
    source = open_pack(f"{server.url}/pack")
    assert isinstance(source, RemotePack)
    most = 0
    ahead = Ahead(source, 15, lambda step: np.arange(4 * step, 4 * step + 4), ["image"], budget_bytes=5000)
    ahead.start()
    for step in range(15):
        with ahead.batch(step):
            most = max(most, ahead.held_bytes)
    ahead.stop()
    source.close()
    assert 0 < most <= 10_000


def test_what_was_fetched_reaches_whichever_thread_makes_the_batch(server: RangeServer) -> None:
    source = open_pack(f"{server.url}/pack")
    assert isinstance(source, RemotePack)
    ahead, positions = Ahead(source, 1, lambda _: np.arange(4), ["image"]), np.arange(4)
    ahead.start()
    with ahead.batch(0) as batch_pack:
        before = source.fetch_stats().requests

        def find() -> None:
            rows, _ = batch_pack.rows(positions, ["image"])
            batch_pack.find_values("image", rows, positions)

        thread = threading.Thread(target=find)
        thread.start()
        thread.join()
        assert source.fetch_stats().requests == before
        assert source.fetch_stats().values_from_source == 4
    ahead.stop()
    source.close()


def test_only_the_index_that_is_needed_is_brought(server: RangeServer) -> None:
    source = open_pack(f"{server.url}/pack")
    source.rows(np.arange(5))
    assert [path for path, _ in server.asked if path.endswith(".arrow")] == ["/pack/shard-00000.arrow"]
    source.close()


@pytest.mark.parametrize(
    "held", [(), (".lock",), ("lock", "shard-00000.arrow")], ids=["mkdir", "open", "use"]
)
def test_a_temporary_folder_of_a_process_that_was_killed_any_time_is_swept(
    server: RangeServer, tmp_path: Path, held: tuple[str, ...]
) -> None:
    left = tmp_path / "temporary" / f"{PREFIX}left"
    left.mkdir()
    for name in held:
        (left / name).touch()
    with closing(open_pack(f"{server.url}/pack")):
        assert not left.exists()


def test_a_temporary_folder_that_is_swept_while_it_is_made_is_made_anew(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = tempfile.mkdtemp, []

    def mkdtemp(**words: Any) -> str:
        made.append(real(**words))
        if len(made) == 1:
            sweep(tempfile.gettempdir())
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with closing(open_pack(f"{server.url}/pack")) as source:
        source.rows(np.arange(5))
    assert len(made) == 2


def test_a_fork_opens_the_pack_anew(everything: Path) -> None:
    with Loader("memory://packs/pack", 4, image=RandomResizedCrop(24), output="numpy") as loader:
        expected = list(loader)
        loader.set_epoch(0)
        child = os.fork()
        if child == 0:
            try:
                same = all(np.array_equal(a[0], b[0]) for a, b in zip(loader, expected, strict=True))
                loader.close()
                os._exit(0 if same else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert_same(list(loader), expected)
    assert everything.exists()


def test_a_folder_of_this_machine_is_opened_as_ever(everything: Path) -> None:
    assert type(open_pack(everything)) is Pack
