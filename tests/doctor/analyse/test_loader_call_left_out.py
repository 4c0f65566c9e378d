# SPDX-License-Identifier: Apache-2.0
"""What a pasted feedrate.Loader would do otherwise than the script is said, or not written at all."""

from __future__ import annotations

from typing import Any

import pytest
from test_loader_steps import (
    ALBUMENTATIONS,
    BILINEAR,
    FOLDER,
    NORMALIZE,
    RESIZE,
    TO_TENSOR,
    V1,
    V2,
    of,
    recognise,
)

import feedrate

A_COMPOSE = "albumentations.core.composition.Compose"
TO_IMAGE = of(f"{V2}._type_conversion.ToImage")
OPEN = {"call": "PIL.Image.open", "size": None, "mode": None, "args": [], "named": {}}


def pillow(name: str, *args: Any, size: Any = (64, 48), **named: Any) -> dict[str, Any]:
    """Return a call of Pillow's as the hook notes it."""
    drawn = {"drawn": True} if named.pop("drawn", False) else {}
    return {
        "call": f"PIL.{name}", "size": list(size), "mode": "RGB", "args": list(args), "named": named, **drawn
    }  # fmt: skip


def samples(*calls: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"samples": [[OPEN, *calls]] * 6}]


def crops(*, drawn: bool, resizes: bool = False) -> list[dict[str, Any]]:
    """Return the calls of samples that are cut at other places each."""
    made = []
    for at in range(6):
        sample = [OPEN, pillow("crop", [at, at, at + 32, at + 32 - at % 2 * resizes], drawn=drawn)]
        made.append([*sample, pillow("resize", [32, 32], 2, size=(32, 32))] if resizes else sample)
    return [{"samples": made}]


def test_a_container_of_albumentations_that_is_seldom_gone_through_shares_that_with_its_steps() -> None:
    flip = of(f"{ALBUMENTATIONS}.geometric.flip.HorizontalFlip", p=0.5)
    gray = of(f"{ALBUMENTATIONS}.pixel.transforms.ToGray", p=1.0)
    inner = of("albumentations.core.composition.Sequential", transforms=[flip, gray], p=0.5)
    call = recognise(of(A_COMPOSE, transforms=[inner], p=1.0), RESIZE, TO_TENSOR)
    assert call.options["flip"] == 0.25
    assert call.options["on_device"] == [feedrate.Grayscale(p=0.5)]
    remark = "drawn by itself here, together with 1 more in Sequential"
    assert {f"HorizontalFlip: {remark}", f"ToGray: {remark}"} <= set(call.left_out)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (pillow("exif_transpose"), "exif_transpose (feedrate pack --normalise stores images upright) is not"),
        (pillow("rotate", 5), "Image.rotate is not carried over"),
        (OPEN, "a sample made of 2 image files is not carried over"),
    ],
)
def test_what_pillow_does_before_a_composed_transform_is_named(call: Any, sentence: str) -> None:
    left_out = recognise(RESIZE, TO_TENSOR, calls=samples(call)).left_out
    assert [text.startswith(sentence) for text in left_out] == [True]


def test_beside_a_single_transform_other_calls_of_pillow_are_named() -> None:
    layers = [{**FOLDER, "held": {"transform_image": RESIZE}}]
    seen = samples(pillow("rotate", 5), pillow("resize", [32, 32], 2))
    left_out = recognise(layers=layers, calls=seen).left_out
    assert [text.startswith("Image.rotate was seen, which may be the transforms'") for text in left_out] == [
        True
    ]


@pytest.mark.parametrize(
    "transform", [RESIZE, {"class": "torch.nn.modules.container.Sequential", "modules": [RESIZE]}]
)
def test_what_pillow_does_inside_of_a_transform_is_not_said_to_be_before_it(transform: Any) -> None:
    layers = [{**FOLDER, "held": {"transform": transform}}]
    seen = samples(pillow("resize", [32, 32], 2, size=(64, 64)))
    assert recognise(layers=layers, calls=seen).left_out == ()


@pytest.mark.parametrize(("steps", "flip"), [([], 1.0), ([of(f"{V1}.RandomHorizontalFlip", p=0.5)], 0.5)])
def test_a_flip_beside_single_transforms_is_the_scripts_unless_one_of_them_flips(
    steps: list[Any], flip: float
) -> None:
    transform = {"class": "torch.nn.modules.container.Sequential", "modules": [RESIZE, *steps]}
    layers = [{**FOLDER, "held": {"transform": transform}}]
    assert recognise(layers=layers, calls=samples(pillow("mirror"))).options["flip"] == flip


@pytest.mark.parametrize("resizes", [False, True])
def test_boxes_of_the_data_are_no_random_crop(resizes: bool) -> None:
    layers = [FOLDER]
    call = recognise(layers=layers, calls=crops(drawn=False, resizes=resizes))
    assert call.options["image"] == feedrate.Resize(32)
    assert call.left_out[0].startswith("Image.crop at places of the script's own is not carried over")


@pytest.mark.parametrize("resizes", [False, True])
def test_places_that_were_drawn_are_a_random_crop_and_that_is_said(resizes: bool) -> None:
    call = recognise(layers=[FOLDER], calls=crops(drawn=True, resizes=resizes))
    expected = feedrate.RandomResizedCrop if resizes else feedrate.RandomCrop
    assert type(call.options["image"]) is expected
    assert call.left_out[0].startswith(f"Image.crop: drawn by {expected.__name__}'s rule")


