# SPDX-License-Identifier: Apache-2.0
"""`feedrate stage`: the path on standard output, the talk on standard error."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest

from feedrate.cli import main
from feedrate.machine.disk import describe_storage
from feedrate.progress import Tick
from feedrate.report.progress import TransferBar
from feedrate.report.scratch import draw_stage
from feedrate.scratch.commands import stage_on_nodes
from feedrate.scratch.results import NodesResult, StageResult
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


def test_the_old_spelling_of_scratch_works_and_says_the_new_one_once(
    source: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stage", str(source), "--to", str(scratch)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{scratch}/feedrate-")
    assert err.count("note: --to is now --scratch; the old spelling still works") == 1


@pytest.mark.parametrize("words", [["stage", "set", "--scratch", "a"], ["index", "set", "a"]])
def test_two_folders_by_both_spellings_are_an_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--to", "b"]) == 1
    assert "error: two folders are named: a, and b by --to" in capsys.readouterr().err


def test_nodes_are_told_the_new_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def stage(_source: str, options: list[str], **_: object) -> NodesResult:
        told.extend(options)
        return NodesResult(source="s", path="/scr/s", nodes=(), failures=(), seconds=1.0)

    monkeypatch.setattr("feedrate.scratch.commands.stage_on_nodes", stage)
    assert main(["stage", "s", "--to", "/scr", "--nodes", "--streams", "3", "--check"]) == 0
    assert told == ["--keep=7d", "--streams=3", "--scratch=/scr", "--check"]


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


def test_nodes_needs_a_slurm_job(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert main(["stage", str(source), "--nodes"]) == 1
    err = capsys.readouterr().err
    assert "--nodes works inside a Slurm job, and there is none here" in err
    assert "hint: put the command into the sbatch script" in err


FAKE_SRUN = """#!/bin/sh
# Runs the command once for each of two nodes, as srun --label does.
while [ "${1#--}" != "$1" ]; do shift; done
for node in 0 1; do
    [ "$node" = "$FAIL_ON" ] && { echo "$node: error: the disk is full at /scr" >&2; status=1; continue; }
    SLURMD_NODENAME=n$node "$@" 2>/dev/null | sed "s/^/$node: /"
done
exit ${status:-0}
"""


@pytest.fixture
def fake_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(FAKE_SRUN)
    (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\necho n0; echo n1\n")
    for program in (tmp_path / "bin").iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")


@pytest.mark.usefixtures("fake_job")
def test_nodes_prints_one_path_when_all_have_the_same(
    source: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stage", str(source), "--scratch", str(scratch), "--nodes"]) == 0
    out, err = capsys.readouterr()
    assert read_tree(Path(out.strip())) == read_tree(source)
    assert "n0: copied " in err
    assert "n1: " in err
    assert "2 of 2 nodes have a copy" in err


@pytest.mark.usefixtures("fake_job")
def test_a_node_that_fails_is_named_and_the_exit_code_says_so(
    source: Path, scratch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL_ON", "1")
    assert main(["stage", str(source), "--scratch", str(scratch), "--nodes", "--json", "-"]) == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert [node["node"] for node in document["nodes"]] == ["n0"]
    assert document["failures"] == [{"node": "n1", "message": "the disk is full at /scr"}]
    assert "1 of 2 nodes have a copy" in err


def test_nodes_runs_this_python(source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$@" >&2\n')
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said: list[str] = []
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1"}
    result = stage_on_nodes(str(source), ["--scratch=/scr"], say=said.append, environ=environ)
    assert f"{sys.executable} -I " in said[0]
    assert f" stage {source} --scratch=/scr --json -" in said[0]
    assert [failure.message for failure in result.failures] == ["it ended without a word"]


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
