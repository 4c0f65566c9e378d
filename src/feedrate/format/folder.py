# SPDX-License-Identifier: Apache-2.0
"""Image files as people keep them: a folder of them, or their names one by one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from feedrate.errors import NotFound, SourceError
from feedrate.format.keys import IMAGE_SUFFIXES, has_image_suffix


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
            raise NotFound(f"no folder, file or pack at {path}")
    if not found:
        where = ", ".join(str(source) for source in sources)
        hint = f"feedrate looks for files ending in {', '.join(sorted(IMAGE_SUFFIXES))}"
        raise SourceError(f"no images in {where}", hint=hint)
    return found


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
