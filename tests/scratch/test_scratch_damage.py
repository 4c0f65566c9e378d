# SPDX-License-Identifier: Apache-2.0
"""A bit that flips in a copy, wherever it is, is found by `verify` and mended by `stage --check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate import PackOptions, pack, verify
from feedrate.errors import PackError
from feedrate.scratch.copy import Copy
from feedrate.scratch.staging import StagingOptions, open_staging
from support.damage import flip_byte
from support.images import read_tree
from support.scratch_copies import make_files, stage

pytestmark = pytest.mark.usefixtures("no_fsync")

TAR_BLOCK = 512


@pytest.fixture
def source(jpeg_folder: Path, tmp_path: Path) -> Path:
    pack(jpeg_folder, tmp_path / "p", PackOptions(shard_bytes=20_000, workers=1))
    return tmp_path / "p"


@pytest.fixture
def copy(source: Path, tmp_path: Path) -> Copy:
    return stage(source, tmp_path / "scr")


def check(source: Path, copy: Copy) -> tuple[int, list[str]]:
    """Stage again; return how many files were brought, and what was said."""
    said: list[str] = []
    options = StagingOptions(check=True)
    with open_staging(source, copy.folder.parents[1], options=options, say=said.append) as staging:
        staging.run()
    return staging.copied_files, said


def places(path: Path, parts: int) -> range:
    """Return bytes in every part of a file: first, last, and evenly between."""
    size = path.stat().st_size
    return range(0, size, max(size // parts, 1))


@pytest.mark.parametrize("name", ["shard-00000.tar", "shard-00000.arrow", "pack.json"])
def test_a_flipped_bit_is_found_by_verify_and_mended_by_staging_again(
    source: Path, copy: Copy, name: str
) -> None:
    path = copy.path / name
    whole = (source / name).read_bytes()
    # Of a tar: heads, data, padding and the end; of an index: schema, columns, footer.
    for at in [*places(path, 12), len(whole) - 1]:
        flip_byte(path, at)
        if name == "pack.json":
            with pytest.raises(
                PackError, match=r"pack\.json: (does not fit|is not JSON|is not the manifest|has format)"
            ):
                verify(copy.path, workers=1)
        else:
            assert not verify(copy.path, workers=1).is_good, f"byte {at} of {name}"
        brought, said = check(source, copy)
        assert brought == 1, f"byte {at} of {name}"
        assert said == [f"{path} is not as it was copied: it is brought anew"]
        assert path.read_bytes() == whole
    assert verify(copy.path, workers=1).is_good


def test_every_kind_of_byte_of_a_tar_shard_is_covered(source: Path, copy: Copy) -> None:
    path = copy.path / "shard-00000.tar"
    size = path.stat().st_size
    kinds = {
        0: "name in a head",
        148: "checksum in a head",
        TAR_BLOCK: "data",
        size - 1: "end of the archive",
    }
    for at, kind in kinds.items():
        flip_byte(path, at)
        assert not verify(copy.path, workers=1).is_good, kind
        assert check(source, copy)[0] == 1, kind


def test_a_file_cut_short_or_gone_is_brought_again_without_being_asked_to_check(
    source: Path, copy: Copy
) -> None:
    (copy.path / "shard-00000.tar").write_bytes(b"short")
    (copy.path / "shard-00000.arrow").unlink()
    stage(source, copy.folder.parents[1])
    assert read_tree(copy.path) == read_tree(source)


def test_a_good_copy_is_read_and_nothing_is_brought(source: Path, copy: Copy) -> None:
    assert check(source, copy) == (0, [])


def test_plain_files_are_checked_too(tmp_path: Path) -> None:
    source = make_files(tmp_path / "f")
    copy = stage(source, tmp_path / "scr2")
    flip_byte(copy.path / "part-1" / "values.bin", 17)
    assert check(source, copy)[0] == 1
    assert read_tree(copy.path) == read_tree(source)
