# SPDX-License-Identifier: Apache-2.0
"""The JSON lines of a run folder, without the records: cheap to read, also for what must not import numpy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MACHINE_FILE = "machine.jsonl"


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; a line that a killed process left unfinished is left out."""
    try:
        data = path.read_bytes()
    except OSError:
        return
    for line in data.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def read_facts(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the facts of all processes, process by process."""
    for path in sorted(run.glob("*.facts")):
        yield from read_lines(path)


def read_samples(run: Path) -> Iterator[dict[str, Any]]:
    """Yield what the sampler wrote."""
    return (sample for sample in read_lines(run / MACHINE_FILE) if isinstance(sample.get("t_ns"), int))
