# SPDX-License-Identifier: Apache-2.0
"""Which files a fetch opens, and which tables the script reads; how long it takes to write checkpoints,
figures, tables: in every step, since they are rare.
"""

from __future__ import annotations

import fcntl
import os
import sys
from typing import Any, ClassVar

from .. import clock, layout, wrapping
from ..session import Noted, session
from ..wrapping import caller, get_ident, is_user
from .parts import here, open_fetches

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_SYSTEM = ("/proc/", "/dev/", "/sys/", "/usr/lib", "/lib", "/memfd:", "/SYSV")
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_MOST_TABLES = 8
_PROGRAM = (".py", ".pyc", ".pyi", ".so", " (deleted)", "locale-archive", "gconv-modules.cache", ".pth")


class Seen:
    opened: ClassVar[set[str]] = set()
    tables: ClassVar[dict[str, None]] = {}  # that this process read or wrote so far


def watch() -> None:
    wrapping.listen("open", _on_open)


def after_fork() -> None:
    Seen.opened = set()


def _on_open(args: Any) -> None:
    fetch = open_fetches.get(get_ident()) if open_fetches else None
    try:
        path, mode, flags = args
        if type(path) is str and path.endswith(_TABLES) and len(Seen.tables) < _MOST_TABLES:
            Seen.tables[os.path.abspath(path)] = None
        if fetch is None or isinstance(path, int) or path is None:
            return
        is_writing = bool(flags & _WRITING) if mode is None else not mode.startswith("r") or "+" in mode
        if not is_writing:
            fetch.opened.append(os.fsdecode(path))
    except Exception as error:
        session.note_error("open", error)


def record_open() -> None:
    """Record the data files that are open or mapped already: HDF5, LMDB and memory maps are opened early."""
    paths = set()
    try:
        for name in os.listdir("/proc/self/fd"):
            flags = fcntl.fcntl(int(name), fcntl.F_GETFL) if int(name) > 2 else os.O_WRONLY
            if flags & os.O_ACCMODE != os.O_WRONLY:
                paths.add(os.readlink(f"/proc/self/fd/{name}"))
    except (OSError, ValueError):
        pass
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths.update(line.split(maxsplit=5)[5].rstrip("\n") for line in file if "/" in line)
    except (OSError, IndexError):
        pass
    data = [path for path in paths if _is_data(path) and os.path.isfile(path)]
    record_opened(sorted(data), clock.wall_ns())


def _is_data(path: str) -> bool:
    """Whether a file is likely the user's data, not a part of a program or of the system."""
    if not path.startswith("/") or path.startswith((*_SYSTEM, session.run)) or path.endswith(_PROGRAM):
        return False
    if path == os.path.realpath(sys.executable) or os.path.basename(path).startswith("python3"):
        return False
    return is_user(path) and ".so." not in path and ".dist-info/" not in path


def record_opened(paths: list[str], start: int) -> None:
    """Record the paths of a fetch that are new; the facts get all their names with one write."""
    new = []
    for path in paths:
        if path not in Seen.opened and len(Seen.opened) < layout.OPENED_PATHS:
            Seen.opened.add(path)
            if _is_data(os.path.abspath(path)):
                new.append(os.path.abspath(path))
    if new:
        for number in session.ring.names(new):
            session.ring.write(layout.OPENED, number, start, 0)


SAVERS: dict[str, tuple[str, ...]] = {
    "torch.serialization": ("save",),
    "torch.jit._serialization": ("save",),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "safetensors.torch": ("save_file", "save_model"),
    "numpy": ("save", "savez", "savez_compressed", "savetxt"),
    "matplotlib.figure": ("Figure.savefig",),
    "PIL.Image": ("Image.save",),
    "cv2": ("imwrite",),
    "imageio.v2": ("imwrite",),
    "imageio.v3": ("imwrite",),
    "pandas.core.generic": ("NDFrame.to_csv", "NDFrame.to_pickle", "NDFrame.to_hdf"),
    "pandas.core.frame": ("DataFrame.to_parquet", "DataFrame.to_feather"),
    "joblib.numpy_pickle": ("dump",),
    "pickle": ("dump",),
    "json": ("dump",),
    "h5py._hl.group": ("Group.create_dataset",),
    "h5py._hl.files": ("File.flush", "File.close"),
    "soundfile": ("write",),
    "torchvision.utils": ("save_image",),
    "torchaudio": ("save",),
}


def _timed(kind: int, name: str) -> Any:
    def make(original: Any) -> Any:
        def save(*args: Any, **kwargs: Any) -> Any:
            if session.role != "main" or here.is_saving or here.is_fetching:
                return original(*args, **kwargs)
            here.is_saving = True
            start = clock.read()
            try:
                return original(*args, **kwargs)
            finally:
                here.is_saving = False
                with Noted("save"):
                    spent = clock.since(start)
                    session.ring.write(kind, session.ring.name(f"{name} {caller()}"), start[0], *spent)

        return save

    return make


PATCHES = {
    module: [(path, _timed(layout.SAVE, f"{module.split('.')[0]}.{path.split('.')[-1]}")) for path in paths]
    for module, paths in SAVERS.items()
}
WRITERS = [(name, _timed(layout.WRITE, f"os.{name}")) for name in ("fsync", "fdatasync", "sync")]
