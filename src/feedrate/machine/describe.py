# SPDX-License-Identifier: Apache-2.0
"""The origin that a measurement must name: machine, versions, commit, command line."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.gpu import describe_gpus
from feedrate.machine.memory import count_usable_memory_bytes
from feedrate.machine.results import Machine

PACKAGES = (
    "feedrate", "numpy", "pillow", "pyarrow", "torch",
    "simplejpeg", "opencv-python-headless", "opencv-python",
)  # fmt: skip

# Options whose value is a word of ours. Any other may be a folder's name, and that a person's.
_NAMING = ("--model", "--device", "--set", "--interpolation")
_NUMBER = re.compile(r"-|[\d.]+[a-zA-Z%]{0,3}")  # "-": standard output


def describe_machine(command_line: Sequence[str] | None = None) -> Machine:
    """Return the facts about this machine; nothing that names a person, a host or a folder of theirs.

    Args:
        command_line: None: as this feedrate was called, with PATH in the place of every path.
    """
    return Machine(
        cpu_model=read_cpu_model(),
        usable_cores=count_usable_cores(),
        memory_bytes=count_usable_memory_bytes(),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions={name: found for name in PACKAGES if (found := _find_version(name)) is not None},
        commit=find_commit(Path(__file__).parent),
        command_line=_read_own_call() if command_line is None else tuple(command_line),
        gpus=tuple(gpu.name for gpu in describe_gpus()),
    )


def _read_own_call() -> tuple[str, ...]:
    """Return the command, its options and their numbers; () in a program that is not feedrate's own."""
    program, *words = sys.argv or [""]
    if os.path.basename(program) != "feedrate" and not program.endswith("feedrate/__main__.py"):
        return ()
    commands = 2 if words[:1] == ["bench"] else 1
    kept, option = words[:commands], ""
    for word in words[commands:]:
        if word == "--":  # a command that is not ours
            break
        if is_option := word.startswith("--"):
            option, equals, value = word.partition("=")
        else:
            equals, value = "", word
        if value:
            value = value if option in _NAMING or _NUMBER.fullmatch(value) else "PATH"
        kept.append(f"{option}{equals}{value}" if is_option else value)
        option = option if is_option else ""
    return tuple(kept)


def find_node() -> str:
    """Return this node's name: on clusters of virtual nodes several have the same host name."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def find_state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where a user's notes lie that all nodes see; it need not be there."""
    state = environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "feedrate"


def read_cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def find_commit(folder: Path) -> str | None:
    """Return the commit of the checkout around `folder`, with a `+` when files were changed; or None."""
    if not any((above / ".git").exists() for above in folder.parents[:3]):
        return None
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _ask_git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit + "+" if changed else commit


def _ask_git(folder: Path, *words: str) -> str | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=10,
            env=environment,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
