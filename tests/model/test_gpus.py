# SPDX-License-Identifier: Apache-2.0
"""The table of GPUs: every figure has a source and is assumed; names are found as they are written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.errors import UsageError
from feedrate.figures import ASSUMED
from feedrate.model.gpus import (
    GPUS,
    INFERENCE,
    KNOWN_MODELS,
    REFERENCE,
    TRAINING,
    GpuFacts,
    find_gpu,
    find_model_rate,
)
from support import paths

RATED = [gpu for gpu in GPUS if gpu.published]


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_row_says_where_its_figures_come_from(gpu: GpuFacts) -> None:
    assert all(published.source for published in gpu.published)
    assert all(published.why for published in gpu.published if published.gain != 1)
    for figure in (gpu.memory_bytes, gpu.to_device_bytes_per_s):
        assert (figure.origin, bool(figure.note)) == (ASSUMED, True)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("model", KNOWN_MODELS)
@pytest.mark.parametrize("gpu", RATED, ids=lambda gpu: gpu.name)
def test_every_rate_is_assumed_and_names_its_source(gpu: GpuFacts, model: str, training: bool) -> None:
    rate = find_model_rate(gpu.name, model, training=training)
    assert rate is not None
    assert rate.origin == ASSUMED
    assert any(published.source in rate.note for published in gpu.published)
    assert 0 < rate.low < rate.value < rate.high


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_row_is_found_by_its_own_name(gpu: GpuFacts) -> None:
    assert find_gpu(gpu.name) is gpu


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("a100", "A100-40GB"),
        ("A100 80 GB", "A100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("v100-32g", "V100-32GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("2080ti", "RTX 2080 Ti"),
        ("RTX3090", "RTX 3090"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_names_are_found_as_tools_and_people_write_them(name: str, found: str) -> None:
    gpu = find_gpu(name)
    assert gpu is not None
    assert gpu.name == found


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA H100 NVL",
        "NVIDIA A10G",
        "A100-64GB",
        "Voodoo 2",
        "80GB",
        "",
    ],
)
def test_a_part_of_a_gpu_or_another_one_is_not_taken_for_it(name: str) -> None:
    assert find_gpu(name) is None
    assert find_model_rate(name, "resnet50") is None


def test_a_gpu_of_which_nobody_published_a_rate_has_none() -> None:
    assert find_gpu("L4") is not None
    assert find_model_rate("L4", "resnet50") is None


def test_a_published_figure_is_given_as_it_is() -> None:
    rate = find_model_rate("A100-80GB", "resnet50")
    assert rate is not None
    assert rate.value == 2470
    assert "scaled" not in rate.note


def test_what_is_scaled_says_so_and_has_a_wider_interval() -> None:
    published, scaled = find_model_rate("A100-80GB", "resnet50"), find_model_rate("A100-80GB", "densenet121")
    assert published is not None
    assert scaled is not None
    ratio = REFERENCE["training"]["densenet121"] / REFERENCE["training"]["resnet50"]
    assert scaled.value == pytest.approx(2470 * ratio)
    assert "scaled from resnet50 training" in scaled.note
    assert scaled.high / scaled.low > published.high / published.low


def test_ratios_of_the_h200_foretell_what_was_published_of_others_within_the_interval() -> None:
    for gpu in ("RTX 3090", "RTX 4090", "RTX 5090"):
        rates = {m: find_model_rate(gpu, m, training=False) for m in KNOWN_MODELS}
        base = rates["resnet50"]
        assert base is not None
        for model, rate in rates.items():
            assert rate is not None
            foretold = base.value * REFERENCE["inference"][model] / REFERENCE["inference"]["resnet50"]
            assert foretold / 1.5 < rate.value < foretold * 1.5


def test_an_unknown_model_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="resnet51") as caught:
        find_model_rate("A100", "resnet51")
    assert "resnet50" in str(caught.value.hint)


@given(st.text(max_size=40))
def test_any_name_is_known_or_not_and_never_an_error(name: str) -> None:
    gpu = find_gpu(name)
    assert gpu is None or gpu in GPUS


def test_the_rates_of_the_h200_are_those_that_were_measured() -> None:
    document = json.loads((paths.ROOT / "benchmarks" / "results" / "model-rates.json").read_text())
    for row in document["results"]:
        mode = TRAINING if row["training"] else INFERENCE
        assert REFERENCE[mode][row["model"]] == pytest.approx(row["images_per_s"], abs=0.6)
