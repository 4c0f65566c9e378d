# SPDX-License-Identifier: Apache-2.0
"""A pack that somebody else made contacts no address of its choice."""

from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feedrate import AppendOptions, Dataset, Loader, append, index, split, verify
from feedrate.cli import main
from feedrate.errors import PackError, UsageError
from feedrate.format.manifest import FILE_NAME, dump_manifest, read_manifest
from feedrate.scratch.commands import stage
from support.range_server import RangeServer, serve
from support.sources import jpeg, write_tar

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[RangeServer]:
    """A server with one shard."""
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    (tmp_path / "shards").mkdir()
    files = {f"{n}.{ext}": data for n in range(6) for ext, data in (("jpg", jpeg(n)), ("cls", b"1"))}
    write_tar(tmp_path / "shards" / "x.tar", files)
    with serve(tmp_path / "shards") as server:
        yield server


@pytest.fixture
def pack(shards: RangeServer, tmp_path: Path) -> Path:
    """An index on this machine of that shard."""
    index(f"{shards.url}/x.tar", tmp_path / "packs" / "set", workers=1)
    shards.asked.clear()
    return tmp_path / "packs" / "set"


@pytest.fixture
def other_pack(pack: Path) -> Iterator[str]:
    """The same index on another server."""
    with serve(pack.parent) as server:
        yield f"{server.url}/set"


def load(source: Any, **options: Any) -> int:
    with Loader(source, 4, fields=("label",), output="numpy", **options) as loader:
        return sum(len(labels) for (labels,) in loader)


def open_dataset(source: Any, **options: Any) -> int:
    return len(Dataset(source, **options))


@pytest.mark.parametrize("open_it", [load, open_dataset])
def test_a_pack_behind_an_address_contacts_no_other_host(
    shards: RangeServer, other_pack: str, open_it: Callable[..., int]
) -> None:
    with pytest.raises(PackError, match=f"{other_pack} names files at {shards.url}") as caught:
        open_it(other_pack)
    assert shards.asked == []
    assert f'allow_addresses=["{shards.url}"]' in str(caught.value.hint)
    assert f"--allow-address {shards.url}" in str(caught.value.hint)
    for allowed in (shards.url, [f"{shards.url}/"]):
        assert open_it(other_pack, allow_addresses=allowed) == 6
    with pytest.raises(PackError, match="names files at"):
        open_it(other_pack, allow_addresses=[f"{shards.url}/other", "https://127.0.0.1"])


def test_a_pack_may_name_files_of_its_own_host(shards: RangeServer) -> None:
    index(f"{shards.url}/x.tar", shards.folder / "set", workers=1)
    assert load(f"{shards.url}/set") == 6


def bring_to_another_machine(pack: Path, tmp_path: Path) -> None:
    """Let the pack be what a user gets who did not make it: `tar` writes all files as this user's own."""
    with tarfile.open(tmp_path / "pack.tar", "w") as archive:
        archive.add(pack, pack.name)
    shutil.rmtree(pack)
    subprocess.run(["tar", "xf", tmp_path / "pack.tar", "-C", pack.parent], check=True)
    os.environ["XDG_STATE_HOME"] = str(tmp_path / "another home")


@pytest.mark.parametrize("open_it", [load, open_dataset])
def test_a_pack_that_was_downloaded_contacts_nobody(
    shards: RangeServer, pack: Path, tmp_path: Path, open_it: Callable[..., int]
) -> None:
    bring_to_another_machine(pack, tmp_path)
    with pytest.raises(PackError, match=f"names files at {shards.url}, and it is not known as") as caught:
        open_it(pack)
    assert shards.asked == []
    assert f'allow_addresses=["{shards.url}"]' in str(caught.value.hint)
    assert open_it(pack, allow_addresses=[shards.url]) == 6


def test_an_index_made_here_is_read_under_any_name_and_with_further_columns(
    pack: Path, tmp_path: Path
) -> None:
    os.rename(pack, tmp_path / "moved")
    (tmp_path / "moved").chmod(0o777)
    assert load(tmp_path / "moved") == 6
    split(tmp_path / "moved", {"train": 0.5, "val": 0.5})
    assert load(tmp_path / "moved") == 6


def test_an_index_whose_addresses_were_changed_contacts_nobody(shards: RangeServer, pack: Path) -> None:
    manifest = read_manifest(pack)
    moved = tuple(dataclasses.replace(shard, name="y.tar") for shard in manifest.shards)
    (pack / FILE_NAME).write_bytes(dump_manifest(dataclasses.replace(manifest, shards=moved)))
    with pytest.raises(PackError, match=f"names files at {shards.url}"):
        load(pack)
    assert shards.asked == []


