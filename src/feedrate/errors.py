# SPDX-License-Identifier: Apache-2.0
"""Every exception that feedrate raises on purpose.

FeedrateError
├── UsageError      (ValueError)         an argument or a combination of arguments makes no sense
├── NotFound        (FileNotFoundError)  a path that should be there is not
├── AlreadyExists   (FileExistsError)    a path that would be overwritten
├── SourceError     (ValueError)         a dataset that cannot be packed as it is
├── PackError       (ValueError)         a pack that cannot be read, or is damaged
├── StorageError    (OSError)            the disk said no: full, forbidden, gone
├── DoctorError     (RuntimeError)       a command ran, and there was nothing to examine; carries an exit code
├── GpuError        (RuntimeError)       the GPU, its driver or its compiler said no
├── BadSample       (ValueError)         one sample cannot be read or decoded; carries its name
└── MissingExtra    (ImportError)        an optional package is needed and not installed
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def clean(text: str) -> str:
    """Return text of one line: what a terminal would obey, or cannot show, is written as an escape.

    Names of files, classes and columns come from strangers.
    """
    if text.isprintable():
        return text
    from unicodedata import category

    # Spaces of other scripts are not printable to Python, and harmless.
    return "".join(
        c if c.isprintable() or category(c) == "Zs" else c.encode("unicode_escape").decode() for c in text
    )


def clean_lines(text: str) -> str:
    """Return text whose line breaks are meant."""
    return "\n".join(map(clean, text.split("\n")))


class FeedrateError(Exception):
    """What the user should read: `str(error)` says what happened, `hint` what to type next."""

    exit_code = 1  # of a command that ends with it

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        message = clean_lines(message)
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else clean_lines(hint)

    def __str__(self) -> str:
        # OSError would print its errno tuple otherwise.
        return self.message


class UsageError(FeedrateError, ValueError):
    """An argument or a combination of arguments makes no sense."""


class NotFound(FeedrateError, FileNotFoundError):
    """A path that should be there is not."""


class AlreadyExists(FeedrateError, FileExistsError):
    """A path that would be overwritten."""


class SourceError(FeedrateError, ValueError):
    """A dataset that cannot be packed as it is."""


class PackError(FeedrateError, ValueError):
    """A pack that cannot be read, or is damaged."""


class StorageError(FeedrateError, OSError):
    """The disk said no: full, forbidden, gone."""


class GpuError(FeedrateError, RuntimeError):
    """The GPU, its driver or its compiler said no."""


class MissingExtra(FeedrateError, ImportError):
    """An optional package is needed and not installed."""


def need(module: str) -> Any:
    """Import `module` of a package that is installed with feedrate, unless somebody left dependencies out.

    Raises:
        MissingExtra: it is not there: loading needs numpy and Pillow alone, so others may be missing.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise MissingExtra(
            f"this needs {package}, which is not installed", hint=f"pip install {package}"
        ) from error


class DoctorError(FeedrateError, RuntimeError):
    """A command ran, and there was nothing to examine. `exit_code`: what the shell should see."""

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class BadSample(FeedrateError, ValueError):
    """One sample cannot be read or decoded.

    Attributes say where it is, so that a policy can log it or skip it.
    """

    def __init__(
        self,
        message: str = "",
        *,
        key: str = "",
        shard: str = "",
        offset: int = 0,
        field: str = "",
        reason: str = "",
    ) -> None:
        # A message alone: torch's DataLoader makes a worker's exception again as `type(error)(text)`.
        super().__init__(message or f"sample '{key}', field '{field}' ({shard} at byte {offset}): {reason}")
        self.key = key
        self.shard = shard
        self.offset = offset
        self.field = field
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments: the default pickling of exceptions cannot call them.
        return (_rebuild_bad_sample, (self.key, self.shard, self.offset, self.field, self.reason))


def _rebuild_bad_sample(key: str, shard: str, offset: int, field: str, reason: str) -> BadSample:
    return BadSample(key=key, shard=shard, offset=offset, field=field, reason=reason)


_SIMILAR = 0.75  # a slip or two; at difflib's 0.6 'nopack' is like 'out pack 1'


def suggest_path(path: str | os.PathLike[str]) -> str | None:
    """Return a hint that names a neighbour with a similar name, or the part of the path that exists."""
    parent, name = os.path.split(os.path.abspath(path))
    try:
        neighbours = os.listdir(parent)
    except OSError:
        while not os.path.isdir(parent):
            parent = os.path.dirname(parent)
        return f"the path exists as far as {parent}"
    import difflib

    near = difflib.get_close_matches(name, neighbours, n=1, cutoff=_SIMILAR)
    return f"{parent} holds '{near[0]}'. Did you mean that?" if near else None
