# SPDX-License-Identifier: Apache-2.0
"""The view of a job: nothing is wider than the terminal, and nothing reaches it that it would obey."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from feedrate.report.watch import draw_watched, paint_watched
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


@pytest.mark.parametrize("width", [40, 60, 79, 80, 100, 140, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    job = make_full_job()
    for seen in (job, WatchedUser("alice", (job,))):
        console = Console(width=width, file=io.StringIO())
        console.print(paint_watched(seen, width, 40))
        assert max(map(len, console.file.getvalue().splitlines())) <= width  # type: ignore[attr-defined]


@pytest.mark.parametrize("height", [10, 24, 30, 60])
def test_processes_that_do_not_fit_are_counted(height: int) -> None:
    job = make_full_job(not_visible=(), notes=(), other_jobs=())
    rows = draw_watched(job, 140, height).splitlines()
    shown = sum(row.startswith("  worker ") for row in rows)
    if height >= 30:
        assert len(rows) <= height
    assert any(f"and {20 - shown} more" in row for row in rows) or shown == 20


def test_a_view_names_verdict_reason_and_what_to_type() -> None:
    text = draw_watched(make_full_job())
    assert "\n  verdict  Training waits for image decoding, or the dataset's own transforms" in text
    assert "\n  because  the training waits 95% of the time" in text
    assert "\n  next     feedrate doctor -- /usr/bin/python3 train.py --data" in text
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
    assert "/lus (lustre), Linux counts nothing here" in text
    assert "of this job unknown" in text


def test_threads_are_shown_where_there_are_no_workers() -> None:
    threads = tuple(ThreadGroup(f"tf_{letter}", 4, 1.5, 0.25, 2) for letter in "abcdefghijklmnop")
    text = draw_watched(make_job(make_process(1), threads=threads))
    assert "\n  tf_a                          4   1.50    0.25  2 waiting for storage\n" in text


def test_jobs_of_a_user_are_a_line_each() -> None:
    jobs = (make_full_job(), make_full_job(pid=5, command=(), verdict=Verdict((), "", "", "", "")))
    lines = draw_watched(WatchedUser("alice", jobs)).splitlines()
    assert lines[0] == "jobs of alice: 2"
    assert "decode-bound" in lines[2]
    assert "cannot tell" in lines[3]


def test_the_verdict_is_set_apart_and_no_text_is_changed_by_that() -> None:
    job = make_full_job()
    painted = paint_watched(job, 80, 40)
    assert painted.plain == draw_watched(job, 80, 40)
    assert {str(span.style) for span in painted.spans} == {"bold", "bold red", "dim"}
