# SPDX-License-Identifier: Apache-2.0
"""A source behind an address is looked for there, now, and what cannot be seen counts as gone."""

from __future__ import annotations

import dataclasses
import functools
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from feedrate.scratch import source_check
from feedrate.scratch.copy import Copy
from feedrate.scratch.eviction import Kept, SourceUnseen
from feedrate.scratch.marker import Marker
from feedrate.scratch.source_check import NotAsCopied, stat_source
from support.images import read_tree
from support.scratch_copies import evict_copy, make_files, make_pack, names_in, stage

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture
def bucket() -> Iterator[Any]:
    """A store that tells no times of change."""
    fs = fsspec.filesystem("memory")
    yield fs
    if fs.exists("/bucket"):
        fs.rm("/bucket", recursive=True)


@pytest.fixture(params=[make_pack, make_files], ids=["pack", "files"])
def copy(request: pytest.FixtureRequest, bucket: Any, tmp_path: Path) -> Copy:
    local = request.param(tmp_path / "set")
    bucket.put(f"{local}/", "/bucket/set", recursive=True)
    return stage("memory://bucket/set", tmp_path / "scr")


def some_object(bucket: Any) -> str:
    return str(sorted(name for name in bucket.find("/bucket/set") if not name.endswith("pack.json"))[-1])


def test_a_copy_of_a_remote_source_goes_when_that_is_there(copy: Copy) -> None:
    evict_copy(copy)
    assert names_in(copy.folder.parents[1]) == []


def test_it_stays_when_an_object_is_gone(copy: Copy, bucket: Any) -> None:
    bucket.rm(some_object(bucket))
    with pytest.raises(SourceUnseen, match="memory://bucket/set"):
        evict_copy(copy)
    assert copy.is_complete()


def test_it_stays_when_an_object_has_another_size(copy: Copy, bucket: Any) -> None:
    bucket.pipe(some_object(bucket), b"short")
    with pytest.raises(SourceUnseen, match="has 5 bytes and had"):
        evict_copy(copy)
    assert copy.is_complete()


def test_plain_objects_without_times_are_read(bucket: Any, tmp_path: Path) -> None:
    bucket.pipe("/bucket/set/a.bin", b"one way")
    copy = stage("memory://bucket/set", tmp_path / "scr")
    bucket.pipe("/bucket/set/a.bin", b"another")
    with pytest.raises(SourceUnseen, match="was changed after it was copied"):
        evict_copy(copy)
    bucket.pipe("/bucket/set/a.bin", b"one way")
    evict_copy(copy)


def test_a_store_that_does_not_answer_has_nothing_to_show(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TimeoutError("no answer")

    for name in ("info", "ls"):
        monkeypatch.setattr(fsspec.implementations.memory.MemoryFileSystem, name, fail)
    with pytest.raises(SourceUnseen, match=r"was not seen: .*no answer"):
        evict_copy(copy)
    assert copy.is_complete()


def test_listings_that_were_made_before_do_not_count(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    forget = fsspec.implementations.memory.MemoryFileSystem.invalidate_cache
    monkeypatch.setattr(
        fsspec.implementations.memory.MemoryFileSystem,
        "invalidate_cache",
        lambda fs, path=None: (asked.append(path), forget(fs, path)),
    )
    evict_copy(copy)
    assert len(asked) >= 2  # before each of the two looks


@pytest.mark.parametrize("kind", ["simplecache", "filecache", "blockcache"])
def test_what_is_seen_through_a_cache_was_not_seen(copy: Copy, kind: str) -> None:
    cached = dataclasses.replace(copy.marker, source=f"{kind}::{copy.marker.source}")
    with pytest.raises(NotAsCopied, match="is seen through a cache"):
        stat_source(cached)


def test_files_of_other_folders_are_looked_for_there(copy: Copy, bucket: Any) -> None:
    """As of a pack that refers to shards of others: storages know no '..'."""
    first = copy.marker.files[0]
    bucket.pipe("/bucket/other/there", b"x" * first.size_bytes)
    moved = dataclasses.replace(first, origin="../other/there")
    marker = dataclasses.replace(copy.marker, files=(moved,))
    assert stat_source(marker)[first.name].size_bytes == first.size_bytes


def test_many_files_of_one_folder_are_seen_by_one_listing(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        bucket.pipe(f"/bucket/set/{number}.bin", b"%d" % number)
    copy = stage("memory://bucket/set", tmp_path / "scr")
    monkeypatch.setattr(source_check, "_find", lambda *_: pytest.fail("asked for a single file"))
    assert len(stat_source(copy.marker)) == 20


def test_a_source_that_one_may_not_read_any_more_counts_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = stage(make_files(tmp_path / "set"), tmp_path / "scr")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read everything
    with pytest.raises(Kept, match="may not be read"):
        evict_copy(copy)


def test_what_was_made_for_the_copy_is_not_looked_for(tmp_path: Path) -> None:
    copy = stage(make_files(tmp_path / "set"), tmp_path / "scr")
    made: Marker = dataclasses.replace(
        copy.marker, files=tuple(dataclasses.replace(file, origin="") for file in copy.marker.files)
    )
    assert stat_source(made) == {}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """Serve folders on loopback; a call returns the address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(folder: Path) -> str:
        handler = functools.partial(Quiet, directory=str(folder))
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def move_source(copy: Copy, address: str) -> None:
    """Let a copy have been made of what a web server serves, which tells no times of change."""
    files = tuple(dataclasses.replace(file, mtime_ns=0) for file in copy.marker.files)
    copy.update(dataclasses.replace(copy.marker, source=address, files=files))


def test_a_copy_that_a_server_serves_as_the_source_stays(
    tmp_path: Path, serve: Callable[[Path], str]
) -> None:
    pytest.importorskip("aiohttp")
    copy = stage(make_pack(tmp_path / "set"), tmp_path / "scr")
    move_source(copy, serve(copy.path))
    before = read_tree(copy.folder)
    with pytest.raises(SourceUnseen, match="was not seen"):
        evict_copy(copy)
    assert read_tree(copy.folder) == before
    move_source(copy, serve(tmp_path / "set"))
    evict_copy(copy)
    assert names_in(tmp_path / "scr") == []
