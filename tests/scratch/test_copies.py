# SPDX-License-Identifier: Apache-2.0
"""Copies on scratch: made once, held by leases, believed only if nobody else could have made them."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.errors import StorageError
from feedrate.files import lock as locks
from feedrate.files.lock import Gone, is_locked
from feedrate.scratch.copy import Copy, hold
from feedrate.scratch.listing import describe_copy, list_copies
from feedrate.scratch.marker import CopiedFile, Marker, dump_marker, load_marker
from support.scratches import NOT_ROOT, STRANGER, as_stranger, make_marker, process, wait_for

# Python 3.12 warns of every fork beside threads; the children here do nothing with them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

FILES = {"a.tar": b"all of a", "below/b.tar": b"b"}

HOLD = """
import sys
from pathlib import Path
from feedrate.scratch.copy import Copy
lease = Copy.open(Path(sys.argv[1])).lease()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy.create(tmp_path, make_marker(FILES))


@pytest.fixture
def public_scratch() -> Iterator[Path]:
    """A scratch folder as sites make it: everybody may write there."""
    with tempfile.TemporaryDirectory(prefix="scratch-") as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


def land(copy: Copy, name: str, data: bytes) -> None:
    fd = copy.open_part(name)
    os.pwrite(fd, data, 0)
    copy.land(name, fd)
    os.close(fd)


def land_all(copy: Copy) -> None:
    for name, data in FILES.items():
        land(copy, name, data)


def test_a_copy_is_made_once_and_found_again(tmp_path: Path) -> None:
    first, second = (Copy.create(tmp_path, make_marker(FILES)) for _ in range(2))
    assert first.folder == second.folder == tmp_path / f"feedrate-{os.getuid()}" / "set-abababababab"
    assert sorted(os.listdir(first.folder)) == ["copy.json", "data", "gate", "leases", "used", "writer"]
    assert os.listdir(first.folder.parent) == [first.folder.name]
    assert second.marker.files == make_marker(FILES).files


def test_many_who_make_it_at_the_same_time_get_one_copy(tmp_path: Path) -> None:
    made: list[Copy] = []
    barrier = threading.Barrier(8)

    def make() -> None:
        barrier.wait()
        made.append(Copy.create(tmp_path, make_marker(FILES)))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(copy.folder, copy.marker.created) for copy in made}) == 1
    assert len(os.listdir(made[0].folder.parent)) == 1


def test_a_file_has_its_name_only_when_it_is_whole(copy: Copy) -> None:
    copy.part("a.tar").write_bytes(b"all")
    assert not copy.has_landed("a.tar")
    assert copy.find_available("a.tar") == (copy.data / ".a.tar.part", 3)
    land_all(copy)
    assert copy.is_complete()
    assert copy.find_available("a.tar") == (copy.data / "a.tar", 8)
    (copy.data / "a.tar").write_bytes(b"cut")
    assert not copy.has_landed("a.tar")


def test_a_lease_ends_with_its_process_however_that_ends(copy: Copy) -> None:
    with process(HOLD, copy.folder) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        (info,) = describe_copy(copy).leases
        assert (info.pid, info.user) == (child.pid, describe_copy(copy).owner)
        assert "-c" in info.command
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert describe_copy(copy).leases == ()
    assert len(os.listdir(copy.folder / "leases")) == 1
    with copy.lease():  # whoever sees a stale one removes it
        assert len(os.listdir(copy.folder / "leases")) == 1
        assert [lease.pid for lease in describe_copy(copy).leases] == [os.getpid()]
    assert os.listdir(copy.folder / "leases") == []


def test_a_lease_says_when_the_copy_was_used(copy: Copy) -> None:
    os.utime(copy.folder / "used", (1, 1))
    assert describe_copy(copy).used == 1
    lease = copy.lease()
    assert describe_copy(copy).used > 1
    os.utime(copy.folder / "used", (1, 1))
    lease.release()
    lease.release()
    assert describe_copy(copy).used > 1


