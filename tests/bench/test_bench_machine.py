# SPDX-License-Identifier: Apache-2.0
"""`feedrate bench machine`: small files on a real disk, what it leaves behind, and what it says."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feedrate.bench import machine
from feedrate.bench.machine import bench_machine, choose_stores
from feedrate.bench.results import MachineResult
from feedrate.cli import main
from feedrate.cli.output import dump_document
from feedrate.errors import NotFound, StorageError, UsageError
from feedrate.figures import Figure
from feedrate.files.lock import lock_fd
from feedrate.files.own_folder import own_folder, remove_leftovers
from feedrate.lab import trial_files
from feedrate.lab.trial_files import Sizes, check_store, choose_sizes
from feedrate.machine.describe import find_node
from feedrate.machine.disk import Room, describe_storage
from feedrate.model.numbers import load_numbers
from support.bench_results import make_machine_result, make_store_speed

NAME = "feedrate-bench-machine-"
TINY = Sizes(8 << 20, 40, 20_000, 0.3, 0.2)


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    effort = replace(machine._QUICK, photographs=4, seconds=0.01, transfer_bytes=1 << 20, cpu_models=())
    monkeypatch.setattr(machine, "_QUICK", effort)
    monkeypatch.setattr(machine, "QUICK", TINY)
    monkeypatch.setattr(machine.Neighbours, "describe", lambda _: "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def quiet(_: str) -> None:
    pass


def list_figures(value: Any) -> Iterator[Figure]:
    if isinstance(value, Figure):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from list_figures(getattr(value, field.name))
    elif isinstance(value, dict):
        for one in value.values():
            yield from list_figures(one)
    elif isinstance(value, tuple):
        for one in value:
            yield from list_figures(one)


def test_a_store_is_measured_and_nothing_is_left_there(folder: Path) -> None:
    result, numbers = bench_machine({"disk": folder}, is_quick=True, say=quiet)
    assert list(folder.iterdir()) == []
    found = list(list_figures(result))
    assert len(found) > 12
    assert all(0 <= figure.low <= figure.value <= figure.high for figure in found)
    speed = numbers.stores[describe_storage(folder).mount_point]
    assert speed.path == str(folder)
    assert speed.write_bytes_per_s is not None
    assert set(numbers.decode_images_per_s) == {"pillow", "feedrate"}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written."""
    monkeypatch.setattr(machine, "measure_files", lambda *_: make_store_speed())


@pytest.mark.usefixtures("measured")
def test_what_is_shared_names_neither_the_node_nor_a_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "secret-node-17")
    result, numbers = bench_machine({"disk": folder}, is_quick=True, say=quiet)
    text = dump_document("bench machine", result)
    assert numbers.node == "secret-node-17"
    assert "secret-node-17" not in text
    assert str(folder.parent) not in text
    assert set(result.numbers.stores) == {"disk"}


def test_a_gpu_that_others_hold_is_left_out_and_all_else_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: all devices are busy\nCompile with ...")

    monkeypatch.setattr(machine, "choose_device", fail)
    left_out: dict[str, str] = {}
    assert machine._measure_gpu([], None, machine._QUICK, left_out) == {}  # type: ignore[arg-type]
    choice = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    monkeypatch.setattr(machine, "choose_device", lambda _: choice)
    monkeypatch.setattr(machine, "describe_device", lambda _: "a GPU")
    monkeypatch.setattr(machine, "measure_model", fail)
    assert machine._measure_models(machine._QUICK, left_out, quiet) == ({}, "a GPU")
    assert left_out == dict.fromkeys(("GPU", "resnet50"), "torch says: CUDA error: all devices are busy")


def test_large_and_small_files_together_take_what_they_took() -> None:
    large = make_store_speed()
    small = replace(large, file_s=Figure.exactly(0.005), stream_bytes_per_s=Figure.exactly(2.5e7))
    both = trial_files._combine(large, small, 100_000)
    assert both.stream_bytes_per_s.value == 5e7
    assert both.file_s.value + 100_000 / 5e7 == pytest.approx(0.005 + 100_000 / 2.5e7)


def test_a_file_is_opened_in_some_time_whatever_its_bytes_took() -> None:
    large = make_store_speed()
    small = replace(large, file_s=Figure.exactly(0.001), stream_bytes_per_s=Figure.exactly(1e9))
    assert trial_files._combine(large, small, 100_000).file_s.value == 0.0005


def test_stores_are_called_as_they_are_typed_or_by_a_name(tmp_path: Path) -> None:
    (tmp_path / "a=b").mkdir()
    words = ["/data", f"{tmp_path}/a=b", "nfs=/home/x", "./x=y/z"]
    assert choose_stores(words) == {
        "/data": Path("/data"),
        f"{tmp_path}/a=b": tmp_path / "a=b",
        "nfs": Path("/home/x"),
        "./x=y/z": Path("x=y/z"),
    }
    with pytest.raises(UsageError, match="two stores are called 'nfs'"):
        choose_stores(["nfs=/a", "nfs=/b"])


