# SPDX-License-Identifier: Apache-2.0
"""What may the user have meant by a path that is not there?"""

from __future__ import annotations

import os

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