def test_no_lease_on_a_copy_that_is_deleted_under_its_gate(copy: Copy) -> None:
    failures: list[BaseException] = []

    def take() -> None:
        try:
            copy.lease()
        except Gone as error:
            failures.append(error)

    gate = copy.take_gate()
    thread = threading.Thread(target=take)
    thread.start()
    os.rename(copy.folder, copy.folder.parent / ".gone")
    shutil.rmtree(copy.folder.parent / ".gone")
    gate.release()
    thread.join()
    assert len(failures) == 1
    with pytest.raises(Gone):
        copy.take_writer()


def test_a_file_system_without_locks_is_a_sentence(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_fd: int, operation: int) -> None:
        if operation != locks.fcntl.LOCK_UN:
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with pytest.raises(StorageError, match=r"lies on a file system without locks \(No locks available\)"):
        copy.lease()


def test_a_pipe_among_the_leases_holds_nobody_up(copy: Copy) -> None:
    os.mkfifo(copy.folder / "leases" / "1-1")
    os.symlink("/etc/passwd", copy.folder / "leases" / "2-2")
    with copy.lease():
        assert os.getpid() in [lease.pid for lease in describe_copy(copy).leases]


def test_only_one_process_writes(copy: Copy) -> None:
    writer = copy.take_writer()
    assert writer is not None
    assert copy.take_writer() is None
    assert describe_copy(copy).is_being_written
    writer.release()
    again = copy.take_writer()
    assert again is not None
    again.release()
    assert not describe_copy(copy).is_being_written


def test_a_child_does_not_inherit_the_writer(copy: Copy) -> None:
    writer = copy.take_writer()
    assert writer is not None
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)  # until the parent has looked
        os._exit(0)
    writer.release()
    again = copy.take_writer()
    os.close(write)
    os.waitpid(child, 0)
    os.close(read)
    assert again is not None
    again.release()


def test_a_path_inside_of_a_copy_is_held(copy: Copy, tmp_path: Path) -> None:
    land_all(copy)
    for path in (copy.path, copy.path / "below" / "b.tar"):
        lease = hold(path)
        assert lease is not None
        assert len(describe_copy(copy).leases) == 1
        lease.release()
    assert hold(tmp_path) is None
    assert hold(tmp_path / "nothing") is None


def test_a_copy_belongs_to_this_user_or_to_root(copy: Copy) -> None:
    if os.geteuid() != 0:
        pytest.skip(NOT_ROOT)
    os.chown(copy.folder, STRANGER, STRANGER)
    with pytest.raises(StorageError, match=f"belongs to {STRANGER}, so what lies there is not trusted"):
        Copy.open(copy.folder)
    with pytest.raises(StorageError, match="is not trusted"):
        Copy.create(copy.folder.parent.parent, copy.marker)
    (info,) = list_copies(copy.folder.parent.parent)
    assert (info.is_trusted, info.uid) == (False, STRANGER)


@pytest.mark.parametrize("below", ["", "data", ".."])
def test_a_folder_that_others_may_write_to_is_not_trusted(copy: Copy, below: str) -> None:
    os.chmod(copy.folder / below, 0o777)
    with pytest.raises(
        StorageError, match="can be written to by other users, so what lies there is not trusted"
    ):
        Copy.open(copy.folder)


