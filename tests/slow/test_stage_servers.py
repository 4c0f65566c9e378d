# SPDX-License-Identifier: Apache-2.0
"""Packs are staged from real S3, HTTP and SFTP servers, which are killed and started again meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrate.errors import NotFound
from feedrate.format.fields import Field, Kind
from feedrate.scratch.commands import stage
from feedrate.scratch.staging import StagingOptions, open_staging
from support.images import read_tree
from support.packs import LABEL, write_pack
from support.scratches import Running, wait_for, write_tree
from support.servers import CUT_CONNECTIONS, RealServer, start_server

pytestmark = [pytest.mark.slow, *CUT_CONNECTIONS]

KINDS = ["s3", "http", "sftp"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A pack of 12 MB that cannot be compressed."""
    fields = (Field("blob", Kind.BYTES), LABEL)
    samples = [{"blob": os.urandom(1_000_000), "label": n % 3} for n in range(12)]
    return write_pack(tmp_path / "set.pack", fields, samples, shards=3)


@contextlib.contextmanager
def serve(kind: str, folder: Path, **trees: Path) -> Iterator[RealServer]:
    """Start a server that has these folders; what a process has seen of another one is forgotten."""
    for name, tree in trees.items():
        shutil.copytree(tree, folder / kind / "served" / name)
    with start_server(kind, folder / kind) as server:
        if kind == "s3":
            __import__("s3fs").S3FileSystem.clear_instance_cache()
        yield server


@pytest.mark.parametrize("kind", KINDS)
def test_a_pack_and_a_file_come_from_a_real_server(
    kind: str, source: Path, tmp_path: Path, scratch: Path
) -> None:
    plain = write_tree(tmp_path / "plain", {"a.bin": b"a" * 70_000, "b.bin": b"b"})
    with serve(kind, tmp_path, pack=source, plain=plain) as server:
        result = stage(f"{server.url}/pack", scratch)
        assert read_tree(Path(result.path)) == read_tree(source)
        assert (result.kind, result.is_public, result.copied_files) == ("pack", False, 7)
        single = stage(f"{server.url}/plain/a.bin", scratch)
        assert Path(single.path).read_bytes() == b"a" * 70_000
        with pytest.raises(NotFound, match="no dataset at"):
            stage(f"{server.url}/nothing", scratch)


@pytest.mark.parametrize("kind", ["s3", "sftp"])
def test_a_folder_of_plain_files_comes_from_a_server_that_lists(
    kind: str, tmp_path: Path, scratch: Path
) -> None:
    tree = {"a.bin": b"a" * 70_000, "below/b.bin": b"b", "below/c d": b"c"}
    plain = write_tree(tmp_path / "plain", tree)
    with serve(kind, tmp_path, plain=plain) as server:
        assert read_tree(Path(stage(f"{server.url}/plain", scratch).path)) == tree


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_killed_and_started_again_costs_nothing(
    kind: str, source: Path, tmp_path: Path, scratch: Path
) -> None:
    said: list[str] = []
    with serve(kind, tmp_path, pack=source) as server:
        options = StagingOptions(streams=2, rate_limit=4_000_000)
        with (
            open_staging(f"{server.url}/pack", scratch, options=options, say=said.append) as staging,
            Running(staging) as running,
        ):
            wait_for(lambda: staging.copied_bytes > 500_000, "some bytes")
            server.kill()
            wait_for(lambda: bool(said), "the staging to notice")
            server.start()
            running.end()
            assert read_tree(staging.copy.path) == read_tree(source)
    assert "trying again in" in said[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_that_breaks_in_every_block_is_gone_on_with(
    kind: str, source: Path, tmp_path: Path, scratch: Path
) -> None:
    with serve(kind, tmp_path, pack=source) as server:
        server.line.break_bytes = 400_000
        result = stage(f"{server.url}/pack", scratch)
        assert read_tree(Path(result.path)) == read_tree(source)
        assert server.line.cuts >= 20
