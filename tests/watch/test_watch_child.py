# SPDX-License-Identifier: Apache-2.0
"""A command that is watched: its output, and what cannot be started."""

from __future__ import annotations

import os
import resource
import select
import sys
from pathlib import Path

import pytest

from feedrate.errors import UsageError
from feedrate.watch import child as child_module
from feedrate.watch.child import Child


@pytest.mark.usefixtures("capfd")
def test_a_temporary_folder_that_is_full_costs_output_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    monkeypatch.setattr(child_module, "_SPOOL_BYTES", 100)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    child = Child([sys.executable, "-c", "print('x' * 30_000); exit(3)"], is_kept=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        while not child.is_full:
            assert child.descriptor is not None
            select.select([child.descriptor], [], [], 60)
            child.keep()
        assert child.pass_on() == 3
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_last_lines_are_without_colours_and_as_a_bar_left_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    child = Child(["printf", r"a\n\033[32m10%%\033[0m\r\033[K\033[1;32m20%%\033[0m"], is_kept=True)
    while child.descriptor is not None:
        select.select([child.descriptor], [], [], 60)
        child.keep()
    assert child.list_last(5) == ["a", "20%"]
    assert child.list_last(1) == ["20%"]
    assert child.list_last(0) == []
    child.pass_on()


def test_a_script_without_its_interpreter_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("echo")
    (tmp_path / "run").chmod(0o700)
    with pytest.raises(UsageError, match=r"cannot run .*run: Exec format error"):
        Child([str(tmp_path / "run")], is_kept=False)
