# SPDX-License-Identifier: Apache-2.0
"""The one way to start a Python of ours: apart from the working folder, where anybody's modules may be.

`python -c` and `python -m` look for modules in the working folder first, so that a `numpy.py` beside a
downloaded dataset would run. A process of ours starts isolated (`-I`) and is handed the folders in which its
parent finds modules. The command of `doctor` and `watch` is the user's own, and starts as it was typed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import feedrate


def isolated_command(
    call: str, *words: str, python: str = sys.executable, has_site: bool = True
) -> list[str]:
    """Return the command of a process that calls `module:function`, which finds `words` in `sys.argv[1:]`.

    Args:
        python: another environment's brings packages of its own, and is handed no others.
        has_site: False starts sooner, for code without packages that an installer has placed elsewhere.
    """
    module, _, function = call.partition(":")
    folders = list_module_folders() if python == sys.executable else _list_own_folders()
    code = (
        f"import sys; found = {folders!r}; sys.path[:] = found + [f for f in sys.path if f not in found]; "
        f"from {module} import {function} as call; sys.exit(call())"
    )
    # As the parent was told by variables, which an isolated Python does not read.
    flags = ["-B"] * sys.dont_write_bytecode + ["-X", "utf8"] * sys.flags.utf8_mode + ["-S"] * (not has_site)
    return [python, "-I", "-u", *flags, "-c", code, *words]


def script_command(script: Path, *words: str) -> list[str]:
    """Return the command of a script of ours that the doctor's hook must reach, by $PYTHONPATH.

    So it is not isolated; Python looks for modules in the script's own folder, not in the working folder.
    """
    return [sys.executable, str(script), *words]


def list_module_folders() -> list[str]:
    """Return the folders in which this process finds modules, but for the working folder.

    That counts where $PYTHONPATH names it, which is the user's own word, or where feedrate itself is in it.
    """
    own = _list_own_folders()
    try:
        here = os.getcwd()
    except OSError:  # it was deleted
        here = ""
    others = (os.path.abspath(entry) for entry in sys.path if entry)
    return list(dict.fromkeys([*own, *(folder for folder in others if folder != here)]))


def _list_own_folders() -> list[str]:
    """Return the folders of $PYTHONPATH, and that of feedrate where it is not an installed package."""
    named = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    home = Path(feedrate.__file__).resolve().parents[1]
    return [*named, *([] if home.name in ("site-packages", "dist-packages") else [str(home)])]
