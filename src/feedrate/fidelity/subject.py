# SPDX-License-Identifier: Apache-2.0
"""What is looked at: images in files or in a pack, and the originals of a pack's images."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from feedrate.errors import NotFound, UsageError, suggest_path
from feedrate.format.folder import find_images, is_pack
from feedrate.loader.samples import Samples, open_files, open_pack, pick
from feedrate.remote.pack import open_pack as open_anywhere
from feedrate.units import printable

# Settings in pack.json that change pixels: such a pack is compared with its originals, too.
LOSSY_SETTINGS = ("resize", "max_side", "quality")


@dataclass(frozen=True, slots=True)
class Subject:
    """`original_paths` are of a pack's samples, relative to the folder it was made of."""

    source: str
    dataset_images: int
    samples: Samples
    lossy_settings: Mapping[str, object] = field(default_factory=dict)
    original_paths: tuple[bytes, ...] = ()

    @property
    def wanted(self) -> int:
        return len(self.samples) + len(self.samples.rejected)


@contextmanager
def open_subject(
    sources: Sequence[str],
    images: int,
    seed: int,
    originals: Path | None,
    allow_addresses: Sequence[str] = (),
) -> Iterator[Subject]:
    """Draw up to `images` images from a pack, or from folders and files.

    Raises:
        NotFound: there is nothing of that name, or no such folder of originals.
        SourceError: there are no images.
        UsageError: a pack among other sources, or originals of something that is no pack.
        PackError: the pack is damaged, or names files of a host that is not allowed.
    """
    packs = [source for source in sources if is_pack(source)]
    if packs and len(sources) > 1:
        raise UsageError(f"{packs[0]} is a pack: give it alone, or give files and folders without it")
    if originals is not None and not packs:
        raise UsageError(
            f"{sources[0]} is not a pack: --originals compares a pack with the files that it was made of"
        )
    if originals is not None and not originals.is_dir():
        raise NotFound(f"no folder of originals at {originals}", hint=suggest_path(originals))
    files = _open_files(sources, images, seed)
    with _open_pack(packs[0], images, seed, allow_addresses) if packs else files as subject:
        yield subject


@contextmanager
def _open_files(sources: Sequence[str], images: int, seed: int) -> Iterator[Subject]:
    paths = find_images(sources)
    numbers = pick(len(paths), images, seed)
    with open_files([paths[i] for i in numbers], numbers) as samples:
        more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
        yield Subject(printable(os.fsencode(sources[0])) + more, len(paths), samples)


@contextmanager
def _open_pack(source: str, images: int, seed: int, allow_addresses: Sequence[str]) -> Iterator[Subject]:
    pack = open_anywhere(source, allow_addresses=allow_addresses)
    try:
        positions = pick(len(pack), images, seed)
        with open_pack(pack, positions) as samples:
            settings = pack.manifest.settings
            lossy = {name: settings[name] for name in LOSSY_SETTINGS if settings.get(name)}
            paths = tuple(pack.texts("image.path", positions))
            yield Subject(printable(os.fsencode(source)), len(pack), samples, lossy, paths)
    finally:
        pack.close()
