# SPDX-License-Identifier: Apache-2.0
"""A command that is watched: its output where there is no room to keep it."""

from __future__ import annotations

import os
import resource
import select
import sys

import pytest

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
