# SPDX-License-Identifier: Apache-2.0
"""Decide by looking what a source is, and return the reader for it."""

from __future__ import annotations

from feedrate.source.folders import ImageFolders
from feedrate.source.labelled import LabelledFolder
from feedrate.source.options import SourceOptions
from feedrate.source.record import Reader


def open_reader(source: str, options: SourceOptions | None = None) -> Reader:
    """Return a reader of a source: class folders, a folder of images, or a folder with a table of labels.

    Raises:
        NotFound: there is no such folder or table.
        SourceError: the table cannot be used.
    """
    options = options or SourceOptions()
    if options.labels is not None:
        return LabelledFolder(source, options)
    return ImageFolders(source)
