# SPDX-License-Identifier: Apache-2.0
"""`feedrate watch`: mistakes, one view for scripts, a command to its end, and a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrate.cli import main
from feedrate.cli import watch as command


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_ONCE_S", 0.1)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["watch", *words])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["4194305"], "there is no process 4194305"),
        (["train.py"], "'train.py' is not a process number"),
        (["--user", "no-such-user"], "there is no user 'no-such-user'"),
        (["1", "--user", "root"], "a PID and --user name two things to watch"),
        (["1", "--json", "-"], "--json writes one view"),
        (["1", "--interval", "0"], "--interval must be between 0.2 and 3600 seconds, got 0"),
        (["1", "--interval", "nan"], "--interval must be between"),
    ],
)
def test_a_mistake_is_a_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, *words)
    assert code == 1
    assert text.startswith("error: ")
    assert sentence in text


def test_one_view_is_printed_and_written_as_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sleeper: subprocess.Popen[bytes]
) -> None:
    target = tmp_path / "view.json"
    assert main(["watch", "--once", "--json", str(target), str(sleeper.pid)]) == 0
    assert capsys.readouterr().out.startswith(f"{sleeper.pid}: ")
    document = json.loads(target.read_text())
    assert (document["command"], document["pid"]) == ("watch", sleeper.pid)
    assert set(document["verdict"]) == {"codes", "title", "reason", "remedy", "next", "is_good"}


def test_without_a_terminal_one_view_is_printed(
    capsys: pytest.CaptureFixture[str], sleeper: subprocess.Popen[bytes]
) -> None:
    assert main(["watch", str(sleeper.pid)]) == 0
    assert "\n  verdict " in capsys.readouterr().out


def test_a_job_that_ends_within_the_one_view_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(
        "feedrate.watch.sampling.JobSampler.glance", lambda _: sleeper.kill() or sleeper.wait()
    )
    code, text = said(capsys, "--once", str(sleeper.pid))
    assert (code, f"process {sleeper.pid} has ended before the second reading" in text) == (1, True)


def run_feedrate(*words: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "feedrate", "watch", *words]
    return subprocess.run(line, capture_output=True, check=False, env={**os.environ, **environ})


def test_a_signal_that_is_ignored_as_by_nohup_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with command.ended_like_an_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


class Watched:
    """`feedrate watch` on a terminal of 80 columns; `wait_for` reads what it draws until a text has come."""

    def __init__(self, *words: str) -> None:
        self.pid, self.terminal = pty.fork()
        if not self.pid:
            os.environ.update(TERM="xterm", LC_ALL="C", COLUMNS="80")
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever who runs the tests does with it (nohup)
            os.execv(sys.executable, [sys.executable, "-m", "feedrate", "watch", *words])
        self.seen = b""

    def wait_for(self, text: bytes) -> None:
        while text not in self.seen:
            ready, _, _ = select.select([self.terminal], [], [], 60)
            assert ready, self.seen
            try:
                new = os.read(self.terminal, 1 << 16)
            except OSError:
                new = b""
            assert new, (text, self.seen)
            self.seen += new

    def end(self) -> int:
        while True:
            try:
                new = os.read(self.terminal, 1 << 16)
            except OSError:
                new = b""
            if not new:
                break
            self.seen += new
        _, status = os.waitpid(self.pid, 0)
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    line = [sys.executable, "-c", "import sys; sys.stdin.read()", "\x1b]0;evil\x07"]
    with subprocess.Popen(line, stdin=subprocess.PIPE) as process:
        yield process


@pytest.mark.parametrize(
    ("how", "code"), [(b"q", 0), (b"\x03", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_key_or_a_signal_ends_the_view_and_the_terminal_is_as_before(
    how: bytes | signal.Signals, code: int, sleeper: subprocess.Popen[bytes]
) -> None:
    watched = Watched("--interval", "0.3", str(sleeper.pid))
    watched.wait_for(b"verdict  ")
    if isinstance(how, bytes):
        os.write(watched.terminal, how)
    else:
        os.kill(watched.pid, how)
    assert watched.end() == code
    assert watched.seen.rstrip().endswith(b"\x1b[?25h\x1b[?1049l")
    assert b"\x1b]0;evil" not in watched.seen
    assert b"\\x1b]0;evil\\x07" in watched.seen
    assert sleeper.poll() is None


def test_a_job_that_ends_while_it_is_watched_is_said_and_is_no_failure(
    sleeper: subprocess.Popen[bytes],
) -> None:
    watched = Watched("--interval", "0.3", str(sleeper.pid))
    watched.wait_for(b"verdict  ")
    assert sleeper.stdin is not None
    sleeper.stdin.close()
    sleeper.wait()
    assert watched.end() == 0
    assert f"process {sleeper.pid} has ended".encode() in watched.seen.split(b"\x1b[?1049l")[1]


def test_a_terminal_that_cannot_be_drawn_on_gets_one_view(sleeper: subprocess.Popen[bytes]) -> None:
    done = run_feedrate(str(sleeper.pid), TERM="dumb")
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout
