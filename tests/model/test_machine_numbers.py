# SPDX-License-Identifier: Apache-2.0
"""What was measured on a node, kept in the user's state folder."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from feedrate import documents
from feedrate.errors import StorageError
from feedrate.figures import ASSUMED, STORED, Figure
from feedrate.machine.describe import describe_machine
from feedrate.machine.disk import describe_storage
from feedrate.machine.results import MachineNumbers, ModelRates, StoreSpeed
from feedrate.model.numbers import age_days, find_store, load_numbers, save_numbers

SECOND = Figure(1.0, 0.9, 1.2)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    return tmp_path / "state" / "feedrate" / "machines"


def make_store(path: Path) -> StoreSpeed:
    return StoreSpeed(
        path=str(path), kind=describe_storage(path).kind, file_s=SECOND, 
        read_s=replace(SECOND, origin=ASSUMED), stream_bytes_per_s=SECOND, total_bytes_per_s=SECOND,
        files_per_s=SECOND, streams=16, keeps_pages=True, cold_share=0.5,
    )  # fmt: skip


def make_numbers(path: Path, node: str = "node7", day: str = "2026-11-01") -> MachineNumbers:
    return MachineNumbers(
        node=node,
        date=day,
        machine=describe_machine(["bench", "machine"]),
        stores={describe_storage(path).mount_point: make_store(path)},
        decode_images_per_s={"pillow": SECOND},
        core_gain=SECOND,
        to_device_bytes_per_s=None,
        gpu_decode_images_per_s=None,
        models={"resnet50": ModelRates(replace(SECOND, note="batches of 64"), None)},
        device="a CPU",
    )


def test_what_was_saved_comes_back_with_its_date(tmp_path: Path) -> None:
    numbers = make_numbers(tmp_path)
    save_numbers(numbers)
    loaded = load_numbers()
    assert loaded is not None
    assert loaded.core_gain == replace(SECOND, origin=STORED, note="2026-11-01")
    assert loaded.models["resnet50"].forward.note == "2026-11-01"
    assert loaded.machine == numbers.machine


def test_a_store_is_found_by_the_mount_that_a_path_is_on(tmp_path: Path) -> None:
    save_numbers(make_numbers(tmp_path))
    loaded = load_numbers()
    assert loaded is not None
    store = find_store(loaded, tmp_path / "some" / "dataset")
    assert store is not None
    assert store.file_s.origin == STORED
    assert store.read_s.origin == ASSUMED
    assert find_store(loaded, "/proc/self") is None


def test_a_mount_that_holds_another_file_system_now_was_not_measured(tmp_path: Path) -> None:
    numbers = make_numbers(tmp_path)
    stores = {point: replace(store, kind="nfs4") for point, store in numbers.stores.items()}
    assert find_store(replace(numbers, stores=stores), tmp_path) is None


def test_nodes_have_files_of_their_own_which_only_the_user_can_read(tmp_path: Path, state: Path) -> None:
    paths = [save_numbers(make_numbers(tmp_path, node)) for node in ("node7", "../../other")]
    assert [path.parent for path in paths] == [state, state]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert state.stat().st_mode & 0o777 == 0o700
    other = load_numbers("../../other")
    assert other is not None
    assert other.node == "../../other"


def test_a_node_that_was_not_measured_has_no_numbers(caplog: pytest.LogCaptureFixture) -> None:
    assert load_numbers() is None
    assert caplog.text == ""


def spoil(change: dict[str, Any]) -> Any:
    def apply(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    return apply


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.write_text("{"), "it is damaged"),
        (lambda path: path.write_text("[]"), "it is damaged"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "it is damaged"),
        (lambda path: path.write_text("[" * 200_000), "it is damaged"),
        (spoil({"version": 2}), "another version of feedrate"),
        (spoil({"date": "yesterday"}), "it is damaged"),
        (spoil({"core_gain": asdict(Figure(2.0, 3.0, 4.0))}), "it is damaged"),
        (spoil({"core_gain": 2}), "it is damaged"),
        (spoil({"core_gain": {"value": 1, "low": 1, "high": 10**400}}), "it is damaged"),
        (spoil({"stores": None}), "it is damaged"),
        (spoil({"device": 5}), "it is damaged"),
        (lambda path: path.chmod(0o666), "can be written to by other users"),
        (lambda path: path.parent.chmod(0o777), "can be written to by other users"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/passwd")), "it cannot be read"),
        (lambda path: (path.unlink(), path.mkdir()), "it cannot be read"),
    ],
)
def test_a_file_that_cannot_be_believed_is_not_used_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Any, why: str
) -> None:
    path = save_numbers(make_numbers(tmp_path))
    spoil(path)
    with caplog.at_level(logging.WARNING):
        assert load_numbers() is None
    assert why in caplog.text
    assert "feedrate bench machine" in caplog.text


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save_numbers(make_numbers(tmp_path))
    os.chown(path, 12345, -1)
    assert load_numbers() is None
    assert "it belongs to 12345" in caplog.text


def test_a_state_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path, state: Path) -> None:
    state.parent.parent.write_text("a file")
    with pytest.raises(StorageError, match=r"cannot make .*machines: "):
        save_numbers(make_numbers(tmp_path))


def test_fields_that_a_newer_version_added_are_passed_over() -> None:
    document = {**asdict(SECOND), "new": 1}
    assert documents.load(Figure, document) == SECOND


def test_the_age_is_told_in_days(tmp_path: Path) -> None:
    before = date.today() - timedelta(days=31)
    assert age_days(make_numbers(tmp_path, day=before.isoformat())) == 31
    assert age_days(make_numbers(tmp_path, day="2999-01-01")) == 0
