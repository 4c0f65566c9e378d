# SPDX-License-Identifier: Apache-2.0
"""What `ls` finds, and how results of packing are shown."""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from feedrate import PackOptions, pack
from feedrate.cli.output import dump_document
from feedrate.errors import UsageError
from feedrate.packing import workers
from feedrate.packing.check.describe import describe
from feedrate.packing.results import PackResult, VerifyResult
from feedrate.packing.workers import run_tasks
from feedrate.progress import Rejection, Tick
from feedrate.report.check import draw_description, draw_verify
from feedrate.report.pack import draw_pack
from feedrate.report.progress import ProgressBar
from support.images import save_image


def make_result(**changes: object) -> PackResult:
    values: dict[str, object] = {
        "source": "s", "target": "p", "samples": 1, "classes": None, "fields": {"image": "image"},
        "shards": 1, "resumed_shards": 0, "size_bytes": 2000, "source_bytes": 1000, "seconds": 2.0,
        "rejected": (), "damaged": (), "by_kernel": 1, "by_pillow": {}, "ignored": {}, "unlisted": 0,
    }  # fmt: skip
    return PackResult(**{**values, **changes})


def test_pack_without_labels_says_so() -> None:
    assert draw_pack(make_result()) == (
        "packed 1 sample (no labels) into p\n"
        "  fields   image\n"
        "  size     2.00 KB in 1 shard, from 1.00 KB of files\n"
        "  time     2.00 s, 500 B/s\n"
        "  decoder  all 1 image by the kernel\n"
        "\n"
        "next: feedrate verify p\n"
    )


def test_what_to_type_next_is_quoted() -> None:
    assert draw_pack(make_result(target="out pack 1")).endswith("next: feedrate verify 'out pack 1'\n")


def test_several_labels_per_sample_are_labels_too() -> None:
    text = draw_pack(make_result(fields={"image": "image", "labels": "array"}))
    assert text.startswith("packed 1 sample (several labels each) into p\n")


def test_a_replaced_column_is_named_as_such() -> None:
    name = "column-split-9905148097caab54.arrow"
    result = VerifyResult("p", 1, 1, 10, 1.0, problems=(), extra_files=(name, "notes.txt"), pixels="")
    lines = draw_verify(result).splitlines()
    assert lines[1].startswith("column that was replaced, no part of the pack any more")
    assert lines[2] == "extra file, no part of the pack: notes.txt"


def test_many_rejections_are_summed_up_by_reason() -> None:
    rejected = [Rejection(f"{n}.jpg", "image", "the file is empty") for n in range(1000)]
    rejected += [Rejection("x.jpg", "image", f"reason {n}") for n in range(9)]
    lines = draw_pack(make_result(rejected=tuple(rejected))).splitlines()
    assert "rejected: 1,009" in lines
    assert "    1,000  the file is empty: 0.jpg, 1.jpg, 2.jpg, ..." in lines
    assert "  5 more reasons" in lines


def test_resumed_pack_says_what_had_been_made_before() -> None:
    assert "  time     2.00 s; 3 shards had been made before" in draw_pack(make_result(resumed_shards=3))


def test_document_has_no_number_that_json_does_not_know() -> None:
    @dataclass(frozen=True)
    class Result:
        rate: float
        nested: tuple[float, ...]

    document = json.loads(dump_document("test", Result(float("inf"), (1.0, float("nan")))))
    assert document == {"command": "test", "schema_version": 1, "rate": None, "nested": [1.0, None]}


def test_progress_outside_a_terminal_is_one_line_at_the_start_and_one_at_the_end() -> None:
    stream = io.StringIO()
    with ProgressBar(stream) as bar:
        for done in range(100):
            bar.update(Tick("packing", done + 50, 200, done, 4000))
    first, last = stream.getvalue().splitlines()
    assert first == "packing 200 samples (4.00 KB), 50 of them done before"
    assert last.startswith("packing: done in")


def test_progress_on_a_terminal_draws_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with ProgressBar(stream) as bar:
        bar.update(Tick("listing", 1000, 0))
        bar.update(Tick("packing", 0, 200, 0, 4000))
    assert "packing" in stream.getvalue()


def test_pack_without_labels_has_no_classes(tmp_path: Path) -> None:
    save_image(tmp_path / "s" / "a.jpg", 1)
    pack(tmp_path / "s", tmp_path / "p", PackOptions(workers=1))
    description = describe(tmp_path / "p", samples=1)
    assert description.class_counts == {}
    assert [(s.key, s.path, s.label) for s in description.first_samples] == [("a", "a.jpg", None)]
    assert "all 48 x 64" in draw_description(description)


def test_label_that_is_a_number_is_shown_as_it_is(tmp_path: Path) -> None:
    save_image(tmp_path / "s" / "a.jpg", 1)
    (tmp_path / "t.csv").write_text("path,label\na.jpg,2.5\n")
    pack(tmp_path / "s", tmp_path / "p", PackOptions(labels=tmp_path / "t.csv", workers=1))
    assert describe(tmp_path / "p", samples=1).first_samples[0].label == "2.5"


def test_negative_number_of_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="samples must be at least 0, got -1"):
        describe(tmp_path, samples=-1)


def test_little_work_starts_no_process() -> None:
    def where(_task: int) -> int:
        return os.getpid()

    found = run_tasks(where, [1, 2, 3], workers=None, size_bytes=1000, watch=lambda *_: None)
    assert set(found) == {os.getpid()}


def test_tasks_with_threads_of_their_own_start_no_process_on_a_few_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "count_usable_cores", lambda: 3)
    found = run_tasks(
        threads_there,
        [1, 2],
        workers=None,
        size_bytes=10**12,
        watch=lambda *_: None,
        have_threads=lambda: True,
    )
    assert set(found) == {(os.getpid(), 3)}


def test_many_cores_are_shared_out_among_processes_with_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "count_usable_cores", lambda: 8)
    found = list(
        run_tasks(
            threads_there,
            [1, 2],
            workers=None,
            size_bytes=10**12,
            watch=lambda *_: None,
            have_threads=lambda: True,
        )
    )
    assert [threads for _, threads in found] == [4, 4]
    assert os.getpid() not in {process for process, _ in found}


def threads_there(_task: int) -> tuple[int, int]:
    return os.getpid(), workers.count_threads()
