# SPDX-License-Identifier: Apache-2.0
"""A pack that somebody else made contacts no address of its choice."""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feedrate import Dataset, Loader, MergeOptions, index, merge, verify
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


def make_foreign(pack: Path) -> str:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to somebody else")
    os.chown(pack / FILE_NAME, 12345, -1)
    return "belongs to"


def make_writable(pack: Path) -> str:
    os.chmod(pack, 0o777)
    return "others may write to"


def make_group_writable(pack: Path) -> str:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to a group of others")
    os.chown(pack / FILE_NAME, -1, 12345)
    os.chmod(pack / FILE_NAME, 0o664)
    return "others may write to"


@pytest.mark.parametrize("spoil", [make_foreign, make_writable, make_group_writable])
def test_a_pack_of_this_machine_that_others_may_have_written_contacts_nobody(
    shards: RangeServer, pack: Path, spoil: Callable[[Path], str]
) -> None:
    assert load(pack) == 6
    shards.asked.clear()
    words = spoil(pack)
    with pytest.raises(PackError, match=f"names files at {shards.url}, and .*{words}") as caught:
        load(pack)
    assert shards.asked == []
    assert ("chmod go-w" in str(caught.value.hint)) == (words == "others may write to")
    assert load(pack, allow_addresses=[shards.url]) == 6


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


def test_verifying_and_merging_ask_first_too(shards: RangeServer, pack: Path, tmp_path: Path) -> None:
    make_writable(pack)
    with pytest.raises(PackError, match=f"names files at {shards.url}"):
        verify(pack)
    with pytest.raises(PackError, match=f"names files at {shards.url}"):
        merge([pack, pack], tmp_path / "both")
    assert shards.asked == []
    assert verify(pack, workers=1, allow_addresses=[shards.url]).problems == ()
    options = MergeOptions(prefix=True, allow_addresses=(shards.url,))
    os.rename(pack, tmp_path / "other")
    index(f"{shards.url}/x.tar", pack, workers=1)
    assert merge([pack, tmp_path / "other"], tmp_path / "both", options).samples == 12


@pytest.mark.parametrize("command", ["stage", "verify", "fidelity", "bench kernel"])
def test_the_commands_show_the_line_to_type_and_take_it(
    shards: RangeServer, pack: Path, scratch: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_writable(pack)
    words = [*command.split(), str(pack)] + (["--scratch", str(scratch)] if command == "stage" else [])
    words += ["--rounds", "1"] if command == "bench kernel" else []
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
