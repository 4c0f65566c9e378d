# SPDX-License-Identifier: Apache-2.0
"""The scripts in examples/ run as they stand."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from images import save_image

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_training_example_trains_on_a_pack_and_returns_an_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from feedrate.pack import PackOptions, pack

    for number in range(40):
        save_image(tmp_path / "images" / ("cat", "dog")[number % 2] / f"{number}.jpg", number)
    pack(tmp_path / "images", tmp_path / "pack", PackOptions())
    spec = importlib.util.spec_from_file_location("train", EXAMPLES / "train.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert 0 <= example.main(str(tmp_path / "pack"), epochs=1) <= 1
    assert capsys.readouterr().out.startswith("loss ")
