# SPDX-License-Identifier: Apache-2.0
"""Which folder is scratch: what was named, what the scheduler says, the usual places; and refusals."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from feedrate.errors import NotFound, StorageError
from feedrate.machine.disk import describe_storage, is_scratch, list_scratch, measure_room, try_to_reserve
from feedrate.scratch import folder
from feedrate.scratch.folder import find_scratch


@pytest.fixture
def local(tmp_path: Path) -> Path:
    if not is_scratch(tmp_path):
        pytest.skip("temporary files lie in memory or on a network here")
    return tmp_path


def test_what_the_scheduler_names_comes_before_the_usual_places(local: Path) -> None:
    environ = {"SLURM_TMPDIR": str(local), "TMPDIR": "/elsewhere", "USER": "me"}
    found = find_scratch(environ=environ)
    assert (found.path, found.why) == (Path(os.path.realpath(local)), "$SLURM_TMPDIR")
    assert (
        find_scratch("auto", environ={"FEEDRATE_SCRATCH": str(local), **environ}).why == "$FEEDRATE_SCRATCH"
    )
    places = [folder for folder, _ in list_scratch(environ)]
    assert places.index("/scr/me") < places.index("/scr")
    assert places[0] == str(local)


def test_plain_tmp_is_not_scratch() -> None:
    places = [folder for folder, _ in list_scratch({"TMPDIR": "/tmp/"})]
    assert not {"/tmp", "/tmp/"} & set(places)
    assert next(list_scratch({"SLURM_TMPDIR": "/tmp"})) == (
        "/tmp",
        "$SLURM_TMPDIR",
    )  # a job may have one of its own


def test_where_none_is_found_it_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [
        ("/nowhere", "$SLURM_TMPDIR"),
        ("/proc", "a usual place for scratch"),
        ("/no", "a usual place for scratch"),
    ]
    monkeypatch.setattr(folder, "list_scratch", lambda _: iter(places))
    with pytest.raises(NotFound, match="no scratch disk found on this node") as got:
        find_scratch()
    assert "$SLURM_TMPDIR names /nowhere, which is not there" in str(got.value)
    assert "/proc cannot be written to" in str(got.value)
    assert "--scratch DIR" in str(got.value.hint)


def test_a_named_folder_is_made_when_only_it_is_missing(tmp_path: Path) -> None:
    assert find_scratch(tmp_path / "new").path == Path(os.path.realpath(tmp_path)) / "new"
    assert (tmp_path / "new").is_dir()
    with pytest.raises(NotFound, match=r"no scratch folder at .*/not/there"):
        find_scratch(tmp_path / "not" / "there")


def test_a_file_is_not_scratch(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file is a file; scratch must be a folder"):
        find_scratch(tmp_path / "file")


def test_a_folder_that_cannot_be_written_to_is_refused() -> None:
    with pytest.raises(StorageError, match="cannot write to the scratch folder /proc/self"):
        find_scratch("/proc/self")


def test_a_network_file_system_is_refused_unless_the_user_insists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = dataclasses.replace(describe_storage(tmp_path), kind="nfs4", is_network=True)
    monkeypatch.setattr(folder, "describe_storage", lambda _: there)
    with pytest.raises(
        StorageError, match="lies on nfs4, which another machine serves: a copy there is no nearer"
    ) as got:
        find_scratch(tmp_path)
    assert "--allow-network" in str(got.value.hint)
    assert find_scratch(tmp_path, allow_network=True).kind == "nfs4"


def test_room_is_reserved_for_a_moment_only(local: Path) -> None:
    before = measure_room(local)
    assert try_to_reserve(local, 1 << 20) is None
    refusal = try_to_reserve(local, 1 << 60)
    assert refusal is None or refusal.errno
    assert list(local.iterdir()) == []
    assert measure_room(local).free_bytes > before.free_bytes // 2
