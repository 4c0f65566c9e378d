# SPDX-License-Identifier: Apache-2.0
"""Whatever happened to a source and its copy before, no content of either is lost by eviction."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedrate.errors import FeedrateError
from feedrate.scratch.commands import collect_garbage, remove_copies
from support.examples import examples
from support.scratch_copies import make_files, make_pack, stage

DEEDS = (
    "delete",
    "cut",
    "flip",
    "flip and hide it",
    "touch",
    "link to the other",
    "hard link",
    "add",
    "swap",
    "nothing",
)

pytestmark = pytest.mark.usefixtures("no_fsync")


def list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def contents(*folders: Path) -> set[bytes]:
    """Return what can be read, by whatever way, in any of these folders."""
    return {path.read_bytes() for folder in folders for path in list_files(folder)}


def do(deed: str, here: Path, there: Path, pick: int) -> None:
    """Do something to one of the files of a folder; `there` is the other one, where the same files were."""
    files = list_files(here)
    if not files:
        return
    path = files[pick % len(files)]
    other = there / path.relative_to(here)
    if deed == "delete":
        path.unlink()
    elif deed == "cut":
        os.truncate(path.resolve(), path.stat().st_size // 2)
    elif deed.startswith("flip"):
        info, data = path.stat(), bytearray(path.read_bytes())
        if data:
            data[pick % len(data)] ^= 1
            path.write_bytes(data)
        if deed != "flip" and here.name != "data":
            # Of the source: its disk rots, or its owner says that nothing was changed.
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    elif deed == "touch":
        os.utime(path)
    elif deed == "link to the other" and other.is_file() and other.resolve() != path.resolve():
        path.unlink()
        path.symlink_to(other.resolve())
    elif deed == "hard link" and other.is_file() and not other.samefile(path):
        path.unlink()
        os.link(other.resolve(), path)
    elif deed == "add":
        (here / f"new-{pick}").write_bytes(b"new %d" % pick)
    elif deed == "swap":
        second = files[(pick + 1) % len(files)]
        if second != path:
            path.rename(here / "aside")
            second.rename(path)
            (here / "aside").rename(second)


@settings(max_examples=examples(30))
@given(
    is_pack=st.booleans(),
    deeds=st.lists(
        st.tuples(st.sampled_from(DEEDS), st.booleans(), st.integers(0, 1000)), min_size=0, max_size=3
    ),
    replaced=st.sampled_from(["", "", "", "moved", "link"]),
)
def test_no_content_is_lost(is_pack: bool, deeds: list[tuple[str, bool, int]], replaced: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        source = (make_pack if is_pack else make_files)(top / "source")
        copy = stage(source, top / "scr", keep_s=0.0, used=1.0)
        for deed, at_source, pick in deeds:
            here, there = (source, copy.data) if at_source else (copy.data, source)
            do(deed, here, there, pick)
        if replaced:
            source.rename(top / "moved")
            if replaced == "link":
                shutil.rmtree(top / "moved")
                source.symlink_to(copy.data)
        before = contents(top / "moved", source, copy.data)
        collect_garbage(str(top / "scr"), limit_bytes=1)
        try:
            remove_copies([copy.folder.name], str(top / "scr"))
        except FeedrateError:
            assert not copy.folder.exists()
        assert before <= contents(top / "moved", source, copy.data)
        if not deeds and not replaced:
            assert not copy.folder.exists()
