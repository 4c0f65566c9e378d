# SPDX-License-Identifier: Apache-2.0
"""`feedrate stage --warm`, and what `feedrate ls` says of the page cache."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from feedrate import index
from feedrate.cli import main
from feedrate.errors import PackError, UsageError
from feedrate.format.pack import Pack
from feedrate.machine.disk import describe_storage
from feedrate.machine.memory import measure_residency
from feedrate.packing.check.describe import find_room, list_paths, measure_pack_residency, warm
from feedrate.report.check import draw_warm
from support.images import save_image
from support.packs import write_images


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return write_images(tmp_path / "pack", count=12, shards=3)


def make_cold(pack: Path) -> list[Path]:
    files = sorted(path for path in pack.iterdir() if path.suffix in (".tar", ".arrow"))
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if measure_residency(files) != 0.0:
        pytest.skip(f"pages of {describe_storage(pack).kind} cannot be dropped here")
    return files


def test_warming_brings_a_pack_into_memory(pack: Path) -> None:
    files = make_cold(pack)
    result = warm(pack)
    assert (result.resident_before, result.resident_after) == (0.0, 1.0)
    assert result.loaded_files == result.files == len(files)
    assert result.loaded_bytes == result.size_bytes == sum(path.stat().st_size for path in files)
    assert (result.left_out, result.left_out_bytes) == ((), 0)


def test_loading_ends_where_the_room_ends_and_what_did_not_fit_is_named(pack: Path) -> None:
    files = make_cold(pack)
    shards = [path for path in files if path.suffix == ".tar"]
    size, last = (shard.stat().st_size for shard in shards[1:])
    limit = sum(p.stat().st_size for p in files) - last - size // 2
    result = warm(pack, limit_bytes=limit)
    assert result.loaded_bytes == limit
    assert result.left_out == (shards[1].name, shards[2].name)
    assert result.left_out_bytes == last + size // 2
    assert result.loaded_files == 4
    assert measure_residency([shards[2]]) == 0.0
    assert measure_residency([shards[0]]) == 1.0
    assert re.search(
        r"^2 files \([\d.]+ K?B\) did not fit, to be read from the disk: ", draw_warm(result), re.M
    )


def test_what_lies_in_memory_already_need_not_be_read_from_the_disk(pack: Path) -> None:
    warm(pack)
    result = warm(pack, limit_bytes=1)
    if result.resident_after != 1.0:
        pytest.skip("others need the memory")
    text = draw_warm(result)
    assert "did not fit into that room, and lie in memory all the same" in text
    assert "next:" not in text


def test_the_room_is_what_the_limit_of_the_job_leaves_and_an_eighth_of_it_stays_free(tmp_path: Path) -> None:
    folder = tmp_path / "root" / "job"
    folder.mkdir(parents=True)
    (tmp_path / "cgroup").write_text("0::/job/step\n")
    for name, text in (
        ("memory.max", "8000000"),
        ("memory.current", "6000000"),
        ("memory.stat", "inactive_file 1000000\nactive_file 2000000\n"),
    ):
        (folder / name).write_text(text + "\n")
    room, reason = find_room(tmp_path / "cgroup", tmp_path / "root")
    # 6 MB are used, 3 MB of them by files that give way.
    assert room == 5_000_000 * 7 // 8
    assert reason.startswith("memory is limited to 8.00 MB here, and 5.00 MB of it can hold files; an eighth")


def test_without_a_limit_the_machine_says_what_there_is(tmp_path: Path) -> None:
    room, reason = find_room(tmp_path / "none", tmp_path)
    assert room > 1e6
    assert reason.startswith("memory is limited to ")


def test_files_of_an_index_of_a_folder_are_loaded_one_by_one(tmp_path: Path) -> None:
    images = [save_image(tmp_path / "photos" / "cat" / f"{n}.jpg", n) for n in range(3)]
    index(tmp_path / "photos", tmp_path / "photos.index")
    opened = Pack(tmp_path / "photos.index")
    try:
        paths = {path.resolve() for path in list_paths(opened)}
        assert {path.resolve() for path in images} < paths
        assert len(list_paths(opened, loose_step=2)) == len(paths) - 1
        assert measure_pack_residency(opened) is not None
    finally:
        opened.close()
    assert warm(tmp_path / "photos.index").resident_after in (1.0, None)


def test_a_file_that_is_gone_is_named(pack: Path) -> None:
    (pack / "shard-00001.tar").unlink()
    with pytest.raises(PackError, match=r"shard-00001\.tar cannot be read: No such file"):
        warm(pack)


def test_an_address_is_refused_with_the_command_that_brings_it_near() -> None:
    with pytest.raises(UsageError, match="s3://bucket/pack is not on this machine") as caught:
        warm("s3://bucket/pack")
    assert caught.value.hint == "copy it to this node first: feedrate stage s3://bucket/pack"


def test_warm_on_the_command_line(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stage", str(pack), "--warm"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{pack}\n"
    assert shown.err.startswith("loading 12 samples (")
    lines = shown.err.splitlines()[-3:]
    assert re.fullmatch(rf"{pack}: 6 files, [\d.]+ KB", lines[0])
    assert re.fullmatch(r"  memory   (\d+%|unknown.*) before, (100%|unknown.*) now", lines[1])
    assert re.fullmatch(r"  loaded   [\d.]+ KB in .*, [\d.]+ [KMG]?B/s", lines[2])


def test_warm_as_json(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stage", str(pack), "--warm", "--limit", "1B", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["staged"]) == ("stage --warm", None)
    assert (document["loaded_bytes"], len(document["left_out"])) == (1, 6)


def test_ls_says_how_much_of_a_pack_lies_in_memory(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_cold(pack)
    assert main(["ls", str(pack)]) == 0
    cold = capsys.readouterr().out
    # Reading the index for `ls` itself brings pages of it in; the shards stay where they are.
    share = re.search(r"  memory   (\d+)% of it lies in the page cache\n", cold)
    assert share is not None
    assert int(share[1]) < 60
    warm(pack)
    assert main(["ls", str(pack), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["resident_share"] == 1.0


def test_ls_says_so_where_it_cannot_be_known(
    pack: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedrate.machine.memory.measure_file_residency", lambda _: None)
    assert main(["ls", str(pack)]) == 0
    assert "  memory   unknown: this file system does not say" in capsys.readouterr().out