def test_without_a_store_scratch_is_measured_or_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "find_scratch", lambda: tmp_path)
    assert choose_stores([]) == {"scratch": tmp_path}
    monkeypatch.setattr(machine, "find_scratch", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    assert choose_stores([]) == {"temporary folder": tmp_path / "t"}


def test_a_store_that_cannot_be_measured_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotFound, match=r"no folder at .*none"):
        check_store(tmp_path / "none")
    with pytest.raises(StorageError, match="file is not a folder"):
        check_store(tmp_path / "file")
    with pytest.raises(StorageError, match="cannot write to /proc: "):
        check_store(Path("/proc"))


def test_less_is_written_where_there_is_less_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_files, "measure_room", lambda _: Room(6 << 20, None))
    assert choose_sizes(tmp_path, TINY).file_bytes == 2 << 20
    monkeypatch.setattr(trial_files, "measure_room", lambda _: Room(1000, None))
    with pytest.raises(StorageError, match=r"too little room at .*: 1.00 KB free"):
        choose_sizes(tmp_path, TINY)
    monkeypatch.setattr(trial_files, "measure_room", lambda _: Room(1 << 40, 5))
    with pytest.raises(StorageError, match="5 more files may be made"):
        choose_sizes(tmp_path, TINY)


def test_a_quota_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_files, "describe_storage", lambda _: SimpleNamespace(is_memory=False))
    monkeypatch.setattr(
        trial_files, "try_to_reserve", lambda *_: OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    )
    with pytest.raises(StorageError, match="disk quota exceeded"):
        choose_sizes(tmp_path, TINY)


def test_a_folder_of_ours_goes_away_however_its_use_ends(folder: Path) -> None:
    def interrupt() -> None:
        with own_folder(folder, NAME, quiet) as inside:
            (inside / "file").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert list(folder.iterdir()) == []


def test_what_a_killed_run_left_is_removed_by_the_next_one(folder: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from feedrate.files.own_folder import own_folder
with own_folder(Path({str(folder)!r}), {NAME!r}, print) as inside:
    (inside / "large").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    (left,) = folder.iterdir()
    assert left.name.startswith(NAME)
    said: list[str] = []
    with own_folder(folder, NAME, said.append) as inside:
        assert list(folder.iterdir()) == [inside]
    assert said == [f"removing {left}, which a run that was killed left behind"]


def test_what_is_in_use_or_not_marked_or_of_another_node_stays(folder: Path) -> None:
    prefix = f"{NAME}{find_node()}-"
    (folder / f"{prefix}unmarked").mkdir()
    (folder / f"{prefix}link").symlink_to(folder)
    with own_folder(folder, NAME, quiet) as used:
        other = folder / f"{NAME}other-x"
        other.mkdir()
        (other / "in-use.lock").write_text("")
        with own_folder(folder, NAME, pytest.fail):
            assert used.exists()
    assert {path.name for path in folder.iterdir()} == {f"{prefix}unmarked", f"{prefix}link", other.name}


def test_a_run_that_has_just_begun_or_ended_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"{NAME}{find_node()}-"

    def lock(descriptor: int, *, wait: bool) -> bool:
        monkeypatch.undo()
        remove_leftovers(folder, prefix, pytest.fail)
        return lock_fd(descriptor, wait=wait)

    monkeypatch.setattr("feedrate.files.own_folder.lock_fd", lock)
    with own_folder(folder, NAME, quiet):
        remove_leftovers(folder, prefix, pytest.fail)
    gone = SimpleNamespace(glob=lambda _: [folder / "gone"])
    remove_leftovers(gone, prefix, pytest.fail)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_leaves_nothing_behind(folder: Path, number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "feedrate", "bench", "machine", "--quick", "--store", str(folder)],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        assert "written, read" in process.stderr.readline()  # its folder is there
        until = time.monotonic() + 60
        while not list(folder.glob("*/large")):
            assert time.monotonic() < until
        process.send_signal(number)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (130 if number == signal.SIGINT else 128 + signal.SIGTERM)
    assert list(folder.iterdir()) == []


class FakeBench:
    def __init__(self) -> None:
        self.result = make_machine_result()

    def __call__(self, *_: Any, **__: Any) -> tuple[MachineResult, Any]:
        return self.result, replace(self.result.numbers, node=find_node())


def test_the_command_shows_writes_and_keeps_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "bench_machine", FakeBench())
    path = tmp_path / "a.json"
    assert main(["bench", "machine", "--json", str(path)]) == 0
    assert "open a file, cold" in capsys.readouterr().out
    assert json.loads(path.read_text())["command"] == "bench machine"
    assert load_numbers() is not None


@pytest.mark.parametrize("option", ["--compare", "--markdown"])
def test_an_option_that_is_gone_is_a_sentence(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "machine", option, "a.json"])
    said = capsys.readouterr().err
    assert said.startswith(f"error: 'feedrate bench machine {option}' is gone")
    assert "hint: " in said


def test_a_state_folder_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("a file")
    monkeypatch.setattr(machine, "bench_machine", FakeBench())
    assert main(["bench", "machine"]) == 0
    assert "not kept for other commands: cannot make" in capsys.readouterr().err


@pytest.mark.usefixtures("measured")
def test_numbers_of_a_busy_machine_are_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = "other processes took 1.5 of 2 cores meanwhile"
    monkeypatch.setattr(machine.Neighbours, "describe", lambda _: busy)
    assert main(["bench", "machine", "--quick", "--store", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert f"not kept for other commands, as {busy}: type it again when they have ended" in err
    assert busy in " ".join(out.split())
    assert load_numbers() is None
