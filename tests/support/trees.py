# SPDX-License-Identifier: Apache-2.0
"""Looks into folders that others make and remove things in at the same time."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path


def find_below(folder: Path, pattern: str) -> list[Path]:
    """Return what bears such a name. A folder that goes meanwhile has nothing in it; rglob raises there."""
    return [
        Path(at, name)
        for at, folders, files in os.walk(folder)
        for name in fnmatch.filter([*folders, *files], pattern)
    ]
