# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from feedrate.cli import main


@pytest.fixture
def packed(jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    (jpeg_folder / "cat" / "bad.jpg").write_text("x")
    code = main(["pack", str(jpeg_folder), str(tmp_path / "p"), "--workers", "1", "--shard-size", "20KB"])
    assert code == 0
    capsys.readouterr()
    return tmp_path / "p"


def test_ls_sums_a_pack_up(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(packed)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{packed}: 16 samples"
    assert re.fullmatch(
        r"  field     image, 49 x 66 pixels on average \(height x width\), [\d.]+ KB, "
        r"87\.5% decoded by the kernel",
        lines[1],
    )
    assert lines[2] == "  field     label (number), int64, 128 B"
    assert lines[3] == "  classes   2: cat 8, dog 8"
    assert re.fullmatch(r"  shards    4, [\d.]+ KB, and [\d.]+ KB of index", lines[4])
    assert re.fullmatch(r"  memory    (\d+% of it lies in the page cache|unknown: .*)", lines[5])
    assert lines[6] == "  rejected  1 input (named in rejected.jsonl)"


def test_ls_lists_the_first_samples(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(packed), "--samples", "3"]) == 0
    head, *rows = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert head.split() == ["key", "path", "bytes", "label"]
    assert len(rows) == 3
    for row in rows:
        key, path, size, label = row.split()
        assert path.startswith(key)
        assert int(size.replace(",", "")) > 500
        assert label == key.partition("/")[0]


def test_ls_as_json(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(packed), "--samples", "99", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["class_counts"] == {"cat": 8, "dog": 8}
    assert len(document["first_samples"]) == 16
    assert document["fields"][0]["kernel_share"] == 0.875


def test_ls_of_a_damaged_index_is_a_sentence(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (packed / "shard-00001.arrow").write_bytes(b"")
    assert main(["ls", str(packed)]) == 1
    assert capsys.readouterr().err == (
        f"error: {packed}: shard-00001.arrow cannot be read\n\nhint: feedrate verify {packed}\n"
    )


@pytest.mark.parametrize(
    "words",
    [["ls"], ["verify"], ["unpack", "out"], ["split", "a=0.5", "b=0.5"]],
    ids=lambda w: w[0],
)
def test_an_address_where_a_pack_of_this_machine_is_needed_is_called_so(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([words[0], "s3://bucket/photos.pack", *words[1:]]) == 1
    assert capsys.readouterr().err.endswith(
        "error: s3://bucket/photos.pack is an address, and this works on packs of this machine\n\n"
        "hint: copy it here first: feedrate stage s3://bucket/photos.pack\n"
    )