def test_a_link_is_not_trusted(copy: Copy, tmp_path: Path) -> None:
    os.rename(copy.folder, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", copy.folder)
    with pytest.raises(StorageError, match="is a link, so what lies there is not trusted"):
        Copy.open(copy.folder)


def test_a_finished_public_copy_of_roots_is_for_everybody(public_scratch: Path) -> None:
    copy = Copy.create(public_scratch, make_marker(FILES, is_public=True))
    if os.getuid() != 0:
        pytest.skip(NOT_ROOT)

    def use() -> object:
        found = Copy.create(public_scratch, make_marker(FILES, is_public=True))
        os.utime(found.folder / "used")
        with found.lease():
            users = [lease.user for lease in describe_copy(found).leases]
            return [str(found.folder), users, found.is_ours]

    own = str(public_scratch / f"feedrate-{STRANGER}" / copy.folder.name)
    assert as_stranger(use) == [own, [str(STRANGER)], True]  # not finished: they make their own
    shutil.rmtree(public_scratch / f"feedrate-{STRANGER}")
    land_all(copy)
    assert as_stranger(use) == [str(copy.folder), [str(STRANGER)], False]
    assert stat.S_IMODE(copy.folder.stat().st_mode) == 0o755


def test_a_private_copy_of_roots_is_for_nobody_else(public_scratch: Path) -> None:
    if os.getuid() != 0:
        pytest.skip(NOT_ROOT)
    copy = Copy.create(public_scratch, make_marker(FILES))
    land_all(copy)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [copy.folder, *copy.folder.rglob("*")]}
    assert {mode & 0o077 for mode in modes.values()} == {0}

    def use() -> object:
        return Copy.create(public_scratch, make_marker(FILES)).is_ours

    assert as_stranger(use) is True


def test_listing_shows_what_is_there_and_what_is_broken(copy: Copy, tmp_path: Path) -> None:
    land(copy, "a.tar", FILES["a.tar"])
    os.close(copy.open_part("below/b.tar"))
    other = Copy.create(tmp_path, make_marker({"x": b"1"}, source="/data/other", digest="cd" * 32))
    (other.folder / "copy.json").write_bytes(b"{")
    (copy.folder.parent / ".being.1-00000000.tmp").mkdir()
    broken, whole = list_copies(tmp_path)
    assert "copy.json is damaged" in broken.problem
    assert (whole.files, whole.landed_files, whole.landed_bytes, whole.size_bytes) == (2, 1, 8, 9)
    assert (whole.source, whole.is_trusted, whole.is_complete, whole.leases) == ("/data/set", True, False, ())


def test_one_who_only_looks_is_not_taken_for_a_user(copy: Copy) -> None:
    with copy.lease() as lease:
        assert is_locked(lease.path)
        assert is_locked(lease.path)
    wait_for(lambda: not is_locked(lease.path), "the lock to be gone")


NAMES = st.from_regex(r"[A-Za-z0-9 _-]{1,8}(/[A-Za-z0-9 _\udc80-]{1,8}){0,2}", fullmatch=True)


@given(
    st.dictionaries(
        NAMES, st.tuples(st.integers(0, 2**48), st.none() | st.integers(0, 2**32 - 1)), max_size=5
    ),
    st.none() | st.floats(0, 1e9),
)
def test_a_marker_is_read_as_it_was_written(
    files: dict[str, tuple[int, int | None]], keep_s: float | None
) -> None:
    entries = tuple(CopiedFile(name, size, crc, 7, "../x") for name, (size, crc) in files.items())
    marker = Marker(
        "pack", "s3://b/set", "0" * 64, entries, keep_s=keep_s, created=1.5, made_by={"user": "u"}
    )
    assert load_marker(dump_marker(marker)) == marker


@given(st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b"null", b'{"format": "feedrate-copy"}']))
def test_any_bytes_are_a_marker_or_a_sentence(text: bytes) -> None:
    with pytest.raises(StorageError, match=r"is damaged|version"):
        load_marker(text)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../b", "", ".hidden", "a//b", "a/", ".x.part", "a\0b"])
def test_a_marker_names_nothing_outside_of_its_copy(name: str) -> None:
    text = dump_marker(make_marker({"plain": b""})).replace(
        b'"plain"', b'"%s"' % name.encode().replace(b"\0", b"\\u0000")
    )
    text = re.sub(rb',"check":"\w+"', b"", text)  # as earlier versions wrote it
    with pytest.raises(StorageError, match="is not the name of a file"):
        load_marker(text)
