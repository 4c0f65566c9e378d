# SPDX-License-Identifier: Apache-2.0
"""What users write in a call: options by name, and sentences for what makes no sense."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from feedrate import Dataset, Loader, UsageError, decode, decode_batch
from feedrate.loader.options import Options


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
