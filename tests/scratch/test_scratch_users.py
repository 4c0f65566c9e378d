# SPDX-License-Identifier: Apache-2.0
"""Two users of one node: neither can change what the other one reads from scratch."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import feedrate
from feedrate.cli import main
from feedrate.scratch.commands import release_all
from support.packs import write_images
from support.scratches import NOT_ROOT, OTHER_STRANGER, STRANGER, as_stranger, begin_as_stranger

# Python 3.12 warns of every fork beside threads; the children here do nothing with them.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.skipif(os.geteuid() != 0, reason=NOT_ROOT),
    pytest.mark.usefixtures("no_fsync"),
]

VICTIM, ATTACKER = STRANGER, OTHER_STRANGER
COUNT = 6


@pytest.fixture
def node() -> Iterator[Path]:
    """A folder that everybody can enter: it holds a scratch folder as sites make it, and two packs."""
    with tempfile.TemporaryDirectory(prefix="node-") as folder:
        top = Path(os.path.realpath(folder))
        top.chmod(0o755)
        (top / "scr").mkdir()
        (top / "scr").chmod(0o1777)
        write_images(top / "good", COUNT, shards=2)
        write_images(top / "evil", COUNT + 1, shards=2)
        # What unprivileged processes import must be loaded: they may not enter where Python lies.
        assert _read_all(str(top / "good")) == list(range(COUNT))
        feedrate.stage(top / "good", top / "own")
        _read_all(str(top / "good"), str(top / "own"))
        release_all()
        yield top


def _open(pack: str | Path, scratch: str | None = None) -> feedrate.Loader:
    return feedrate.Loader(pack, 2, fields=("image", "number"), output="numpy", scratch=scratch)


def _read_all(pack: str | Path, scratch: str | None = None) -> list[int]:
    with _open(pack, scratch) as loader:
        return _numbers(loader)


def _numbers(loader: feedrate.Loader) -> list[int]:
    return sorted(int(number) for _, numbers in loader for number in numbers)


def _stage(source: Path, scratch: Path) -> Callable[[], str]:
    def work() -> str:
        return feedrate.stage(source, scratch).path

    return work


def _swap(path: str, scratch: Path, evil: Path) -> Callable[[], str]:
    """Put another tree in the place of a folder between scratch and the copy; return which it was."""

    def work() -> str:
        relative = Path(path).relative_to(scratch)
        for above in [scratch / part for part in reversed(relative.parents)][1:]:
            with contextlib.suppress(OSError):
                above.rename(above.with_name(f"{above.name}.away"))
                shutil.copytree(evil, scratch / relative)
                return above.name
        return ""

    return work


def test_the_first_user_of_a_node_cannot_put_another_tree_in_the_place_of_a_copy(node: Path) -> None:
    scratch = node / "scr"

    def come_first() -> str:
        folder = scratch / "feedrate"
        folder.mkdir()
        folder.chmod(0o1777)
        return _stage(node / "good", scratch)()

    as_stranger(come_first, ATTACKER)
    path = as_stranger(_stage(node / "good", scratch), VICTIM)
    swapped = as_stranger(_swap(path, scratch, node / "evil"), ATTACKER)
    assert as_stranger(lambda: _read_all(path), VICTIM) == list(range(COUNT))
    assert as_stranger(lambda: _read_all(str(node / "good"), str(scratch)), VICTIM) == list(range(COUNT))
    assert swapped == ""


@pytest.mark.parametrize("mode", [0o777, 0o1777], ids=["anybody's", "the attacker's"])
def test_what_is_read_is_what_was_looked_at_even_where_others_can_rename_it(node: Path, mode: int) -> None:
    """Where scratch itself is not to be trusted, descriptors are; what is opened later is refused."""
    scratch = node / "lab"
    scratch.mkdir()
    scratch.chmod(0o777)
    path = as_stranger(_stage(node / "good", scratch), VICTIM)
    os.chown(scratch, ATTACKER, ATTACKER)
    scratch.chmod(mode)
    opened, swapping = os.pipe(), os.pipe()

    def train() -> list[list[int]]:
        with _open(path) as staged, _open(node / "good", str(scratch)) as through:
            os.write(opened[1], b"!")
            os.read(swapping[0], 1)
            return [_numbers(staged), _numbers(through)]

    finish = begin_as_stranger(train, VICTIM)
    os.close(opened[1])
    assert os.read(opened[0], 1) == b"!", finish()
    swapped = as_stranger(_swap(path, scratch, node / "evil"), ATTACKER)
    os.write(swapping[1], b"!")
    for end in (opened[0], *swapping):
        os.close(end)
    assert swapped == f"feedrate-{VICTIM}"
    assert finish() == [list(range(COUNT))] * 2
    refusal = (
        f"StorageError: {scratch}/feedrate-{VICTIM} belongs to {ATTACKER}, so what lies there is not trusted"
    )
    assert as_stranger(lambda: _read_all(path), VICTIM) == refusal
    assert as_stranger(_stage(node / "good", scratch), VICTIM) == refusal


def test_a_path_that_others_could_replace_is_said_when_it_is_handed_out(
    node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (node / "lab").mkdir()
    (node / "lab").chmod(0o777)
    assert main(["stage", str(node / "good"), "--scratch", str(node / "lab")]) == 0
    assert (
        f"others may write to {node}/lab, which is not sticky: somebody else could" in capsys.readouterr().err
    )
    assert main(["stage", str(node / "good"), "--scratch", str(node / "scr")]) == 0
    assert "somebody else" not in capsys.readouterr().err


def test_a_name_that_somebody_else_has_taken_is_a_sentence(node: Path) -> None:
    taken = node / "scr" / f"feedrate-{VICTIM}"
    as_stranger(taken.mkdir, ATTACKER)
    expected = f"StorageError: {taken} belongs to {ATTACKER}, so what lies there is not trusted"
    assert as_stranger(_stage(node / "good", node / "scr"), VICTIM) == expected
    assert as_stranger(lambda: _read_all(str(node / "good"), str(node / "scr")), VICTIM) == expected
    assert os.listdir(node / "scr") == [taken.name]


def test_a_link_under_the_name_is_a_sentence(node: Path) -> None:
    taken = node / "scr" / f"feedrate-{VICTIM}"
    as_stranger(lambda: taken.symlink_to(node / "evil"), ATTACKER)
    expected = f"StorageError: {taken} is a link, so what lies there is not trusted"
    assert as_stranger(_stage(node / "good", node / "scr"), VICTIM) == expected


def test_the_folder_is_private_until_a_public_source_is_staged(node: Path) -> None:
    home = node / "scr" / f"feedrate-{VICTIM}"
    private = node / "private"
    shutil.copytree(node / "good", private)
    for path in private.iterdir():
        os.chown(path, VICTIM, VICTIM)
        path.chmod(0o600)
    first = as_stranger(_stage(private, node / "scr"), VICTIM)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    second = as_stranger(_stage(node / "good", node / "scr"), VICTIM)
    assert stat.S_IMODE(home.stat().st_mode) == 0o755
    assert "PermissionError" in as_stranger(lambda: os.listdir(first), ATTACKER)
    assert "pack.json" in as_stranger(lambda: os.listdir(second), ATTACKER)


def test_what_root_has_staged_is_used_by_everybody(node: Path) -> None:
    path = _stage(node / "good", node / "scr")()
    release_all()
    for user in (VICTIM, ATTACKER):
        assert as_stranger(_stage(node / "good", node / "scr"), user) == path
        assert as_stranger(lambda: _read_all(str(node / "good"), str(node / "scr")), user) == list(
            range(COUNT)
        )
    assert os.listdir(node / "scr") == ["feedrate-0"]


def test_somebody_who_takes_roots_name_stops_nobody(node: Path) -> None:
    as_stranger((node / "scr" / "feedrate-0").mkdir, ATTACKER)
    path = as_stranger(_stage(node / "good", node / "scr"), VICTIM)
    assert path.startswith(f"{node}/scr/feedrate-{VICTIM}/")


def test_a_scratch_folder_of_ones_own_is_fine(node: Path) -> None:
    own = node / "scr" / "mine"
    as_stranger(own.mkdir, VICTIM)
    path = as_stranger(_stage(node / "good", own), VICTIM)
    assert as_stranger(lambda: _read_all(path), VICTIM) == list(range(COUNT))


def test_a_folder_that_only_looks_like_ours_is_read_and_left_alone(node: Path) -> None:
    own = node / "feedrate-0" / "set"
    own.mkdir(parents=True)
    shutil.copytree(node / "good", own / "data")
    assert _read_all(own / "data") == list(range(COUNT))
    assert os.listdir(own) == ["data"]
