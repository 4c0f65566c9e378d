# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest

from feedrate.cli import main
from support.range_server import serve
from support.sources import jpeg, write_tar


def test_index_says_what_it_found_and_where_the_index_is(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (jpeg_folder / "cat" / "bad.jpg").write_text("no image")
    assert main(["index", str(jpeg_folder), str(tmp_path / "i"), "--workers", "1"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == f"indexed 16 samples (2 classes) of {jpeg_folder}"
    assert lines[1] == "  fields   image, label (number)"
    assert lines[2].endswith("in files of their own, where they were")
    assert lines[3].startswith("  index    ")
    assert lines[3].endswith(f" in {tmp_path / 'i'}")
    assert [line for line in lines if line.startswith("  ignored")]
    assert [line for line in lines if "cat/bad.jpg" in line]
    assert lines[-1].startswith(f"next: feedrate ls {tmp_path / 'i'}, or in Python feedrate.Loader(")
    assert said.err.startswith(f"indexing {jpeg_folder}\n")


def test_result_is_json_when_asked_for(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", str(jpeg_folder), str(tmp_path / "i"), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["samples"] == 16
    assert document["files"] is None


def test_verify_of_an_index_speaks_of_indexing(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", str(jpeg_folder), str(tmp_path / "i"), "--workers", "1"]) == 0
    assert main(["verify", str(tmp_path / "i")]) == 0
    assert capsys.readouterr().out.endswith("\ngood: every byte is as it was indexed\n")
    (jpeg_folder / "cat" / "0.jpg").write_bytes((jpeg_folder / "cat" / "1.jpg").read_bytes())
    assert main(["verify", str(tmp_path / "i")]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "next: restore the named files from a copy, or index them again"


def test_what_is_not_there_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(tmp_path / "nowhere"), str(tmp_path / "i")]) == 1
    assert capsys.readouterr().err.splitlines()[1].startswith(f"error: no dataset at {tmp_path / 'nowhere'}")
    assert not (tmp_path / "i").exists()


def test_an_address_needs_a_folder_for_its_index(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "s3://bucket/train-{000..009}.tar"]) == 1
    error = capsys.readouterr().err
    assert (
        "error: where should the index go? s3://bucket/train-{000..009}.tar is not on this machine" in error
    )
    assert "hint: name a folder: feedrate index PATH FOLDER" in error


def test_a_password_in_an_address_is_not_said_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", "https://me:geheim@host/0.tar", str(tmp_path / "i")]) == 1
    written = capsys.readouterr()
    assert "password" in written.err
    assert "geheim" not in written.err + written.out


def test_shards_elsewhere_are_counted_as_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "served").mkdir()
    for shard in range(2):
        files = {"0.jpg": jpeg(shard), "0.cls": b"1", "1.jpg": jpeg(shard + 2), "1.cls": b"2"}
        write_tar(tmp_path / "served" / f"{shard}.tar", files)
    with serve(tmp_path / "served") as server:
        address = f"{server.url}/{{0..1}}.tar"
        assert main(["index", address, str(tmp_path / "i")]) == 0
    written = capsys.readouterr()
    assert "indexing 2 shards (" in written.err
    assert "4 samples" in written.out


def test_unknown_format_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["pack", str(tmp_path), str(tmp_path / "p"), "--format", "zip"])
    assert caught.value.code == 2
    assert "invalid choice: 'zip'" in capsys.readouterr().err


def pack_folder(folder: Path, target: Path) -> None:
    assert main(["pack", str(folder), str(target), "--workers", "1"]) == 0


def test_entries_of_a_pack_that_is_there_says_what_changed_and_what_is_left(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = str(tmp_path / "p")
    pack_folder(jpeg_folder, tmp_path / "p")
    capsys.readouterr()
    assert main(["index", packed, "--entries", "gpu", "--workers", "1"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert said.err.startswith(f"new entry points for {packed}\n")
    assert lines[0] == f"{packed} has entry points about every 150 bytes now (before: 1,000)"
    assert lines[1].startswith("  index    ")
    assert lines[2] == "  samples  16 samples, not one byte of them written"
    assert "  old      1 index file kept for whoever has the pack open: shard-00000.arrow" in lines
    assert lines[-1] == f"when nobody reads it any more: feedrate index {packed} --entries 150 --remove-old"
    assert main(["index", packed, "--entries", "150", "--remove-old"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{packed} has entry points about every 150 bytes already"
    assert lines[-1] == "  removed  1 old index file"
    assert main(["ls", packed]) == 0
    assert "  entries  about every 150 bytes of a JPEG" in capsys.readouterr().out.splitlines()


def test_entries_as_json_has_the_same_facts(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack_folder(jpeg_folder, tmp_path / "p")
    capsys.readouterr()
    assert main(["index", str(tmp_path / "p"), "--entries", "60", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["entries"], document["entries_before"], document["changed_parts"]) == (60, [1000], 1)


def test_an_index_beside_its_file_gets_other_entry_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tar(tmp_path / "x.tar", {f"{n}.jpg": jpeg(n) for n in range(3)})
    assert main(["index", str(tmp_path / "x.tar"), "--entries", "60", "--workers", "1"]) == 0
    assert main(["index", str(tmp_path / "x.tar"), "--entries", "auto", "--workers", "1"]) == 0
    last = capsys.readouterr().out
    assert f"{tmp_path / 'x.tar.index'} has entry points about every 1,000 bytes now (before: 60)" in last


@pytest.mark.parametrize("command", ["pack", "index"])
@pytest.mark.parametrize(
    ("value", "words"), [("7", "entries=7 is below 16"), ("thin", "entries='thin' is neither a word")]
)
def test_a_bad_distance_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, value: str, words: str
) -> None:
    target = [str(tmp_path / "p")] if command == "pack" else []
    with pytest.raises(SystemExit, match="2"):
        main([command, str(tmp_path), *target, "--entries", value])
    said = capsys.readouterr().err
    assert words in said
    assert "say auto (1,000), gpu (150), or a number of bytes from 16 to 1,000,000" in said


def test_entries_of_a_pack_behind_an_address_gets_a_sentence(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    pack_folder(jpeg_folder, tmp_path / "served" / "p")
    with serve(tmp_path / "served") as server:
        assert main(["index", f"{server.url}/p", "--entries", "gpu"]) == 1
        said = capsys.readouterr().err
        assert f"{server.url}/p is not on this machine, and its index would be written anew there" in said
        assert f"hint: change a copy, then bring that back: feedrate stage {server.url}/p" in said


def test_remove_old_without_a_pack_gets_a_sentence(
    jpeg_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", str(jpeg_folder), "--remove-old"]) == 1
    assert "hint: feedrate index PACK --entries gpu --remove-old" in capsys.readouterr().err
    assert not (jpeg_folder / "pack.json").exists()


def test_the_target_may_stand_behind_options(jpeg_folder: Path, tmp_path: Path) -> None:
    assert main(["index", str(jpeg_folder), "--workers", "1", str(tmp_path / "i")]) == 0
    assert (tmp_path / "i" / "pack.json").exists()


def test_a_word_behind_the_target_is_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["index", "a", "--workers", "1", "b", "c"])
    assert "unrecognized arguments: c" in capsys.readouterr().err
