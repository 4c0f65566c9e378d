# SPDX-License-Identifier: Apache-2.0
"""The view of a job: nothing is wider than the terminal, and nothing reaches it that it would obey."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from feedrate.report.watch import Row, Screen, draw_watched, list_rows
from feedrate.watch.results import GpuHolder, JobSummary, ThreadGroup, Verdict, WatchedUser
from feedrate.watch.verdict import judge
from support.watched import make_gpu, make_job, make_process, make_store, make_workers

HOLDER = GpuHolder(77, "python", "bob", 10**9, 0.4)
OTHER = JobSummary(88, "alice", ("python", "other.py"), 0.5, (1,), 10**9, 10**8)


def make_full_job(**more: Any) -> Any:
    job = make_job(
        make_process(4242, computing=0.05),
        *make_workers(20, computing=0.9, queued=0.05),
        gpus=(make_gpu(0.4, job=(HOLDER,), others=(HOLDER,) * 5, others_share=None),),
        stores=(
            make_store(),
            make_store(name="/data", kind="nfs4", operations_per_s=40.0, round_trip_s=0.002),
        ),
        cores={"quota": 4.0, "throttled_share": 0.05, "biggest_other": ("make", "bob", 3.0)},
        not_visible=("processes of alice hide what they do " * 3,),
        notes=("chosen",),
        other_jobs=(OTHER,) * 6,
        helpers=2,
        command=("/usr/bin/python3", "train.py", "--data", "/a/very/long/path" * 9),
    )
    return replace(replace(job, verdict=judge(job)), **more)


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 140, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    job = make_full_job()
    rows = [*list_rows(job, width), *list_rows(WatchedUser("alice", (job,)), width)]
    assert max(len(row.text) for row in rows) <= width


@pytest.mark.parametrize("height", [10, 24, 30, 60])
def test_processes_that_do_not_fit_are_counted(height: int) -> None:
    rows = [
        row.text for row in list_rows(make_full_job(not_visible=(), notes=(), other_jobs=()), 140, height)
    ]
    shown = sum(row.startswith("worker ") for row in rows)
    if height >= 30:
        assert len(rows) <= height
    assert any(f"and {20 - shown} more" in row for row in rows) or shown == 20


def test_a_view_names_verdict_reason_and_what_to_type() -> None:
    text = draw_watched(make_full_job())
    assert "\nverdict  Training waits for image decoding, or the dataset's own transforms" in text
    assert "\nbecause  the training waits 95% of the time" in text
    assert "\nnext     feedrate doctor -- /usr/bin/python3 train.py --data" in text
    assert "this job 1.00 GB; other: 77 python of bob, 1.00 GB, 40% of its time" in text
    assert "40 requests/s of 2.00 ms" in text
    assert text.isascii()


def test_what_is_unknown_is_a_question_mark_or_said() -> None:
    process = make_process(1, read_bytes_per_s=None, swap_bytes=None)
    gpu = make_gpu(None, memory_used_bytes=None, power_w=None)
    store = make_store(name="/lus", kind="lustre", read_bytes_per_s=None, busy=None)
    text = draw_watched(make_job(process, gpus=(gpu,), stores=(store,), memory={"job_swap_bytes": None}))
    assert "? busy" in text
    assert "what this job reads and writes is not visible" in text
    assert "/lus (lustre), the kernel counts nothing here" in text
    assert "of this job unknown" in text


def test_threads_are_shown_where_there_are_no_workers() -> None:
    threads = tuple(ThreadGroup(f"tf_{letter}", 4, 1.5, 0.25, 2) for letter in "abcdefghijklmnop")
    text = draw_watched(make_job(make_process(1), threads=threads))
    assert "  tf_a                          4   1.50    0.25  2 waiting for storage" in text


def test_jobs_of_a_user_are_a_line_each() -> None:
    jobs = (make_full_job(), make_full_job(pid=5, command=(), verdict=Verdict((), "", "", "", "")))
    lines = draw_watched(WatchedUser("alice", jobs)).splitlines()
    assert lines[0] == "jobs of alice: 2"
    assert "decode-bound" in lines[2]
    assert "cannot tell" in lines[3]


class Terminal(io.StringIO):
    encoding = "ascii"

    def fileno(self) -> int:
        raise OSError


def test_the_screen_escapes_what_a_terminal_would_obey_and_what_its_encoding_lacks() -> None:
    terminal = Terminal()
    with Screen(terminal) as screen:
        screen.draw([Row("evil \x1b]0;name\x07 \u00e9", "bad")], "foot")
    text = terminal.getvalue()
    assert "evil \\x1b]0;name\\x07 ?" in text
    assert "\x1b]0" not in text
    assert text.startswith("\x1b[?1049h")
    assert text.endswith("\x1b[?1049l")


def test_without_colour_no_style_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    Screen(terminal).draw([Row("text", "bad")], "foot")
    assert "\x1b[1;31m" not in terminal.getvalue()


def test_the_screen_comes_back_after_an_error() -> None:
    terminal = Terminal()
    with pytest.raises(KeyError), Screen(terminal):
        raise KeyError
    assert terminal.getvalue().endswith("\x1b[?25h\x1b[?1049l")
