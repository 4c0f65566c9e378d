# SPDX-License-Identifier: Apache-2.0
"""What transforms and Pillow's calls are recognised as, without the code that is written from it."""

from __future__ import annotations

from typing import Any

from feedrate.filters import FILTERS
from feedrate.recognise.operations import LEFT_OUT, PILLOW_FILTERS, Operation, read_operations
from feedrate.recognise.pipeline import read_pillow


def of(name: str, **held: Any) -> dict[str, Any]:
    return {"class": name, "held": held}


def test_filters_have_the_numbers_of_pillow() -> None:
    assert dict(FILTERS) == {word: number for number, word in enumerate(PILLOW_FILTERS)}


def test_a_composition_is_a_list_of_operations() -> None:
    steps = [
        of("torchvision.transforms.transforms.Resize", size=256, max_size=None, interpolation=3),
        of("torchvision.transforms.transforms.CenterCrop", size=[224, 224]),
        of("__main__.Mine"),
        {"function": "torchvision.transforms.functional.to_tensor"},
    ]
    assert read_operations(of("torchvision.transforms.transforms.Compose", transforms=steps)) == [
        Operation("resize-short", "Resize", {"size": 256, "interpolation": "bicubic"}),
        Operation("center-crop", "CenterCrop", {"size": 224}),
        Operation(LEFT_OUT, "Mine", is_own=True),
        Operation("float", "to_tensor"),
    ]


def test_a_class_of_an_unknown_version_or_with_another_meaning_is_left_out() -> None:
    steps = [
        of("torchvision.transforms.v2._geometry.RandomResizedCrop", area=[0.1, 1.0]),
        of(
            "albumentations.augmentations.geometric.resize.SmallestMaxSize",
            max_size=[256, 320],
            interpolation=1,
        ),
        of(
            "albumentations.augmentations.pixel.transforms.Normalize",
            mean=0.5,
            std=0.5,
            normalization="image",
        ),
    ]
    assert [(one.kind, one.name) for step in steps for one in read_operations(step)] == [
        (LEFT_OUT, "RandomResizedCrop"),
        (LEFT_OUT, "SmallestMaxSize to one of 2 sizes"),
        (LEFT_OUT, "Normalize"),
    ]


def test_calls_of_pillow_are_read_from_several_samples() -> None:
    sample = [
        {"call": "PIL.Image.open"},
        {"call": "PIL.convert", "size": [64, 48], "args": ["L"]},
        {"call": "PIL.resize", "size": [64, 48], "args": [[32, 32], 1]},
    ]
    assert read_pillow([{"samples": [sample] * 3}]) == []  # too few to say anything
    gray, resize = read_pillow([{"samples": [sample] * 4}])
    assert gray.kind == "gray"
    assert resize == Operation("resize", "Image.resize", {"size": 32, "interpolation": "lanczos"})
