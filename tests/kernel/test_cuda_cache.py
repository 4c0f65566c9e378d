# SPDX-License-Identifier: Apache-2.0
"""The user's cache of compiled kernels: what it keeps, whom it trusts, and what it survives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from feedrate.kernel.cuda.nvrtc import CodeCache, Nvrtc, find_folder, make_key
from support.cuda_sources import SAXPY

KEY = make_key("source", "sm_90", (), (12, 9))
CODE = bytes(range(256)) * 40
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="giving a file to another user needs root")


class CountingNvrtc:
    """Makes code of its own of any source, and counts how often."""

    def __init__(self, version: tuple[int, int] = (12, 9)) -> None:
        self.version, self.count = version, 0

    def compile(self, source: str, architecture: str, options: Sequence[str] = ()) -> bytes:
        self.count += 1
        return f"{self.version}{architecture}{options}{source}".encode()


@pytest.fixture
def cache(tmp_path: Path) -> CodeCache:
    return CodeCache(tmp_path / "home/.cache/feedrate/cuda")


def file_of(cache: CodeCache, key: str = KEY) -> Path:
    assert cache.folder is not None
    return cache.folder / key


def run(script: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_what_was_compiled_once_is_read_the_next_time(cache: CodeCache) -> None:
    nvrtc: Any = CountingNvrtc()
    made = [cache.compile(nvrtc, SAXPY, "sm_90") for _ in range(3)]
    assert len(set(made)) == 1
    assert nvrtc.count == 1


def test_another_source_option_architecture_or_nvrtc_is_compiled_by_itself(cache: CodeCache) -> None:
    nvrtc: Any = CountingNvrtc()
    newer: Any = CountingNvrtc(version=(12, 10))
    made = {
        cache.compile(nvrtc, SAXPY, "sm_90"),
        cache.compile(nvrtc, SAXPY + " ", "sm_90"),
        cache.compile(nvrtc, SAXPY, "sm_90", ("-DA", "-DB")),
        cache.compile(nvrtc, SAXPY, "sm_90", ("-DA-DB",)),
        cache.compile(nvrtc, SAXPY, "compute_90"),
        cache.compile(newer, SAXPY, "sm_90"),
    }
    assert len(made) == 6


def test_folder_and_file_are_for_their_owner_alone_whatever_the_umask(cache: CodeCache) -> None:
    before = os.umask(0)
    try:
        cache.write(KEY, CODE)
    finally:
        os.umask(before)
    assert file_of(cache).stat().st_mode & 0o777 == 0o600
    assert file_of(cache).parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "longer", "magic"])
def test_a_damaged_file_is_not_used_and_written_anew(cache: CodeCache, damage: str) -> None:
    cache.write(KEY, CODE)
    path = file_of(cache)
    whole = path.read_bytes()
    flipped = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]
    changed = {"cut": whole[:-1], "flip": flipped, "empty": b"", "longer": whole + b"!", "magic": whole[1:]}
    path.write_bytes(changed[damage])
    assert cache.read(KEY) is None
    cache.write(KEY, CODE)
    assert cache.read(KEY) == CODE


def test_a_file_that_was_given_another_ones_name_is_not_used(cache: CodeCache) -> None:
    cache.write(KEY, CODE)
    other = "f" * 64
    file_of(cache).rename(file_of(cache, other))
    assert cache.read(other) is None


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_neither_read_nor_filled(cache: CodeCache, mode: int) -> None:
    cache.write(KEY, CODE)
    file_of(cache).parent.chmod(mode)
    assert cache.read(KEY) is None
    cache.write("another", CODE)
    assert [path.name for path in file_of(cache).parent.iterdir()] == [KEY]


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_to_is_not_used_and_replaced(cache: CodeCache, mode: int) -> None:
    cache.write(KEY, CODE)
    file_of(cache).chmod(mode)
    assert cache.read(KEY) is None
    cache.write(KEY, CODE)
    assert cache.read(KEY) == CODE
    assert file_of(cache).stat().st_mode & 0o777 == 0o600


@AS_ROOT
def test_somebody_elses_folder_is_not_used(cache: CodeCache) -> None:
    cache.write(KEY, CODE)
    os.chown(file_of(cache).parent, 12345, 12345)
    assert cache.read(KEY) is None


@AS_ROOT
def test_somebody_elses_file_is_not_used(cache: CodeCache) -> None:
    cache.write(KEY, CODE)
    os.chown(file_of(cache), 12345, 12345)
    assert cache.read(KEY) is None


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_link_is_not_followed(cache: CodeCache, what: str, tmp_path: Path) -> None:
    cache.write(KEY, CODE)
    path = file_of(cache).parent if what == "folder" else file_of(cache)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert cache.read(KEY) is None


def test_a_pipe_in_the_place_of_a_file_makes_nobody_wait(cache: CodeCache) -> None:
    cache.write(KEY, CODE)
    file_of(cache).unlink()
    os.mkfifo(file_of(cache), 0o600)
    assert cache.read(KEY) is None


def test_where_the_folder_cannot_be_made_all_is_compiled_in_memory(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file, where a home folder should be")
    nvrtc: Any = CountingNvrtc()
    for folder in (tmp_path / "home/.cache", Path("/proc/feedrate/cuda"), None):
        assert CodeCache(folder).compile(nvrtc, SAXPY, "sm_90")
    assert nvrtc.count == 3


def test_a_home_that_is_read_only_is_read(small_disk: Path) -> None:
    nvrtc: Any = CountingNvrtc()
    cache = CodeCache(small_disk / ".cache/feedrate/cuda")
    cache.compile(nvrtc, SAXPY, "sm_90")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    cache.compile(nvrtc, SAXPY, "sm_90")
    assert nvrtc.count == 1
    assert cache.compile(nvrtc, SAXPY, "sm_80")
    assert nvrtc.count == 2


def test_a_full_disk_leaves_nothing_half_written(small_disk: Path) -> None:
    cache = CodeCache(small_disk / "cuda")
    cache.write(KEY, os.urandom(100_000))
    assert list((small_disk / "cuda").iterdir()) == []


def test_a_process_that_is_killed_in_mid_write_leaves_nothing_that_is_read(cache: CodeCache) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from feedrate.kernel.cuda import nvrtc as cache
def kill(temporary, name, **folders):
    os.truncate(f"/proc/self/fd/{folders['src_dir_fd']}/{temporary}", 1000)
    os.kill(os.getpid(), signal.SIGKILL)
cache.os.replace = kill
cache.CodeCache(Path(sys.argv[1])).write(sys.argv[2], bytes(10_000))
"""
    process = run(script, file_of(cache).parent, KEY)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    (leftover,) = file_of(cache).parent.iterdir()
    assert leftover.stat().st_size == 1000
    assert cache.read(KEY) is None
    cache.write(KEY, CODE)
    assert cache.read(KEY) == CODE


