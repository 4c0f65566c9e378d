# SPDX-License-Identifier: Apache-2.0
"""`measure_model` and `feedrate speedtest --quick` on a GPU: `make test-gpu`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
    pytest.mark.filterwarnings("default"),  # of forks beside threads: not ours to mend
]

from feedrate.errors import GpuError, UsageError  # noqa: E402
from feedrate.lab.device import MODELS, make_model, measure_model  # noqa: E402


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [True, False])
def test_a_model_runs_in_half_precision_at_a_rate_with_an_interval(name: str, training: bool) -> None:
    rate = measure_model(name, "cuda", training=training, batch_size=32, seconds=0.5)
    assert 0 < rate.low <= rate.images_per_s <= rate.high
    assert rate.dtype in ("bfloat16", "float16")
    assert rate.batch_size == 32
    assert rate.device == torch.cuda.get_device_name(0)


def test_memory_is_given_back_after_a_measurement() -> None:
    measure_model("resnet18", "cuda", training=True, batch_size=16, seconds=0.1)
    before = torch.cuda.memory_allocated()
    measure_model("resnet18", "cuda", training=True, batch_size=16, seconds=0.1)
    assert torch.cuda.memory_allocated() <= before


@pytest.fixture
def short_memory() -> Any:
    """Allow this process 2 GB of the GPU's memory."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(2e9 / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.usefixtures("short_memory")
def test_a_batch_that_does_not_fit_into_memory_is_halved_until_it_does() -> None:
    rate = measure_model("densenet121", "cuda", training=True, batch_size=256, seconds=0.2)
    assert 1 <= rate.batch_size < 256
    assert rate.images_per_s > 0


@pytest.mark.usefixtures("short_memory")
def test_an_image_that_does_not_fit_alone_is_a_sentence() -> None:
    with pytest.raises(GpuError, match="a step with one image of 8000 x 8000 pixels does not fit"):
        measure_model("densenet121", "cuda", training=True, batch_size=2, seconds=0.2, side=8000)


def test_another_gpu_than_there_are_is_refused() -> None:
    from feedrate.lab.device import choose_device

    with pytest.raises(UsageError, match="cuda:77"):
        choose_device("cuda:77")
    assert choose_device(None).device == torch.device("cuda", torch.cuda.current_device())


def test_a_quick_speed_test_takes_some_two_minutes_at_most_and_names_the_limit(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "feedrate", "speedtest", "--quick", "--json", str(tmp_path / "speed.json")],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        check=False,
    )
    took_s = time.monotonic() - began
    print(done.stdout, done.stderr, f"{took_s:.1f} s in all")
    assert done.returncode == 0
    assert took_s < 120
    assert os.listdir(tmp_path / "temporary") == []
    result = json.loads((tmp_path / "speed.json").read_text())
    run, facts = (
        result["diagnosis"]["run"],
        {one["name"]: one["value"] for one in result["diagnosis"]["facts"]},
    )
    assert run["device"] == torch.cuda.get_device_name(0)
    assert result["diagnosis"]["findings"]
    assert "GPU power" in facts
    assert "GPU utilisation" in facts
    assert 0 < result["device_s"] <= result["steps_s"]
    assert result["cpu_s"] > 0


def test_weights_stay_finite_in_half_precision() -> None:
    from feedrate.lab.device import Step, make_batch

    device = torch.device("cuda", 0)
    step = Step(make_model("densenet121"), device, training=True)
    for _ in range(5):
        step(*make_batch(device, 16, 64))
    step.synchronize()
    assert all(torch.isfinite(one).all() for one in step.model.parameters())