def test_values_that_are_normalised_in_units_of_bytes_are_not_carried_over() -> None:
    unscaled = of(f"{V2}._misc.ToDtype", dtype="torch.float32", scale=False)
    by_bytes = of(f"{V2}._misc.Normalize", mean=[0.0] * 3, std=[255.0] * 3)
    call = recognise(RESIZE, TO_IMAGE, unscaled, by_bytes)
    assert "normalize" not in call.options
    assert any("what makes values of 0 to 1 before it was not seen" in text for text in call.left_out)


def test_values_outside_of_what_normalising_gives_are_said() -> None:
    call = recognise(RESIZE, TO_TENSOR, NORMALIZE, between=(-500.0, 518.0))
    assert call.left_out == (
        "values of the run's images went from -500 to 518; with this normalize= they go from -2 to 2",
    )
    assert recognise(RESIZE, TO_TENSOR, NORMALIZE, between=(-2.0, 2.0)).left_out == ()


def test_a_second_normalize_is_said_and_the_first_is_kept() -> None:
    second = of(f"{V1}.Normalize", mean=[0.1] * 3, std=[0.9] * 3)
    call = recognise(RESIZE, TO_TENSOR, NORMALIZE, second)
    assert call.options["normalize"] == ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    assert [text.endswith("values are normalised once") for text in call.left_out] == [True]


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (
            of(f"{ALBUMENTATIONS}.geometric.resize.SmallestMaxSize", max_size=[256, 320], interpolation=1),
            "SmallestMaxSize to one of 2 sizes is not carried over",
        ),
        (
            of(f"{ALBUMENTATIONS}.crops.transforms.RandomCrop", height=32, width=32, pad_if_needed=True,
               border_mode=4, fill=0.0),
            "RandomCrop with a border of its own is not carried over",
        ),
        (
            of(f"{ALBUMENTATIONS}.crops.transforms.RandomCrop", height=32, width=32, pad_if_needed=True,
               border_mode=0, fill=0.0),
            "RandomCrop: images smaller than the crop lie anywhere in their black border",
        ),
    ],
)  # fmt: skip
def test_arguments_of_albumentations_that_a_loader_has_not_are_said(step: Any, sentence: str) -> None:
    assert recognise(step, TO_TENSOR).left_out[0].startswith(sentence)


@pytest.mark.parametrize("more", [{"bleed": 0.1}, {"centering": [0.0, 0.5]}])
@pytest.mark.parametrize("by_place", [False, True])
def test_a_fit_that_is_not_of_the_whole_middle_is_not_carried_over(more: Any, by_place: bool) -> None:
    args = [2, more.get("bleed", 0.0), more.get("centering", [0.5, 0.5])]
    fit = pillow("fit", [32, 32], *args) if by_place else pillow("fit", [32, 32], **more)
    left_out = recognise(layers=[FOLDER], calls=samples(fit)).left_out
    assert left_out[0].startswith("ImageOps.fit is not carried over")


def test_timms_bounds_of_cutmix_are_said() -> None:
    held = {"mixup_alpha": 0.0, "cutmix_alpha": 1.0, "cutmix_minmax": [0.2, 0.8], "num_classes": 3}
    collate = {"class": "timm.data.mixup.FastCollateMixup", "held": held, "uses": []}
    call = recognise(RESIZE, TO_TENSOR, collate=collate)
    assert call.left_out == ("Mixup: cutmix_minmax=[0.2, 0.8] is not carried over",)


def test_a_type_of_timms_prefetcher_that_a_loader_has_not_is_said() -> None:
    given = {"mean": [0.5] * 3, "std": [0.25] * 3, "img_dtype": "torch.float64"}
    call = recognise(RESIZE, of("timm.data.transforms.ToNumpy"), dtype="uint8", prefetcher=given)
    assert "dtype" not in call.options
    assert call.left_out[0].startswith("PrefetchLoader's img_dtype=float64 is not carried over")


@pytest.mark.parametrize("is_first", [False, True])
def test_gray_images_are_normalised_by_one_number(is_first: bool) -> None:
    by_one = of(f"{V1}.Normalize", mean=[0.1307], std=[0.3081])
    gray = of(f"{V1}.Grayscale", num_output_channels=1)
    steps = [gray, RESIZE, TO_TENSOR, by_one] if is_first else [RESIZE, TO_TENSOR, by_one]
    call = recognise(*steps, shape=(8, 1, 32, 32))
    assert (call.options["mode"], call.options["normalize"]) == ("L", ((0.1307,), (0.3081,)))
    assert call.left_out == ()


def test_colours_are_normalised_by_three_where_one_number_was_given() -> None:
    by_one = of(f"{V1}.Normalize", mean=[0.5], std=[0.25])
    assert recognise(RESIZE, TO_TENSOR, by_one).options["normalize"] == ((0.5,) * 3, (0.25,) * 3)


def test_a_resize_before_a_crop_is_written_with_the_size_of_the_batches() -> None:
    larger = of(f"{V1}.Resize", size=[40, 40], max_size=None, interpolation=BILINEAR)
    call = recognise(larger, of(f"{V1}.RandomCrop", size=[32, 32]), TO_TENSOR)
    assert call.options["image"] == feedrate.Resize(32)
    assert call.left_out == (
        "RandomCrop is not carried over: images are cut and resized once",
        "images are resized to the 32x32 pixels of the run's batches, not to 40x40",
    )
