# SPDX-License-Identifier: Apache-2.0
"""The scripts in examples/ run as they stand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from support.images import save_image
from support.paths import ROOT

EXAMPLES = ROOT / "examples"


def test_the_training_example_trains_on_a_pack_and_returns_an_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from feedrate import PackOptions, pack

    for number in range(40):
        save_image(tmp_path / "images" / ("cat", "dog")[number % 2] / f"{number}.jpg", number)
    pack(tmp_path / "images", tmp_path / "pack", PackOptions())
    assert 0 <= load_example("train").main(str(tmp_path / "pack"), epochs=1) <= 1
    assert capsys.readouterr().out.startswith("loss ")


def load_example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


@pytest.mark.parametrize("feed", ["plain", "dictionary", "cached", "loader"])
def test_the_super_resolution_example_trains_with_every_feed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], feed: str
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from feedrate import PackOptions, pack

    for number in range(6):
        save_image(tmp_path / "photos" / f"{number}.jpg", number, width=160, height=120)
    arguments = [str(tmp_path / "photos"), "--feed", feed, "--epochs", "2", "--workers", "0"]
    if feed == "loader":
        pack(tmp_path / "photos", tmp_path / "pack", PackOptions())
        arguments += ["--pack", str(tmp_path / "pack")]
    assert load_example("super_resolution").main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("epoch 1: ")
    assert lines[1].startswith("epoch 2: ")
    if feed == "cached":
        assert lines[2].startswith("6 of 6 samples kept (100%)")
        assert lines[3] == "6 hits, 6 misses"
