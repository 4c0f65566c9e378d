# SPDX-License-Identifier: Apache-2.0
"""What a user may name as a source of images: a pack, a folder of image files, or files one by one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from feedrate.errors import NotFound, SourceError, suggest_path
from feedrate.format.keys import has_image_suffix
from feedrate.format.manifest import FILE_NAME, is_unfinished, read_manifest
from feedrate.prelist import IMAGE_SUFFIXES


def find_images(sources: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the images under folders, sorted, and files as they are named; what is hidden is left out.

    Raises:
        NotFound: there is nothing of that name.
        SourceError: there are no images.
    """
    found: list[str] = []
    for source in sources:
        path = Path(source)
        if path.is_dir():
            found += _walk(path)
        elif path.exists():
            found.append(str(path))
        else:
            raise NotFound(f"no folder, file or pack at {path}", hint=suggest_path(path))
    if not found:
        where = ", ".join(str(source) for source in sources)
        hint = f"feedrate looks for files ending in {', '.join(sorted(IMAGE_SUFFIXES))}"
        raise SourceError(f"no images in {where}", hint=hint)
    return found


def is_pack(source: str | os.PathLike[str]) -> bool:
    """Return whether this is a pack.

    Raises:
        NotFound: it is one that was never finished.
    """
    folder = Path(source)
    if (folder / FILE_NAME).exists():
        return True
    if folder.is_dir() and is_unfinished(folder):
        read_manifest(folder)
    return False


def _walk(top: Path) -> list[str]:
    paths = []
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [
            os.path.join(folder, name)
            for name in names
            if not name.startswith(".") and has_image_suffix(os.fsencode(name))
        ]
    return sorted(paths)
