# SPDX-License-Identifier: Apache-2.0
"""What the folder of a copy is made of, and how it is made: aside, then renamed, so it is never half made."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from feedrate.store.files import appear, explain_write_error, shown, temporary_name
from feedrate.store.homes import ROOT
from feedrate.store.leases import CopyGone
from feedrate.store.marker import BadMarker, Marker, dump_marker, load_marker
from feedrate.units import typed

MARKER, DATA, GATE, WRITER, LEASES, USED = "copy.json", "data", "gate", "writer", "leases", "used"


def make_copy(folder: Path, marker: Marker) -> None:
    """Make an empty copy; harmless where another process is quicker."""
    aside = folder.parent / temporary_name(folder.name)
    folder_mode, file_mode = modes(marker.is_public)
    # Users of a copy of root's put their leases there.
    is_open = marker.is_public and os.getuid() == ROOT
    try:
        try:
            aside.mkdir(0o700)
            for name, mode in ((DATA, folder_mode), (LEASES, 0o1777 if is_open else folder_mode)):
                (aside / name).mkdir(0o700)
                (aside / name).chmod(mode)
            for name, mode in (
                (GATE, file_mode),
                (WRITER, file_mode),
                (USED, 0o666 if is_open else file_mode),
            ):
                (aside / name).touch()
                (aside / name).chmod(mode)
            with appear(aside / MARKER) as file:
                os.fchmod(file.fileno(), file_mode)
                file.write(dump_marker(marker))
            aside.chmod(folder_mode)
            os.rename(aside, folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return
        raise explain_write_error(error, folder) from error


def modes(is_public: bool) -> tuple[int, int]:
    """Return the modes of folders and files."""
    return (0o755, 0o644) if is_public else (0o700, 0o600)


def read_marker(folder: Path) -> Marker:
    """Return what the marker of a copy says.

    Raises:
        CopyGone: there is no copy.
        BadMarker: there is one, and its marker cannot be used.
    """
    path = folder / MARKER
    try:
        return load_marker(path.read_bytes())
    except FileNotFoundError:
        if not folder.exists():
            raise CopyGone from None
        raise BadMarker(f"{shown(folder)} has no {MARKER}", hint=_hint(folder)) from None
    except BadMarker as error:
        bad = BadMarker(f"{shown(path)} {error}", hint=_hint(folder))
        bad.is_damaged = error.is_damaged
        raise bad from None
    except OSError as error:
        raise BadMarker(f"cannot read {shown(path)}: {error.strerror}", hint=_hint(folder)) from error


def _hint(folder: Path) -> str:
    return f"delete the copy: feedrate scratch rm {typed(shown(folder))}"