def test_a_note_that_others_may_have_written_is_not_believed(shards: RangeServer, pack: Path) -> None:
    Path(os.environ["XDG_STATE_HOME"], "feedrate", "indexes").chmod(0o777)
    with pytest.raises(PackError, match=f"names files at {shards.url}"):
        load(pack)
    assert shards.asked == []


def test_an_index_that_cannot_be_noted_says_what_its_readers_have_to_type(
    shards: RangeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.environ["XDG_STATE_HOME"] = "/dev/null/none"
    words = ["index", f"{shards.url}/x.tar", str(tmp_path / "set"), "--workers", "1"]
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "cannot keep a note in /dev/null/none/feedrate/indexes" in said
    assert f'allow_addresses=["{shards.url}"]' in said
    assert f"--allow-address {shards.url}" in said
    with pytest.raises(PackError, match=f"names files at {shards.url}"):
        load(tmp_path / "set")
    assert load(tmp_path / "set", allow_addresses=[shards.url]) == 6


def test_a_dataset_in_another_process_is_allowed_the_same(shards: RangeServer, other_pack: str) -> None:
    dataset = Dataset(other_pack, fields=["label"], output="numpy", allow_addresses=[shards.url])
    assert pickle.loads(pickle.dumps(dataset))[0] == dataset[0]


def test_staging_contacts_no_other_host(shards: RangeServer, other_pack: str, scratch: Path) -> None:
    for start in (stage, lambda source, scratch: load(source, scratch=scratch)):
        with pytest.raises(PackError, match=f"names files at {shards.url}"):
            start(other_pack, scratch)
    assert shards.asked == []
    assert load(other_pack, scratch=scratch, allow_addresses=[shards.url]) == 6
    assert load(stage(other_pack, scratch, allow_addresses=[shards.url]).path) == 6


def test_verifying_and_appending_ask_first_too(shards: RangeServer, pack: Path, tmp_path: Path) -> None:
    bring_to_another_machine(pack, tmp_path)
    with pytest.raises(PackError, match=f"names files at {shards.url}"):
        verify(pack)
    shutil.copytree(pack, tmp_path / "other")
    with pytest.raises(PackError, match=f"names files at {shards.url}"):
        append(tmp_path / "other", pack)
    assert shards.asked == []
    assert verify(tmp_path / "other", workers=1, allow_addresses=[shards.url]).problems == ()
    shutil.rmtree(pack)
    index(f"{shards.url}/x.tar", pack, workers=1)
    options = AppendOptions(prefix="other", allow_addresses=(shards.url,))
    assert append(tmp_path / "other", pack, options).samples == 12
    assert load(pack) == 12


@pytest.mark.parametrize("command", ["stage", "verify", "verify --pixels 3"])
def test_the_commands_show_the_line_to_type_and_take_it(
    shards: RangeServer,
    pack: Path,
    scratch: Path,
    tmp_path: Path,
    command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bring_to_another_machine(pack, tmp_path)
    words = [*command.split(), str(pack)] + (["--scratch", str(scratch)] if command == "stage" else [])
    assert main(words) == 1
    assert f"--allow-address {shards.url}" in capsys.readouterr().err
    assert shards.asked == []
    assert main([*words, "--allow-address", shards.url]) == 0


def test_a_relative_path_does_not_lead_to_another_host(
    shards: RangeServer, pack: Path, other_pack: str
) -> None:
    manifest = read_manifest(pack)
    folder = f"../../{shards.url.removeprefix('http://')}"
    moved = tuple(dataclasses.replace(shard, folder=folder) for shard in manifest.shards)
    (pack / FILE_NAME).write_bytes(dump_manifest(dataclasses.replace(manifest, shards=moved)))
    for open_it in (load, verify_by_staging):
        with pytest.raises(PackError, match=r"names files outside of its address: '\.\./\.\./127"):
            open_it(other_pack, allow_addresses=[shards.url])
    assert shards.asked == []


def verify_by_staging(source: str, **options: Any) -> None:
    stage(source, "auto", **options)


def test_what_is_no_address_is_not_allowed(pack: Path) -> None:
    for wrong in ("host", ["/x"], "https://"):
        with pytest.raises(UsageError, match=r"allow_addresses .* SCHEME://PLACE"):
            load(pack, allow_addresses=wrong)
