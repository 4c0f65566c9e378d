# SPDX-License-Identifier: Apache-2.0
"""`feedrate bench machine` on a GPU: `make test-gpu`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from feedrate.bench import machine
from feedrate.bench.machine import bench_machine
from feedrate.lab.photographs import make_photograph
from feedrate.lab.trial_files import Sizes
from feedrate.machine.results import MachineNumbers

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
    pytest.mark.filterwarnings("default"),  # of torch: not ours to mend
]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> MachineNumbers:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "_QUICK", replace(machine._QUICK, photographs=16, seconds=0.2))
        patch.setattr(machine, "QUICK", Sizes(8 << 20, 40, 20_000, 0.3, 0.2))
        folder = tmp_path_factory.mktemp("store")
        result, numbers = bench_machine({"disk": folder}, is_quick=True, say=lambda _: None)
    assert result.left_out == {}
    return numbers


def test_copies_to_the_device_and_decoding_there_are_measured(numbers: MachineNumbers) -> None:
    assert numbers.to_device_bytes_per_s is not None
    assert numbers.to_device_bytes_per_s.value > 1e9
    assert numbers.gpu_decode_images_per_s is not None
    assert numbers.gpu_decode_images_per_s.value > 100
    assert numbers.device == torch.cuda.get_device_name()


def test_a_standard_model_is_measured_on_the_gpu(numbers: MachineNumbers) -> None:
    rates = numbers.models["resnet50"]
    assert rates.training is not None
    assert rates.forward.value > rates.training.value > 10


def test_every_photograph_is_decoded_without_a_fault(tmp_path: Path) -> None:
    jpegs = [make_photograph(number).jpeg for number in range(16)]
    with machine._open_photographs(jpegs, tmp_path) as samples:
        geometry = samples.draw(224, seed=0)
    decoding = machine._GpuDecoding(jpegs, geometry, torch.device("cuda", 0))
    decoding.run()
    assert decoding.images == 256
    assert decoding.statuses.cpu().tolist() == [0] * 256
