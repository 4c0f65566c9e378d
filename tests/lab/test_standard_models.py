# SPDX-License-Identifier: Apache-2.0
"""The standard models have the parameters of the published ones; rates are measured on a stand-in."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from feedrate.errors import GpuError, UsageError
from feedrate.model.gpus import KNOWN_MODELS, check_model

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedrate.lab.device import (  # noqa: E402
    MODELS,
    Choice,
    choose_device,
    make_model,
    measure_model,
)

PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "densenet121": 7_978_856,
    "vit_b_16": 86_567_656,
}


def make_small(name: str, side: int = 64) -> Any:  # noqa: ARG001 - as make_model takes them
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 1000))


def measure(**options: Any) -> Any:
    settings = {"training": True, "batch_size": 4, "seconds": 0.0, "side": 32, "make": make_small}
    return measure_model("resnet18", "cpu", **{**settings, **options})


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_parameters_of_the_published_one(name: str) -> None:
    with torch.device("meta"):
        model = make_model(name)
    assert sum(one.numel() for one in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "vit_b_16"])
def test_a_model_gives_a_score_for_every_class_of_every_image(name: str) -> None:
    model = make_model(name, 7).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_the_transformer_takes_images_of_another_side_when_it_is_made_for_them() -> None:
    with torch.device("meta"):
        assert make_model("vit_b_16", 7, side=64).positions.shape == (1, 17, 768)


def test_the_names_stand_where_other_commands_see_them() -> None:
    assert MODELS == KNOWN_MODELS == tuple(PARAMETERS)


@pytest.mark.parametrize(
    ("typed", "meant"), [("ResNet-50", "resnet50"), ("densenet", "densenet121"), ("vit-b-16", "vit_b_16")]
)
def test_a_model_that_is_spelled_otherwise_is_suggested(typed: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"there is no model '{typed}'") as caught:
        check_model(typed)
    assert (caught.value.hint or "").startswith(f"did you mean '{meant}'?")


def test_a_model_that_is_like_no_other_gets_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        check_model("gpt")
    assert caught.value.hint == "known: resnet18, resnet50, densenet121, vit_b_16"


@pytest.mark.parametrize(
    ("name", "side", "words"), [("vit_b_16", 100, "multiple of 16, got 100"), ("resnet18", 8, "at least 32")]
)
def test_images_that_a_model_cannot_take_are_refused(name: str, side: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_model(name, side=side)


@pytest.mark.parametrize("training", [True, False])
def test_the_rate_has_an_interval_and_says_how_it_was_measured(training: bool) -> None:
    rate = measure(training=training)
    assert 0 < rate.low <= rate.images_per_s <= rate.high
    assert (rate.batch_size, rate.image_side, rate.dtype, rate.training) == (4, 32, "float32", training)


def test_the_first_steps_are_not_counted() -> None:
    assert measure(clock=itertools.count().__next__).images == 2 * 4  # two windows of a step each


def test_training_changes_the_weights_and_inference_does_not() -> None:
    for training in (True, False):
        model = make_small("")
        before = model[2].weight.clone()
        measure(training=training, make=lambda *_, model=model, **__: model)
        assert torch.equal(model[2].weight, before) is not training


class Narrow(torch.nn.Module):
    """Says that memory is short when a batch is larger than some size."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.inner, self.most = make_small(""), most

    def forward(self, x: Any) -> Any:
        if len(x) > self.most:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return self.inner(x)


def test_a_batch_that_does_not_fit_is_halved_and_the_result_says_so() -> None:
    rate = measure(batch_size=16, make=lambda *_, **__: Narrow(5))
    assert rate.batch_size == 4


def test_when_not_even_one_image_fits_that_is_said() -> None:
    with pytest.raises(GpuError, match="one image of 32 x 32 pixels does not fit"):
        measure(training=False, make=lambda *_, **__: Narrow(0))


def test_another_error_of_a_model_is_not_taken_for_too_little_memory() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        measure(training=False, make=lambda *_, **__: torch.nn.Linear(3, 3))


class FakeGpu:
    name = "Fast GPU"


@pytest.fixture
def cpu_build(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("feedrate.lab.device.describe_gpus", lambda: (FakeGpu(),))
    return monkeypatch


@pytest.mark.usefixtures("cpu_build")
def test_a_gpu_beside_a_torch_for_the_cpu_is_said_with_the_line_to_install() -> None:
    choice = choose_device(None)
    assert choice.device.type == "cpu"
    assert choice.unused.startswith("Fast GPU is here, but not used: torch ")
    assert choice.unused.endswith("is a build for the CPU; to use it: pip install --force-reinstall torch")


@pytest.mark.usefixtures("cpu_build")
def test_cuda_asked_of_a_torch_for_the_cpu_is_refused_with_the_line_to_install() -> None:
    with pytest.raises(UsageError, match="--device cuda: Fast GPU is here, but torch") as caught:
        choose_device("cuda")
    assert caught.value.hint == "pip install --force-reinstall torch"


def test_cuda_asked_for_where_there_is_none_is_refused(cpu_build: pytest.MonkeyPatch) -> None:
    cpu_build.setattr("feedrate.lab.device.describe_gpus", lambda: ())
    with pytest.raises(UsageError, match="NVML sees no GPU here"):
        choose_device("cuda:1")
    assert choose_device(None) == Choice(torch.device("cpu"))
