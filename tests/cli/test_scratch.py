# SPDX-License-Identifier: Apache-2.0
"""What `feedrate scratch` says, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from feedrate.cli import main
from feedrate.scratch.copy import Copy
from support.scratch_copies import make_files, stage, stage_half

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture
def copy(tmp_path: Path, scratch: Path) -> Copy:
    return stage(make_files(tmp_path / "set"), scratch, keep_s=7 * 86_400.0, used=time.time() - 3 * 3600 - 5)


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = main(["scratch", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_ls_says_what_is_there_whose_and_who_uses_it(
    copy: Copy, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with copy.lease():
        os.utime(copy.folder / "used", (time.time() - 3 * 3600 - 5,) * 2)
        code, out, err = run(capsys, "ls", "--scratch", scratch)
    head, titles, row = out.splitlines()
    assert (code, err) == (0, "")
    assert head.startswith(f"{scratch} (you named it): 1 copy, 3.00 KB; ")
    assert titles.split() == ["NAME", "SIZE", "OWNER", "LAST", "USED", "KEPT", "IN", "USE", "BY", "SOURCE"]
    assert row.split()[:3] == [copy.folder.name, "3.00", "KB"]
    assert re.search(r" 3 h ago +7 days +1 process of ", row)
    assert row.endswith(copy.marker.address)


def test_ls_of_an_empty_scratch(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "ls", "--scratch", scratch)
    assert (code, out.split(";")[0]) == (0, f"{scratch} (you named it): 0 copies, 0 B")


def test_ls_shows_how_far_an_unfinished_copy_is(
    tmp_path: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage_half(make_files(tmp_path / "set"), scratch)
    row = run(capsys, "ls", "--scratch", scratch)[1].splitlines()[2]
    assert "67% of 3.00 KB" in row
    assert "nobody" in row


def test_ls_of_what_others_put_there_says_why_it_is_not_a_copy(
    copy: Copy, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy.folder.parent / "notes").mkdir()
    assert "has no copy.json" in run(capsys, "ls", "--scratch", scratch)[1]


def test_ls_without_a_folder_finds_where_one_staged_before(
    copy: Copy, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(capsys, "ls")[1]
    assert f"{scratch} (you staged there before): 1 copy" in out
    assert copy.folder.name in out


def test_ls_everywhere_comes_from_the_home_folder(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    os.environ["SLURMD_NODENAME"] = "another-node"
    head, titles, row = run(capsys, "ls", "--everywhere")[1].splitlines()
    assert head == "1 copy, 3.00 KB, on 1 node"
    assert titles.split() == ["NODE", "SIZE", "STAGED", "KEPT", "PATH", "SOURCE"]
    assert row.split()[-2:] == [str(copy.path), copy.marker.address]


def test_ls_as_json(copy: Copy, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "ls", "--scratch", scratch, "--json", "-")[1])
    assert document["command"] == "scratch ls"
    assert document["folders"][0]["copies"][0]["folder"] == str(copy.folder)


def test_rm_says_what_it_deleted(copy: Copy, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "rm", copy.folder.name, "--scratch", scratch)
    assert (code, out) == (
        0,
        f"deleted {copy.folder} (copy of {copy.marker.address}), 3.00 KB: you asked for it\n"
        "freed 3.00 KB; your copies take 0 B\n",
    )


def test_rm_of_the_only_copy_is_refused_and_says_how_to_insist(
    copy: Copy, tmp_path: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(tmp_path / "set")
    code, out, err = run(capsys, "rm", copy.folder.name, "--scratch", scratch)
    assert code == 1
    assert out.startswith(f"kept {copy.folder} ")
    assert "its source was not found as it was: " in out
    assert "is not there (No such file or directory)" in out
    assert "--even-if-the-source-is-gone" in err
    assert copy.is_complete()


def test_rm_of_the_only_copy_says_what_is_lost(
    copy: Copy, tmp_path: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(tmp_path / "set")
    code, _, err = run(capsys, "rm", copy.folder.name, "--scratch", scratch, "--even-if-the-source-is-gone")
    assert code == 0
    assert err == (
        f"deleting {copy.folder} without looking for its source {copy.marker.address}:"
        " if that is gone, 3.00 KB in 3 files are lost for good\n"
    )
    assert not copy.folder.exists()


def test_rm_of_what_is_not_there_points_to_ls(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "rm", "nonsense", "--scratch", scratch)
    assert (code, out) == (1, "")
    assert err == ("error: no copy 'nonsense' on this node\n\nhint: see what is there: feedrate scratch ls\n")


def test_gc_says_what_it_freed_and_what_it_kept(
    copy: Copy, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "gc", "--scratch", scratch, "--limit", "1KB", "--dry-run")
    assert (code, out) == (
        0,
        f"would delete {copy.folder} (copy of {copy.marker.address}), 3.00 KB:"
        " the limit is reached, and it has been unused for the longest time\n"
        "would free 3.00 KB; your copies take 0 B, and may take 1.00 KB\n",
    )
    assert copy.is_complete()
    assert run(capsys, "gc", "--scratch", scratch) == (0, "freed 0 B; your copies take 3.00 KB\n", "")


def test_a_scratch_folder_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "gc", "--scratch", tmp_path / "no")
    assert code == 1
    assert f"error: no scratch folder at {tmp_path / 'no'}" in err


def test_a_limit_that_is_no_size_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["scratch", "gc", "--limit", "lots"])
    assert "'lots' is not a size" in capsys.readouterr().err
