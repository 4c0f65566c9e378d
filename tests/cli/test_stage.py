# SPDX-License-Identifier: Apache-2.0
"""`feedrate stage`: the path on standard output, the talk on standard error."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from feedrate.cli import main
from feedrate.machine.disk import describe_storage
from feedrate.progress import Tick
from feedrate.report.progress import TransferBar
from feedrate.report.scratch import draw_stage
from feedrate.scratch.results import StageResult
from support.images import read_tree
from support.memory_limits import run_in_group
from support.packs import write_images
from support.range_server import serve


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_images(tmp_path / "set.pack", 12)


def test_standard_output_is_the_path_alone(
    source: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stage", str(source), "--scratch", str(scratch)]) == 0
    out, err = capsys.readouterr()
    path = out.removesuffix("\n")
    assert read_tree(Path(path)) == read_tree(source)
    assert err.splitlines()[0] == f"staging {source}"
    assert f"scratch: {scratch} (you named it" in err
    assert "copied " in err
    assert main(["stage", str(source), "--scratch", str(scratch)]) == 0
    again = capsys.readouterr()
    assert again.out == out
    assert "it was there already" in again.err


def test_a_source_that_errs_at_first_is_asked_again_and_that_is_said(
    source: Path, scratch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    monkeypatch.setattr("feedrate.remote.retry.RetryPolicy.wait_s", lambda *_: 0.0)
    with serve(source.parent) as server:
        server.fault = lambda _path, number: "error" if number <= 3 else None
        assert main(["stage", f"{server.url}/set.pack", "--scratch", str(scratch)]) == 0
    out, err = capsys.readouterr()
    assert read_tree(Path(out.strip())) == read_tree(source)
    assert "trying again in" in err


def test_scratch_is_found_by_itself_and_named(
    source: Path, scratch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedrate.scratch.folder.is_scratch", lambda folder: folder == str(scratch))
    monkeypatch.setenv("SLURM_TMPDIR", str(scratch))
    assert main(["stage", str(source)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{scratch}/feedrate-")
    assert f"scratch: {scratch} ($SLURM_TMPDIR" in err


def test_json_says_what_was_done(source: Path, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stage", str(source), "--scratch", str(scratch), "--json", "-", "--keep", "2d"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["files"], document["keep_s"]) == ("stage", 5, 172800)
    assert document["copied_bytes"] == document["size_bytes"]


def test_mistakes_are_sentences(
    source: Path, scratch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stage", str(tmp_path / "set.pak"), "--scratch", str(scratch)]) == 1
    assert "hint:" in capsys.readouterr().err
    assert main(["stage", str(source), "--scratch", str(tmp_path / "a" / "b")]) == 1
    assert "error: no scratch folder at" in capsys.readouterr().err
    for option, words in (
        (["--keep", "soon"], "'soon' is not a time; write it like 7d, 12h, 90min or 30s"),
        (["--rate-limit", "fast"], "'fast' is not a size"),
        (["--streams", "0"], "must be at least 1, got 0"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["stage", str(source), *option])
        assert words in capsys.readouterr().err


class Terminal:
    """A stream that is no terminal, and a clock that the test moves."""

    def __init__(self) -> None:
        self.text, self.now = "", 0.0

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def test_progress_names_rate_and_time_left() -> None:
    terminal = Terminal()
    with TransferBar(terminal, lambda: terminal.now) as bar:  # type: ignore[arg-type]
        for second in range(0, 61, 10):
            terminal.now = float(second)
            bar.update(Tick("staging", 0, 3, second * 10**6, 100 * 10**6))
    lines = terminal.text.splitlines()
    assert lines[0] == "3 files, 100 MB"
    assert lines[1] == "20.0 MB of 100 MB, 1.00 MB/s, 80.0 s left"


def test_a_line_says_how_it_came_there() -> None:
    fields = {
        "source": "s", "path": "p", "kind": "pack", "node": "n", "scratch": "/scr", "why": "", "files": 4,
        "size_bytes": 4000, "copied_files": 4, "copied_bytes": 4000, "resumed_bytes": 0, "is_joined": False,
        "is_public": False, "keep_s": None, "seconds": 2.0,
    }  # fmt: skip
    words = {
        "copied 4.00 KB in 4 files in 2.00 s, 2.00 KB/s": {},
        "4.00 KB in 4 files: it was there already (2.00 s)": {"copied_files": 0, "copied_bytes": 0},
        "4.00 KB in 4 files: another process copied it (2.00 s)": {"copied_files": 0, "is_joined": True},
        "copied 1.00 KB in 1 file in 2.00 s, 500 B/s; 3.00 KB were there already": {
            "copied_files": 1, "copied_bytes": 1000
        },
    }  # fmt: skip
    assert [draw_stage(StageResult(**{**fields, **changes})) for changes in words.values()] == [
        f"{one}\n" for one in words
    ]  # type: ignore[arg-type]


def test_a_copy_in_memory_beside_what_the_job_uses_is_refused(tmp_path: Path) -> None:
    """60 MB of 256 are less than half of the limit, and too much where 220 are in use."""
    if not describe_storage("/dev/shm").is_memory:
        pytest.skip("/dev/shm is no memory here")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "big.bin").write_bytes(bytes(60 << 20))
    program = (
        "import sys; from feedrate.cli import main; from feedrate.machine.memory import MemoryGauge\n"
        "used = bytearray(max(MemoryGauge().measure().free_bytes - (50 << 20), 0))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        words = ["stage", str(tmp_path / "source"), "--scratch", scratch]
        ended = run_in_group([sys.executable, "-c", program, *words], 256 << 20)
        assert ended.how == "failed", ended
        assert "which is memory" in ended.errors
        assert "of the 268 MB" in ended.errors


def test_warm_with_a_scratch_folder_loads_the_copy(
    source: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stage", str(source), "--scratch", str(scratch), "--warm", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["command"] == "stage --warm"
    assert document["pack"] == document["staged"]["path"]
    assert document["pack"].startswith(f"{scratch}/feedrate-")
    assert document["loaded_bytes"] == document["size_bytes"]
    assert "copied " in err
    assert "  loaded  " in err


def test_a_limit_of_memory_without_warm_is_refused(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stage", str(source), "--limit", "1GB"]) == 1
    assert "hint: add --warm, or leave out --limit" in capsys.readouterr().err
