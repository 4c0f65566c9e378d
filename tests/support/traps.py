# SPDX-License-Identifier: Apache-2.0
"""A working folder whose modules have the names of modules that feedrate needs, and note that they ran."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Of Python, of packages, and feedrate itself; some are asked for before the first line of ours runs.
NAMES = (
    "numpy", "random", "json", "pickle", "socket", "struct", "signal", "subprocess", "tempfile", "PIL",
    "pyarrow", "psutil", "torch", "multiprocessing", "feedrate", "importlib", "runpy", "argparse",
)  # fmt: skip
NOTE = """import os, sys
with open(os.environ["RAN"], "a") as ran:
    print(__name__, "in", *sys.orig_argv[1:3], file=ran)
"""


class Traps:
    """The folder, and what ran of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "downloads"
        self._ran = folder / "ran"
        self._start = folder / "programs" / "start.py"
        for name in NAMES:
            (self.folder / name).mkdir(parents=True)
            (self.folder / name / "__init__.py").write_text(NOTE)
        self._start.parent.mkdir()
        self._start.write_text("import sys\nfrom feedrate.cli import main\nsys.exit(main())\n")

    def run(self, *words: str | Path, folder: Path | None = None, timeout_s: float = 100.0) -> str:
        """Run `feedrate *words` in the folder, as the installed program does; return what it printed."""
        done = subprocess.run(
            [sys.executable, str(self._start), *map(str, words)],
            cwd=folder or self.folder, env=self.environ, check=False, timeout=timeout_s,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "RAN": str(self._ran)}

    def what_ran(self) -> str:
        return self._ran.read_text() if self._ran.exists() else ""
