# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from feedrate import Loader
from feedrate.cli import main
from feedrate.errors import PackError
from support.damage import without_digest


@pytest.fixture
def packed(jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["pack", str(jpeg_folder), str(tmp_path / "p"), "--workers", "1"]) == 0
    capsys.readouterr()
    return tmp_path / "p"


def test_good_pack_is_exit_code_0(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(packed)]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{packed}: 16 samples, 1 shard, [\d.]+ KB, checked in [\d.]+ (ms|s)", first)
    assert last == "good: every byte is as it was packed"


def test_bad_pack_is_exit_code_1_and_each_problem_a_line(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray((packed / "shard-00000.tar").read_bytes())
    data[600] ^= 1
    (packed / "shard-00000.tar").write_bytes(data)
    (packed / "mine.txt").write_text("x")
    assert main(["verify", str(packed)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "extra file, no part of the pack: mine.txt"
    assert lines[2] == "shard-00000.tar: its bytes are not those that were packed (checksum of the file)"
    assert re.fullmatch(
        r"shard-00000\.tar \(sample '\w+/\w+', byte 512\): field 'image' "
        r"its bytes are not those that were packed \(checksum\)",
        lines[3],
    )
    assert lines[4] == "2 problems"


def test_bad_pack_as_json_is_exit_code_1(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (packed / "shard-00000.tar").unlink()
    assert main(["verify", str(packed), "--json", "-"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["problems"][0]["text"] == "cannot be read: No such file or directory"


def test_changed_class_name_in_pack_json_is_refused_by_verify_and_loader(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = packed / "pack.json"
    text = path.read_bytes()
    name = json.loads(text)["fields"]["label"]["classes"][0]
    path.write_bytes(text.replace(f'"{name}"'.encode(), f'"{name[:-1]}_"'.encode()))
    sentence = f"{path}: does not fit the digest in it: bytes of it are damaged, or it was edited"
    assert main(["verify", str(packed)]) == 1
    assert capsys.readouterr().err.splitlines()[0] == f"error: {sentence}"
    with pytest.raises(PackError, match=re.escape(sentence)):
        Loader(packed, batch_size=4)


def test_pack_without_a_digest_of_pack_json_is_good_and_verify_says_what_it_could_not_check(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = packed / "pack.json"
    path.write_bytes(without_digest(path.read_bytes()))
    assert main(["verify", str(packed)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "good: every byte of its data is as it was packed; pack.json is of an earlier version or was edited, "
        "and has no digest to check it by"
    )


def test_no_pack_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"error: {tmp_path} is not a pack: it has no pack.json\n"
        f"\nhint: if it is a dataset, make one of it: feedrate pack {tmp_path} PACK\n"
    )
