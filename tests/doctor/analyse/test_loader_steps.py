# SPDX-License-Identifier: Apache-2.0
"""Single transforms as the hook describes them, and what becomes of each in a feedrate.Loader."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedrate
from feedrate.doctor.analyse.data_folders import LoaderFacts
from feedrate.doctor.analyse.loader_call import recognise_call
from feedrate.doctor.analyse.metrics import LoaderCall
from support.examples import examples
from support.packs import write_images

V1, V2 = "torchvision.transforms.transforms", "torchvision.transforms.v2"
ALBUMENTATIONS = "albumentations.augmentations"
BILINEAR = {"enum": "BILINEAR", "value": "bilinear"}
FOLDER = {"class": "torchvision.datasets.folder.ImageFolder", "classes": 3, "are_sorted": True}
COLLATE = {"function": "torch.utils.data._utils.collate.default_collate", "uses": []}
RANDOM = {"class": "torch.utils.data.sampler.RandomSampler", "replacement": False}
BATCHES = "torch.utils.data.sampler.BatchSampler"


def of(name: str, **held: Any) -> dict[str, Any]:
    return {"class": name, "held": held}


RESIZE = of(f"{V1}.Resize", size=[32, 32], max_size=None, interpolation=BILINEAR, antialias=True)
TO_TENSOR = of(f"{V1}.ToTensor")
NORMALIZE = of(f"{V1}.Normalize", mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])


def recognise(*steps: Any, **more: Any) -> LoaderCall:
    call = find(*steps, **more)
    assert call is not None
    return call


def find(
    *steps: Any,
    shape: tuple[int, ...] = (8, 3, 32, 32),
    dtype: str = "float32",
    between: tuple[float, float] = (0.0, 1.0),
    form: Any = ("tensor", "tensor"),
    loader: Any = (),
    parts: tuple[tuple[str, str], ...] = (),
    calls: Any = (),
    **pipeline: Any,
) -> LoaderCall | None:
    """Return the call for an ImageFolder with these steps."""
    transform = of(f"{V1}.Compose", transforms=list(steps))
    label = {"shape": [shape[0]], "dtype": "int64"}
    batch = {
        "tensors": [{"shape": list(shape), "dtype": dtype}, label],
        "ranges": [list(between), None],
        "form": list(form) if isinstance(form, tuple) else form,
        "samples": shape[0],
    }
    facts = {
        "layers": [{**FOLDER, "held": {"transform": transform, "target_transform": None}}],
        "collate": COLLATE, "sampler": RANDOM, "batch_sampler": BATCHES, "seed": None, "prefetcher": None,
    }  # fmt: skip
    known = {"batch_size": 8, "shuffle": True, **dict(loader)}
    return recognise_call(LoaderFacts(known, batch, {**facts, **pipeline}, calls), parts=parts)


@pytest.mark.parametrize(
    ("step", "operation"),
    [
        (of(f"{V1}.RandomGrayscale", p=0.1), feedrate.Grayscale(p=0.1)),
        (of(f"{V1}.Grayscale", num_output_channels=3), feedrate.Grayscale(p=1.0)),
        (
            of(f"{V1}.ColorJitter", brightness=[0.6, 1.4], contrast=None, saturation=[0.5, 1.2],
               hue=[-0.1, 0.1]),
            feedrate.ColorJitter(brightness=0.4, saturation=(0.5, 1.2), hue=0.1),
        ),
        (
            of(f"{V1}.GaussianBlur", kernel_size=[9, 9], sigma=[0.1, 2.0]),
            feedrate.GaussianBlur(9, sigma=(0.1, 2.0)),
        ),
        (of(f"{V1}.RandomSolarize", threshold=128, p=0.2), feedrate.Solarize(128, p=0.2)),
        (
            of(f"{V1}.RandomApply", transforms=[of(f"{V1}.RandomGrayscale", p=0.5)], p=0.5),
            feedrate.Grayscale(p=0.25),
        ),
        (
            of(f"{V1}.RandomApply", transforms={"class": "torch.nn.modules.container.ModuleList",
                                               "modules": [of(f"{V1}.RandomGrayscale", p=1.0)]}, p=0.5),
            feedrate.Grayscale(p=0.5),
        ),
        (
            of(f"{ALBUMENTATIONS}.pixel.transforms.ColorJitter", brightness=[0.8, 1.2], contrast=[1.0, 1.0],
               saturation=[1.0, 1.0], hue=[0.0, 0.0], p=0.5),
            feedrate.ColorJitter(brightness=0.2, p=0.5),
        ),
    ],
)  # fmt: skip
def test_colours_are_changed_where_batches_arrive(step: Any, operation: Any) -> None:
    call = recognise(RESIZE, step, TO_TENSOR)
    assert call.options["on_device"] == [operation]
    assert call.left_out == ()


def test_a_threshold_of_floats_becomes_one_of_bytes() -> None:
    call = recognise(RESIZE, TO_TENSOR, of(f"{V1}.RandomSolarize", threshold=0.5, p=0.2))
    assert call.options["on_device"] == [feedrate.Solarize(127.5, p=0.2)]


def test_what_is_erased_before_normalising_has_the_value_that_it_has_afterwards() -> None:
    erase = of(f"{V1}.RandomErasing", p=0.5, scale=[0.02, 0.33], ratio=[0.3, 3.3], value=0)
    before = recognise(RESIZE, TO_TENSOR, erase, NORMALIZE).options["on_device"]
    after = recognise(RESIZE, TO_TENSOR, NORMALIZE, erase).options["on_device"]
    assert before == [feedrate.RandomErasing(value=(-2, -2, -2))]
    assert after == [feedrate.RandomErasing()]


@pytest.mark.parametrize(
    ("step", "image"),
    [
        (
            of(
                f"{V1}.RandomCrop",
                size=[32, 32],
                padding=4,
                pad_if_needed=False,
                fill=0,
                padding_mode="reflect",
            ),
            feedrate.RandomCrop(32, padding=4, padding_mode="reflect"),
        ),
        (
            of(
                f"{V2}._geometry.RandomCrop",
                size=[32, 32],
                padding=[4, 4, 4, 4],
                fill=0,
                padding_mode="constant",
            ),
            feedrate.RandomCrop(32, padding=4),
        ),
        (
            of(f"{V2}._geometry.Resize", size=[32], interpolation=3, max_size=None),
            feedrate.Resize(32, "bicubic"),
        ),
        (
            of(f"{ALBUMENTATIONS}.geometric.resize.Resize", height=32, width=32, interpolation=3, p=1.0),
            feedrate.Resize(32, "box"),
        ),
        (
            of(f"{ALBUMENTATIONS}.crops.transforms.RandomCrop", height=32, width=32, p=1.0),
            feedrate.RandomCrop(32),
        ),
    ],
)
def test_crops_of_every_library_are_read(step: Any, image: Any) -> None:
    call = recognise(step, TO_TENSOR)
    assert call.options["image"] == image
    assert call.left_out == ()


def test_a_resize_of_the_shorter_side_takes_the_shape_of_the_batches() -> None:
    short = of(f"{V1}.Resize", size=32, max_size=None, interpolation=BILINEAR)
    assert recognise(short, TO_TENSOR, shape=(8, 3, 32, 43)).options["image"] == feedrate.Resize((32, 43))


def test_bytes_stay_bytes_and_half_precision_stays() -> None:
    assert "dtype" not in recognise(RESIZE, of(f"{V1}.PILToTensor"), dtype="uint8").options
    to_half = of(f"{V2}._misc.ToDtype", dtype="torch.bfloat16", scale=True)
    half = recognise(
        RESIZE, of(f"{V2}._type_conversion.ToImage"), to_half, NORMALIZE, dtype="bfloat16"
    ).options
    assert (half["dtype"], half["normalize"]) == ("bfloat16", ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)))


def test_timms_mixing_is_carried_over_with_what_differs() -> None:
    held = {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "mix_prob": 0.5, "switch_prob": 0.5, "mode": "batch",
            "label_smoothing": 0.1, "num_classes": 3}  # fmt: skip
    collate = {"class": "timm.data.mixup.FastCollateMixup", "held": held, "uses": []}
    call = recognise(RESIZE, TO_TENSOR, collate=collate)
    assert call.options["on_device"] == [
        feedrate.MixUp(0.8, num_classes=3, p=0.5), feedrate.CutMix(1.0, num_classes=3, p=0.5),
    ]  # fmt: skip
    assert call.left_out == (
        "Mixup: mixed for each sample, not for whole batches",
        "Mixup: label_smoothing=0.1 is not carried over",
    )


@pytest.mark.parametrize(
    ("steps", "more", "sentence"),
    [
        ([RESIZE, of(f"{V1}.RandomRotation", degrees=[-5, 5])], {}, "RandomRotation is not carried over"),
        (
            [of(f"{V1}.Resize", size=40, interpolation=BILINEAR, max_size=60), RESIZE],
            {},
            "Resize is not carried over",
        ),
        ([of("__main__.Mine"), RESIZE], {}, "Mine is not carried over: it is the script's own code"),
        ([{"function": "train.augment"}, RESIZE], {}, "train.augment is not carried over"),
        ([RESIZE, NORMALIZE, of(f"{V1}.RandomGrayscale", p=0.1)], {}, "RandomGrayscale after Normalize"),
        (
            [RESIZE, of(f"{V1}.CenterCrop", size=[24, 24])],
            {},
            "CenterCrop is not carried over: images are cut",
        ),
        ([RESIZE], {"shape": (8, 3, 24, 24)}, "resized to the 24x24 pixels of the run's batches, not to"),
        ([RESIZE], {"between": (-2.1, 2.6)}, "went from -2.1 to 2.6: add normalize=(mean, std)"),
        ([RESIZE], {"between": (0.0, 255.0)}, "went from 0 to 255; these go from 0 to 1"),
        ([RESIZE], {"shape": (8, 32, 32, 3)}, "batches were N, H, W, C"),
        ([RESIZE], {"dtype": "float64"}, "images of the run's batches were float64"),
        ([RESIZE], {"batch_sampler": "__main__.Buckets"}, "batch_sampler Buckets is not carried over"),
        ([RESIZE], {"sampler": {"class": "catalyst.Balanced"}}, "sampler Balanced is not carried over"),
        (
            [RESIZE],
            {"collate": {"function": "__main__.own", "uses": []}},
            "collate_fn (own) is not carried over",
        ),
        ([], {}, "how images get their size was not seen"),
        (
            [RESIZE],
            {"parts": [("decode", "cv2.imread"), ("transform", "cv2.resize")]},
            "OpenCV decodes to BGR; these are RGB",
        ),
    ],
)
def test_what_differs_is_one_sentence(steps: list[Any], more: dict[str, Any], sentence: str) -> None:
    call = recognise(*steps, **more)
    assert [text for text in call.left_out if sentence in text] == list(call.left_out)
    assert len(call.left_out) == 1


def test_a_transform_of_a_newer_version_is_left_out_and_no_reason_to_fail() -> None:
    call = recognise(of(f"{V1}.RandomResizedCrop", area=[0.1, 1.0]), RESIZE)
    assert call.left_out == ("RandomResizedCrop is not carried over: feedrate.Loader has no such operation",)


def test_transforms_of_datasets_inside_each_other_are_joined_from_the_inside() -> None:
    layers = [
        {
            "class": "__main__.Finished",
            "held": {"transform": of(f"{V1}.Compose", transforms=[TO_TENSOR, NORMALIZE])},
        },
        {**FOLDER, "held": {"transform": RESIZE}},
    ]
    call = recognise(layers=layers)
    assert (call.options["image"], "normalize" in call.options) == (feedrate.Resize(32), True)
    assert call.left_out == ("Finished around the dataset is not carried over",)


def test_batches_without_labels_are_asked_for_images_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    call = recognise(RESIZE, TO_TENSOR, form="tensor")
    assert call.options["fields"] == ["image"]
    write_images(tmp_path / "PACK", 8)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(call.code, names)
    assert tuple(names["images"].shape) == (8, 3, 32, 32)


@pytest.mark.parametrize("loader", [{"pack": "photos.pack"}, {"iterable": True}])
def test_a_pack_and_a_stream_have_no_call(loader: dict[str, Any]) -> None:
    assert find(RESIZE, loader=loader) is None


ODD = (
    None,
    True,
    -1,
    0,
    1e308,
    float("nan"),
    "",
    "x",
    [],
    [None],
    [0],
    ["a", 2],
    {},
    {"more": True},
    {"class": 1},
)
CALLS = [
    {"call": "PIL.Image.open", "size": None, "mode": None, "args": [], "named": {}},
    {"call": "PIL.convert", "size": [64, 48], "mode": "RGB", "args": ["RGB"], "named": {}},
    {
        "call": "PIL.resize",
        "size": [64, 48],
        "mode": "RGB",
        "args": [[40, 40], 2],
        "named": {"box": [0, 0, 9, 9]},
    },
    {"call": "PIL.crop", "size": [40, 40], "mode": "RGB", "args": [[4, 4, 36, 36]], "named": {}},
    {"call": "PIL.fit", "size": [32, 32], "mode": "RGB", "args": [[32, 32]], "named": {}},
    {
        "call": "PIL.transpose",
        "size": [32, 32],
        "mode": "RGB",
        "args": [{"enum": "A", "value": 0}],
        "named": {},
    },
]
MIXING = of(
    "timm.data.mixup.FastCollateMixup", mixup_alpha=0.8, cutmix_alpha=1.0, mix_prob=0.5, num_classes=3
)
EVERYTHING: dict[str, Any] = {
    "loader": {"batch_size": 8, "shuffle": True, "drop_last": True},
    "batch": {
        "tensors": [{"shape": [8, 3, 32, 32], "dtype": "float32"}, {"shape": [8], "dtype": "int64"}],
        "ranges": [[0.0, 1.0], None], "form": ["tensor", "tensor"], "samples": 8,
    },
    "pipeline": {
        "layers": [
            {"class": "torch.utils.data.dataset.Subset", "samples": 20},
            {**FOLDER, "held": {"transform": of(f"{V1}.Compose", transforms=[
                of(f"{V1}.RandomApply", transforms=[of(f"{V1}.ColorJitter", brightness=[0.6, 1.4])], p=0.3),
                of(f"{V1}.RandomErasing", p=0.5, scale=[0.02, 0.33], ratio=[0.3, 3.3], value=[0.0]),
                of(f"{V1}.RandomCrop", size=[32, 32], padding=[4], fill=0, padding_mode="constant"),
                of("timm.data.transforms.RandomResizedCropAndInterpolation", size=[32, 32], scale=[0.1, 1.0],
                   ratio=[0.75, 1.33], interpolation=[BILINEAR, BILINEAR]),
                of(f"{ALBUMENTATIONS}.pixel.transforms.Normalize", mean=[0.5] * 3, std=[0.2] * 3, p=1.0),
            ])}},
        ],
        "collate": {**MIXING, "uses": []}, "sampler": RANDOM, "batch_sampler": BATCHES, "seed": 5,
        "prefetcher": {"mean": [0.5] * 3, "std": [0.2] * 3, "re_prob": 0.1, "re_mode": "rand", "re_count": 2},
    },
    "calls": [{"samples": [CALLS] * 5}],
}  # fmt: skip


OF_STRANGERS = ("held", "prefetcher", "args", "named")  # what is inside of these


def spoil(value: Any, rng: random.Random, is_inside: bool = False) -> Any:
    """Return facts of which some that come from a script's own objects are something odd."""
    if isinstance(value, dict):
        inner = {name: is_inside or name in OF_STRANGERS for name in value}
        spoilt = {name: spoil(one, rng, inner[name]) for name, one in value.items()}
        kept = ("class", "function", "held")
        return {
            name: rng.choice(ODD) if is_inside and name not in kept and rng.random() < 0.1 else one
            for name, one in spoilt.items()
        }
    if isinstance(value, list):
        spoilt_list = [spoil(one, rng, is_inside) for one in value]
        return [rng.choice(ODD) if is_inside and rng.random() < 0.1 else one for one in spoilt_list]
    return value


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(300), deadline=None)
def test_odd_values_in_a_scripts_objects_are_no_reason_to_fail(seed: int) -> None:
    facts = spoil(EVERYTHING, random.Random(seed))
    call = recognise_call(
        LoaderFacts(**{"fact" if kind == "loader" else kind: one for kind, one in facts.items()})
    )
    assert call is not None
    compile(call.code, "code", "exec")
    assert max(map(len, call.code.splitlines())) <= 78
