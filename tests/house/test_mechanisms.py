# SPDX-License-Identifier: Apache-2.0
"""One home per mechanism: what must be right in every detail stands in a few named files.

The lists may only shrink: who needs a lock, a walk, a pool or a page calls one that is there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

import pytest

from support.paths import ROOT


def is_call_of(*names: str) -> Callable[[ast.AST], bool]:
    def matches(node: ast.AST) -> bool:
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        return called in names or called.rpartition(".")[2] in names

    return matches


def is_page_policy(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and "default-src" in node.value


def is_start_of_python(node: ast.AST) -> bool:
    """Our own interpreter, named to start it; the hook compares a path with it."""
    return isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.executable", "sys._base_executable")


STANDS_IN = {
    "starts of a Python of ours": (  # isolated: the working folder may hold a numpy.py
        is_start_of_python,
        {
            "src/feedrate/lab/child.py",  # the default of an argument, which it hands on
            "src/feedrate/doctor/hook/feedrate_hook/record/opened_files.py",
            "src/feedrate/machine/isolated.py",
        },
    ),
    "processes of multiprocessing": (  # they import what the working folder has
        is_call_of("get_context", "multiprocessing.Process", "multiprocessing.Pool", "ProcessPoolExecutor"),
        set[str](),
    ),
    "flock": (
        is_call_of("flock", "lockf"),
        {
            "src/feedrate/files/lock.py",
        },
    ),
    "walks of folders": (
        is_call_of("scandir", "os.walk", "os.fwalk", "rglob"),
        {
            "src/feedrate/doctor/run/processes.py",
            "src/feedrate/format/file_checks.py",
            "src/feedrate/packing/build/unfinished.py",
            "src/feedrate/files/tree.py",
        },
    ),
    "executors": (
        is_call_of("ThreadPoolExecutor", "ProcessPoolExecutor"),
        {
            "src/feedrate/lab/photographs.py",
            "src/feedrate/doctor/analyse/data_files.py",
            "src/feedrate/kernel/binding.py",
            "src/feedrate/packing/check/describe.py",
            "src/feedrate/source/opening.py",
            "src/feedrate/scratch/source_check.py",
            "src/feedrate/remote/fetch.py",
            "src/feedrate/files/tree.py",
            "src/feedrate/remote/transfer.py",
        },
    ),
    "unpickling": (  # runs whatever the file says: there is none
        is_call_of("pickle.load", "pickle.loads", "Unpickler"),
        set[str](),
    ),
    "the policy of pages": (
        is_page_policy,
        {
            "src/feedrate/report/page.py",
        },
    ),
}


@pytest.mark.parametrize("mechanism", STANDS_IN)
def test_a_mechanism_stands_in_its_named_files_only(mechanism: str) -> None:
    matches, files = STANDS_IN[mechanism]
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if any(matches(node) for node in ast.walk(ast.parse(path.read_text())))
    }
    assert found - files == set(), f"use the {mechanism} that are there"
    assert files - found == set(), "take these off the list: it only shrinks"


# A stopwatch stands where its numbers are judged, and not beside each thing that is timed.
WATCHED = ("lab/", "machine/", "hooking/", "run/", "doctor/hook/", "doctor/run/", "loader/pipeline.py")
STILL_TIMED = {
    "bench/machine.py", "doctor/analyse/data_files.py", "loader/threads.py", "packing/build/mapper.py",
}  # fmt: skip


def test_stopwatches_stand_in_the_rooms_that_measure() -> None:
    source = ROOT / "src" / "feedrate"
    timed = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if re.match(r"(perf_counter|thread_time)(_ns)?$", getattr(node, "attr", getattr(node, "id", "")))
    }
    outside = {path for path in timed if not path.startswith(WATCHED)}
    assert outside - STILL_TIMED == set(), "measure it in lab/, which has a stopwatch for each kind of thing"
    assert STILL_TIMED - outside == set(), "take these off the list: it only shrinks"