def test_what_a_killed_process_left_is_removed_by_a_later_one(cache: CodeCache) -> None:
    cache.write(KEY, CODE)
    fresh, old = file_of(cache, ".k.7-a.tmp"), file_of(cache, ".k.8-b.tmp")
    fresh.touch()
    old.touch()
    os.utime(old, (1, 1))
    os.utime(file_of(cache), (1, 1))
    cache.write("another", CODE)
    assert {path.name for path in file_of(cache).parent.iterdir()} == {KEY, "another", fresh.name}


def test_processes_that_write_and_read_at_once_see_whole_files(cache: CodeCache) -> None:
    script = """
import sys
from pathlib import Path
from feedrate.kernel.cuda.nvrtc import CodeCache
cache, key, code = CodeCache(Path(sys.argv[1])), sys.argv[2], bytes(range(256)) * 40
print("ready", flush=True)
sys.stdin.read()
for _ in range(100):
    cache.write(key, code)
    assert cache.read(key) == code
"""
    processes = [run(script, file_of(cache).parent, KEY) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait() for process in processes] == [0] * 4
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
    assert [path.name for path in file_of(cache).parent.iterdir()] == [KEY]
    assert cache.read(KEY) == CODE


@pytest.mark.usefixtures("nvrtc")
def test_ranks_that_compile_at_once_get_the_same_code_and_leave_one_file(cache: CodeCache) -> None:
    script = """
import hashlib, sys
from pathlib import Path
from feedrate.kernel.cuda.nvrtc import CodeCache
from feedrate.kernel.cuda.nvrtc import load_nvrtc
code = CodeCache(Path(sys.argv[1])).compile(load_nvrtc(12), sys.argv[2], "sm_90")
print(hashlib.sha256(code).hexdigest())
"""
    ranks = [run(script, file_of(cache).parent, SAXPY) for _ in range(3)]
    digests = {rank.communicate()[0] for rank in ranks}
    assert len(digests) == 1
    assert len(list(file_of(cache).parent.iterdir())) == 1


def test_what_nvrtc_made_comes_back_as_it_was(cache: CodeCache, nvrtc: Nvrtc) -> None:
    made = cache.compile(nvrtc, SAXPY, "sm_90")
    assert cache.read(make_key(SAXPY, "sm_90", (), nvrtc.version)) == made == nvrtc.compile(SAXPY, "sm_90")


def test_the_folder_is_where_the_environment_says_and_else_in_the_home_folder() -> None:
    home = Path(os.path.expanduser("~"))
    assert find_folder({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/feedrate/cuda")
    assert find_folder({}) == home / ".cache/feedrate/cuda"
    assert find_folder({"XDG_CACHE_HOME": "relative"}) == home / ".cache/feedrate/cuda"


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert find_folder({}) is None
