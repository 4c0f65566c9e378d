# SPDX-License-Identifier: Apache-2.0
"""What users write in a call: options by name, and sentences for what makes no sense."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedrate import Dataset, Grayscale, Loader, RandomResizedCrop, UsageError, decode, decode_batch
from feedrate.loader.options import Options
from support.packs import write_images


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Loader("pack", 256, True), "Loader takes options by name: write shuffle=True"),
        (lambda: Loader("pack", 256, False, 7), "Loader takes options by name: write shuffle=False, seed=7"),
        (lambda: Dataset("pack", None, None, ["image"]), r"Dataset takes .*: write fields=\['image'\]"),
        (lambda: decode("a.jpg", None, 224, "L"), "decode takes options by name: write mode='L'"),
        (lambda: decode_batch([], None, 224, [True]), r"decode_batch takes .*: write flips=\[True\]"),
    ],
)
def test_an_option_that_is_given_by_position_is_named_with_what_to_write(
    call: Callable[[], Any], words: str
) -> None:
    with pytest.raises(UsageError, match=f"^{words}$"):
        call()


def test_a_long_value_is_not_shown() -> None:
    with pytest.raises(UsageError, match=r"write shuffle=True, seed=0, fields=\.\.\.$"):
        Loader("pack", 256, True, 0, ["image"] * 40)


def test_an_argument_that_is_missing_or_given_twice_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="'pack'"):
        Loader()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'batch_size'"):
        Loader("pack", 8, batch_size=8)  # type: ignore[misc]


def test_help_shows_the_options_of_a_loader_and_its_page_says_what_each_is_for() -> None:
    names = list(inspect.signature(Loader).parameters)
    assert names == [field.name for field in fields(Options)]
    assert Loader.__doc__ is not None
    told = Loader.__doc__.replace("rank, world_size:", "rank:\n        world_size:")
    assert [name for name in names if f"        {name}: " not in told and f"{name}:\n" not in told] == []


@pytest.mark.parametrize("open_it", [Loader, Dataset])
def test_the_class_of_an_image_operation_is_answered_with_the_call(tmp_path: Path, open_it: Any) -> None:
    packed = write_images(tmp_path / "p", 4)
    with pytest.raises(UsageError, match="got the class RandomResizedCrop") as caught:
        open_it(packed, image=RandomResizedCrop)
    assert "image=RandomResizedCrop(224)" in str(caught.value.hint)


def test_the_class_of_something_else_is_not_called_an_image_operation(tmp_path: Path) -> None:
    packed = write_images(tmp_path / "p", 4)
    with pytest.raises(
        UsageError, match="image must be an image operation, got the class Grayscale"
    ) as caught:
        Loader(packed, 4, image=Grayscale)
    assert "Grayscale" not in str(caught.value.hint)


def test_normalize_takes_tensors_and_arrays(tmp_path: Path) -> None:
    packed, mean, deviation = write_images(tmp_path / "p", 4), [0.5, 0.4, 0.3], [0.2, 0.25, 0.5]
    told = (mean, deviation)
    wanted = next(iter(Loader(packed, 4, shuffle=False, normalize=told)))[0]
    for given in ((torch.tensor(mean), torch.tensor(deviation)), np.array(told), torch.tensor(told)):
        images = next(iter(Loader(packed, 4, shuffle=False, normalize=given)))[0]
        torch.testing.assert_close(images, wanted)
