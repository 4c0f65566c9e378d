# SPDX-License-Identifier: Apache-2.0
"""What was measured on a node, kept for the commands that reckon with it.

One file per node in the user's state folder, which all nodes see: written whole, readable by its user alone,
and not believed where another user could have written it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

from feedrate import documents
from feedrate.errors import FeedrateError, StorageError
from feedrate.figures import ASSUMED, STORED, Figure
from feedrate.files.atomic import atomic_write
from feedrate.files.lock import LOOK
from feedrate.files.permissions import ROOT, find_distrust
from feedrate.machine.describe import find_node, find_state_folder
from feedrate.machine.disk import describe_storage
from feedrate.machine.results import MachineNumbers, StoreSpeed

OLD_DAYS = 30  # numbers that are older should be measured again
_VERSION = 1
_MOST_BYTES = 1 << 20

log = logging.getLogger("feedrate")


def load_numbers(node: str | None = None) -> MachineNumbers | None:
    """Return what is known of a node, of this one by default; every figure says `stored`, with its date.

    None: nothing, or nothing that can be believed, which is then said.
    """
    path = _find_file(find_node() if node is None else node)
    try:
        return _read(path)
    except FileNotFoundError:
        return None
    except FeedrateError as error:
        why = str(error)
    except OSError as error:
        why = f"it cannot be read: {error.strerror or error}"
    except (ValueError, TypeError, RecursionError):
        why = "it is damaged"
    log.warning(
        "numbers of this node in %s are not used: %s. 'feedrate bench machine' makes them anew", path, why
    )
    return None


def save_numbers(numbers: MachineNumbers) -> Path:
    """Keep them in place of what was known of their node; return the file.

    Raises:
        StorageError: the state folder cannot be written to.
    """
    path = _find_file(numbers.node)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {path.parent}: {error.strerror or error}") from error
    text = json.dumps({"version": _VERSION, **asdict(numbers)}, indent=1, allow_nan=False)
    with atomic_write(path) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text.encode("utf-8") + b"\n")
    return path


def age_days(numbers: MachineNumbers) -> int:
    """Return how many days ago they were measured."""
    return max(0, (date.today() - date.fromisoformat(numbers.date)).days)


def find_store(numbers: MachineNumbers, path: str | os.PathLike[str]) -> StoreSpeed | None:
    """Return how the file system under a path answered when it was measured; None: it was not."""
    storage = describe_storage(path)
    found = numbers.stores.get(storage.mount_point)
    return found if found is not None and found.kind == storage.kind else None


def _find_file(node: str) -> Path:
    # '.' and '..' are names of nodes only in a bad joke; quote() leaves them as they are.
    return find_state_folder() / "machines" / f"node-{quote(node, safe='')}.json"


def _read(path: Path) -> MachineNumbers:
    descriptor = os.open(path, LOOK)
    with open(descriptor, "rb") as file:
        if why := find_distrust(os.fstat(descriptor), ROOT) or find_distrust(os.stat(path.parent), ROOT):
            raise StorageError(f"it {why}")
        document = json.loads(file.read(_MOST_BYTES))
    if not isinstance(document, dict):
        raise TypeError(f"{document!r} is no document")
    if document.get("version") != _VERSION:
        raise StorageError("another version of feedrate wrote it")
    numbers = documents.load(MachineNumbers, document)
    date.fromisoformat(numbers.date)
    marked: MachineNumbers = _mark(numbers, numbers.date)
    return marked


def _mark(value: Any, day: str) -> Any:
    """Return a result whose figures say that they were kept, and since when."""
    if isinstance(value, Figure):
        return value if value.origin == ASSUMED else replace(value, origin=STORED, note=day)
    if isinstance(value, Mapping):
        return {name: _mark(one, day) for name, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{field.name: _mark(getattr(value, field.name), day) for field in fields(value)}
        )
    return value
