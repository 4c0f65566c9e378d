# SPDX-License-Identifier: Apache-2.0
"""This node, as a plan sees it: what is stored counts for the device it was measured on, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from feedrate.errors import StorageError
from feedrate.figures import STORED
from feedrate.lab import trial_files
from feedrate.machine.results import Gpu, Machine, MachineNumbers, ModelRates
from feedrate.plan import node
from feedrate.plan.node import describe_node
from support.plans import make_store, near

CPU = "AMD EPYC"
GPU = Gpu(0, "NVIDIA H200", memory_bytes=141 << 30)


def make_numbers(**changes: Any) -> MachineNumbers:
    rate = near(4700, STORED, "2026-11-02")
    facts: dict[str, Any] = {
        "node": "a", "date": "2026-11-02", "stores": {},
        "machine": Machine(CPU, 2, 8, "6", "3.12", {}, None, ()),
        "decode_images_per_s": {}, "core_gain": near(2),
        "to_device_bytes_per_s": near(5e10, STORED), "gpu_decode_images_per_s": near(9000, STORED),
        "models": {"resnet50": ModelRates(rate, rate)}, "device": GPU.name,
    }  # fmt: skip
    return MachineNumbers(**{**facts, **changes})


@pytest.mark.parametrize(
    ("gpus", "device", "rate"),
    [([GPU], GPU.name, 4700), ([], CPU, 4700), ([], GPU.name, None), ([GPU], CPU, 4691)],
)
def test_a_stored_rate_counts_for_the_kind_of_device_it_was_measured_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: list[Gpu], device: str, rate: float | None
) -> None:
    monkeypatch.setattr(node, "_list_gpus", lambda: gpus)
    monkeypatch.setattr(node, "note_age", lambda _: ())
    found = describe_node(str(tmp_path), scratch="", model="resnet50", numbers=make_numbers(device=device))
    assert (found.model_rate.value if found.model_rate else None) == rate
    assert (found.gpu_decode_images_per_s is not None) == bool(gpus)


def test_scratch_that_was_found_and_cannot_be_used_is_a_note_and_one_that_was_named_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_files(folder: Path, _: Any) -> Any:
        raise StorageError(f"cannot make files in {folder}: No space left on device")

    monkeypatch.setattr(node, "measure_files", measure_files)
    monkeypatch.setattr(node, "find_scratch", lambda: tmp_path)
    found = describe_node(str(tmp_path))
    assert (found.scratch, found.scratch_path, found.scratch_free_bytes) == (None, "", None)
    assert "No space left" in found.notes[0]
    with pytest.raises(StorageError, match="No space left"):
        describe_node(str(tmp_path), scratch=str(tmp_path))


def test_nothing_stays_on_scratch_when_measuring_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_store(_: str, files: list[tuple[str, int]], seconds: float) -> Any:
        assert seconds < 5
        assert all(Path(path).is_file() for path, _ in files)
        raise KeyboardInterrupt

    monkeypatch.setattr(trial_files, "measure_store", measure_store)
    with pytest.raises(KeyboardInterrupt):
        describe_node(str(tmp_path), scratch=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_what_is_stored_of_scratch_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "find_store", lambda *_: make_store("/", "ext4"))
    monkeypatch.setattr(node, "note_age", lambda _: ())
    found = describe_node(str(tmp_path), scratch=str(tmp_path), numbers=make_numbers())
    assert found.scratch is not None
    assert found.scratch.path == str(tmp_path)
    assert list(tmp_path.iterdir()) == []
