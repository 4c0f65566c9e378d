# SPDX-License-Identifier: Apache-2.0
"""The folder of a pack in the making: whose it is, whether it may be written to, and whether what was begun
there is what is asked for now."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from feedrate.errors import AlreadyExists, StorageError, UsageError
from feedrate.files.atomic import (
    explain_write_error,
    explained,
    is_temporary,
    remove_temporaries,
    sync_folder,
    write_file,
)
from feedrate.files.lock import LOCK_NAME, folder_lock
from feedrate.format.fields import AUTO
from feedrate.format.manifest import FILE_NAME, read_manifest
from feedrate.format.manifest import PROGRESS_NAME as PROGRESS_NAME
from feedrate.packing.build import listing
from feedrate.packing.options import PackOptions
from feedrate.source.record import SPOOL_NAME
from feedrate.units import format_bytes, format_count, shell_quote

JOBS_NAME = "packing.jobs"
SURVEYS_NAME = "packing.surveys"  # of shards that are elsewhere


def check_nesting(source: str, folder: Path) -> None:
    inner, outer = os.path.realpath(folder), os.path.realpath(source)
    if inner == outer:
        raise UsageError(f"{folder} is the source itself", hint="name another folder for the pack")
    if _is_inside(inner, outer):
        raise UsageError(
            f"{folder} lies inside the source {source}", hint="name a folder outside of it for the pack"
        )
    if _is_inside(outer, inner):
        raise UsageError(f"the source {source} lies inside {folder}", hint="name another folder for the pack")


def _is_inside(inner: str, outer: str) -> bool:
    return os.path.commonpath([inner, outer]) == outer


def check_foreign(folder: Path) -> None:
    try:
        names = {entry.name for entry in os.scandir(folder)}
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise AlreadyExists(f"{folder} is a file; a pack is a folder") from None
    except OSError as error:
        raise StorageError(f"cannot look into {folder}: {error.strerror}") from error
    if PROGRESS_NAME in names or FILE_NAME in names:
        return
    ours = (LOCK_NAME, SPOOL_NAME)
    foreign = sorted(name for name in names if name not in ours and not is_temporary(name))
    if foreign:
        raise AlreadyExists(
            f"{folder} is not empty and not a pack: it holds '{foreign[0]}'",
            hint="name a new folder for the pack",
        )


def check_finished(folder: Path, options: PackOptions) -> None:
    if (folder / PROGRESS_NAME).exists() or not (folder / FILE_NAME).exists():
        return
    there = read_manifest(folder)
    asked = options.as_in(there.settings).settings()
    if options.labels is not None:
        # Whether it is the same table is not worth reading it: the folder is refused anyway.
        asked["labels"] = there.settings.get("labels")
    difference = _first_difference(asked, there.settings)
    hint = f"use it, or name another folder, or delete it first: rm -r {shell_quote(folder)}"
    as_there = {**asked, "entries": there.settings.get("entries")}
    if difference and _first_difference(as_there, there.settings) is None:
        command = f"feedrate index {shell_quote(folder)} --entries {options.bytes_per_entry}"
        hint = f"give it such entry points: {command}"
    raise AlreadyExists(
        f"{folder} already holds a finished pack of {format_count(there.samples, 'sample')}"
        + (f" ({difference})" if difference else ""),
        hint=hint,
    )


@contextlib.contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    try:
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, folder) from error
    try:
        with folder_lock(folder):
            try:
                yield
            finally:
                if not (folder / PROGRESS_NAME).exists():
                    with contextlib.suppress(OSError):
                        (folder / SPOOL_NAME).unlink(missing_ok=True)
    finally:
        if is_new:
            # Nothing was begun: leave nothing behind.
            with contextlib.suppress(OSError):
                folder.rmdir()


def go_on_by(folder: Path, options: PackOptions) -> PackOptions:
    """Return the options with the digests of a map that an unfinished pack was begun with."""
    try:
        return options.as_in(json.loads((folder / PROGRESS_NAME).read_bytes())["settings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return options  # nothing was begun, or `begin` will say what is wrong


def begin(folder: Path, settings: Mapping[str, object], fingerprint: Mapping[str, object]) -> None:
    path = folder / PROGRESS_NAME
    now = {"settings": settings, "source": fingerprint}
    if path.exists():
        try:
            before = json.loads(path.read_bytes())
            difference = _first_difference(now["settings"], before["settings"]) or _source_difference(
                now["source"], before["source"]
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AlreadyExists(
                f"{path} cannot be read ({error})", hint=f"delete {folder} and pack again"
            ) from error
        if difference:
            raise AlreadyExists(
                f"{folder} holds an unfinished pack of something else: {difference}",
                hint="repeat that command, name another folder, "
                f"or delete this one: rm -r {shell_quote(folder)}",
            )
        return
    write_file(path, (json.dumps(now, indent=1, sort_keys=True) + "\n").encode())


_WORDS = {"shard_bytes": "shard size", "labels": "table of labels", "fields": "list of fields",
          "path_column": "path column", "label_column": "label column",
          "label_separator": "label separator", "empty_label": "class of rows without a label",
          "resize": "shorter side",
          "max_side": "longer side", "encoded": "what is encoded anew",
          "map": "map function, or its code,", "entries": "distance of entry points"}  # fmt: skip
# Compared also where only the pack that is there has them.
_COMPARED = frozenset((
    "labels", "resize", "max_side", "raw", "quality", "encoded", "normalise", "scan", "entries", "map",
    "format",
))  # fmt: skip


def _first_difference(here: Mapping[str, Any], there: Mapping[str, Any]) -> str | None:
    for name in dict.fromkeys([*here, *there]):
        ours, theirs = here.get(name), there.get(name)
        if name in ("rejected", "plan") or ours == theirs or (name not in here and name not in _COMPARED):
            continue
        word = _WORDS.get(name, name)
        if isinstance(ours, dict) or isinstance(theirs, dict):
            return f"the {word} is another one"
        if name == "shard_bytes":
            ours, theirs = format_bytes(ours or 0), format_bytes(theirs or 0)
        if name == "entries":
            ours, theirs = (f"{AUTO if value is None else value} bytes" for value in (ours, theirs))
        ours, theirs = ("not set" if value is None else value for value in (ours, theirs))
        return f"{word} is {ours} here, {theirs} there"
    return None


def _source_difference(here: Mapping[str, Any], there: Mapping[str, Any]) -> str | None:
    more = here["files"] - there["files"]
    if more:
        files = format_count(abs(more), "file")
        return f"the source has {files} {'more' if more > 0 else 'fewer'} than when packing began"
    if here["digest"] != there["digest"]:
        return "files of the source have other names, sizes or times than when packing began"
    return None


def undo(folder: Path, names: Sequence[str] = ()) -> None:
    """Remove what was begun: files of these names, then what says that something was."""
    with explained(folder):
        for name in [*names, listing.NAME, SPOOL_NAME, PROGRESS_NAME]:
            (folder / name).unlink(missing_ok=True)


def finish(folder: Path) -> None:
    """Take away what says that the pack is unfinished; the last step."""
    with explained(folder):
        remove_temporaries(folder)  # of jobs that were lost
        (folder / listing.NAME).unlink(missing_ok=True)
        shutil.rmtree(folder / JOBS_NAME, ignore_errors=True)
        shutil.rmtree(folder / SURVEYS_NAME, ignore_errors=True)
        (folder / SPOOL_NAME).unlink(missing_ok=True)
        (folder / PROGRESS_NAME).unlink()
        sync_folder(folder)
