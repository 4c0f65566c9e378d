# SPDX-License-Identifier: Apache-2.0
"""Erasing and mixing: where boxes lie, how shares are spread, and that labels say what the pixels show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate import ColorJitter, CutMix, Loader, MixUp, RandomErasing, View
from feedrate.draws import draw_uniforms
from feedrate.errors import UsageError
from feedrate.format.fields import Field, Kind
from feedrate.format.pack import Pack
from feedrate.loader.device.mixing import draw_beta
from support.contracts import spoil
from support.finishing import load, load_images, write_plain
from support.packs import encode_image, make_image, write_multi_label, write_pack

torch = pytest.importorskip("torch")
VALUES = [20, 120, 220]  # of the three classes


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Images of one value each, by which their classes can be told."""
    return write_plain(tmp_path / "plain", VALUES * 20)


@given(
    seed=st.integers(0, 2**32),
    size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    scale=st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
    ratio=st.tuples(st.floats(0.05, 20), st.floats(0.05, 20)).map(sorted),
)
def test_an_erased_box_lies_inside_and_is_smaller_than_the_image(
    seed: int, size: tuple[int, int], scale: list[float], ratio: list[float]
) -> None:
    erasing = RandomErasing(p=1, scale=scale, ratio=ratio)
    boxes = erasing.place(draw_uniforms(seed, np.arange(50), erasing.uniforms), size)
    height, width = size
    tall, wide = boxes[:, 3] - boxes[:, 1], boxes[:, 2] - boxes[:, 0]
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2] <= width).all()
    assert (boxes[:, 3] <= height).all()
    assert ((tall < height) & (wide < width)).all()
    # Rounding moves each side by half a pixel at the most.
    least = np.maximum(tall - 0.5, 0) * np.maximum(wide - 0.5, 0)
    assert (least <= scale[1] * height * width + 1e-6).all()


def test_erased_shares_and_places_are_spread_as_torchvision_has_them() -> None:
    erasing = RandomErasing(p=0.25, scale=(0.02, 0.2), ratio=(0.5, 2))
    boxes = erasing.place(draw_uniforms(7, np.arange(40_000), erasing.uniforms), (200, 200))
    tall, wide = boxes[:, 3] - boxes[:, 1], boxes[:, 2] - boxes[:, 0]
    is_drawn = wide > 0
    assert abs(is_drawn.mean() - 0.25) < 0.01
    assert abs((tall * wide)[is_drawn].mean() / 200**2 - 0.11) < 0.002
    ratios = np.log(tall[is_drawn] / wide[is_drawn])
    assert abs(ratios.mean()) < 0.02
    assert abs(ratios.std() - np.log(4) / 12**0.5) < 0.02
    middles = (boxes[is_drawn, 0] + boxes[is_drawn, 2]) / 2
    assert abs(middles.mean() - 100) < 2


def test_the_box_has_the_value_and_the_rest_is_as_it_was(plain: Path) -> None:
    got = load_images(plain, on_device=[RandomErasing(p=0.5, value=(1, 2, 3))])
    changed = 0
    for number, image in enumerate(got):
        inside = (image == (1, 2, 3)).all(2)
        assert (image[~inside] == VALUES[number % 3]).all()
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        assert inside.sum() == len(rows) * len(columns)
        changed += bool(inside.any())
    assert 15 < changed < 45


def test_values_are_in_units_of_the_normalised_batch(plain: Path) -> None:
    got = load_images(plain, normalize="imagenet", on_device=[RandomErasing(p=1, value=-9)])
    assert ((got == -9).any((1, 2, 3))).mean() > 0.9
    assert got[got != -9].min() > -3


def test_noise_is_normal_and_a_samples_own(plain: Path) -> None:
    erasing = RandomErasing(p=1, scale=(0.9, 0.9), ratio=(1, 1), value="random")
    got = load_images(plain, dtype="float32", on_device=[erasing])
    noise = [image[~np.isclose(image, VALUES[i % 3] / 255)] for i, image in enumerate(got)]
    together = np.concatenate(noise)
    assert abs(together.mean()) < 0.02
    assert abs(together.std() - 1) < 0.02
    assert len({one[:4].tobytes() for one in noise}) == len(noise)
    other = load_images(plain, dtype="float32", on_device=[erasing], batch_size=17, threads=1)
    assert np.array_equal(got, other)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.8, 1.0, 4.0])
def test_shares_are_spread_as_beta_says(alpha: float) -> None:
    shares = draw_beta(draw_uniforms(3, np.arange(100_000), 50), alpha)
    assert abs(shares.mean() - 0.5) < 0.005
    assert abs(shares.var() - 1 / (4 * (2 * alpha + 1))) < 0.002
    if alpha == 1:
        assert abs(np.quantile(shares, [0.1, 0.25, 0.9]) - [0.1, 0.25, 0.9]).max() < 0.005


@given(seed=st.integers(0, 2**64 - 1), alpha=st.floats(1e-6, 1e4))
def test_a_share_is_a_number_from_0_to_1_whatever_alpha(seed: int, alpha: float) -> None:
    shares = draw_beta(draw_uniforms(seed, np.arange(100), 50), alpha)
    assert ((shares >= 0) & (shares <= 1)).all()


@pytest.mark.parametrize("dtype", [None, "float32", "float16"])
@pytest.mark.parametrize("operations", [[MixUp()], [CutMix()], [MixUp(0.2), CutMix(p=0.5)]])
def test_labels_are_mixed_as_the_pixels_are(plain: Path, dtype: Any, operations: list[Any]) -> None:
    unit = 1 if dtype is None else 255
    for image, label in load(plain, dtype=dtype, on_device=operations).values():
        assert label.dtype == np.float32
        assert label.shape == (3,)
        assert abs(label.sum() - 1) < 1e-6
        assert abs(image.mean() * unit - label @ np.array(VALUES)) < 0.6


def test_the_partner_is_the_sample_before_in_the_batch(plain: Path) -> None:
    options: dict[str, Any] = {"shuffle": False, "dtype": "float32", "fields": ("image", "label", "number")}
    for _, labels, numbers in Loader(plain, 10, on_device=[MixUp()], **options):
        own = numbers % 3
        partners = own.roll(1)
        for label, mine, other in zip(labels, own, partners, strict=True):
            assert set(torch.nonzero(label)[:, 0].tolist()) <= {int(mine), int(other)}


def test_a_sample_alone_is_mixed_with_itself(plain: Path) -> None:
    for number, (image, label) in load(plain, batch_size=1, on_device=[MixUp(), CutMix()]).items():
        assert (image == VALUES[number % 3]).all()
        assert label.argmax() == number % 3
        assert label.max() == 1


def test_of_mixup_and_cutmix_each_sample_gets_one(plain: Path) -> None:
    kinds = []
    for image, label in load(plain, dtype="float32", on_device=[MixUp(), CutMix()]).values():
        if label.max() < 0.99:
            is_even = np.ptp(image) < 1e-6
            kinds.append("mixup" if is_even else "cutmix")
    assert 10 < kinds.count("mixup") < 40
    assert 10 < kinds.count("cutmix") < 40


def test_without_a_draw_labels_are_plain_and_soft_all_the_same(plain: Path) -> None:
    for number, (image, label) in load(plain, on_device=[MixUp(p=0, num_classes=5)]).items():
        assert label.tolist() == [float(c == number % 3) for c in range(5)]
        assert (image == VALUES[number % 3]).all()


def test_several_labels_of_a_sample_are_mixed_as_they_are(tmp_path: Path) -> None:
    pack = write_multi_label(tmp_path / "pack")
    with Loader(pack, 8, shuffle=False, on_device=[MixUp(p=0)]) as loader:
        _, labels = next(iter(loader))
    assert labels.tolist() == [[i & 1, i >> 1 & 1, i >> 2 & 1] for i in range(8)]
    with Loader(pack, 8, shuffle=False, on_device=[MixUp()]) as loader:
        _, mixed = next(iter(loader))
    # Of samples 3 (classes 0 and 1) and 2 (class 1), both have class 1 and neither has class 2.
    assert mixed[3, 1] == 1
    assert 0 < mixed[3, 0] < 1
    assert mixed[3, 2] == 0


def test_several_labels_are_mixed_beside_a_bad_one(tmp_path: Path) -> None:
    pack = write_multi_label(tmp_path / "pack", count=20)
    opened = Pack(pack)
    row = opened.rows(np.array([3]))[0][0]
    opened.close()
    spoil(pack, "shard-00000.tar", int(row["labels.offset"]) + 1)
    with Loader(pack, 20, shuffle=False, on_bad_sample="skip", on_device=[MixUp(p=0)]) as loader:
        _, labels = next(iter(loader))
    assert labels.tolist() == [[i & 1, i >> 1 & 1, i >> 2 & 1] for i in range(20) if i != 3]


def test_boxes_in_a_view_are_those_of_the_image_scaled(plain: Path) -> None:
    operations = [RandomErasing(p=1, value=255), CutMix()]
    for operation in operations:
        came = load(plain, on_device=[operation], fields=("image", View("image", 32), "label"))
        for small, large, _ in came.values():
            assert np.array_equal(small.repeat(2, 0).repeat(2, 1), large)


def test_a_function_may_change_the_size_before_boxes_are_erased(plain: Path) -> None:
    def shrink(images: Any) -> Any:
        return images[:, :, ::2, ::2]

    got = load_images(plain, on_device=[shrink, RandomErasing(p=1, value=255, scale=(0.3, 0.3))])
    assert got.shape[1:] == (8, 8, 3)
    assert abs((got == 255).mean() - 0.3) < 0.03


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RandomErasing(p=None), "RandomErasing: p must be a probability"),
        (lambda: RandomErasing(scale=(0, 2)), "scale must be two numbers with 0 <= low <= high <= 1"),
        (lambda: RandomErasing(ratio=(0, 2)), "ratio must be two numbers with 0 < low <= high"),
        (lambda: RandomErasing(ratio=3), "ratio must be two numbers .* got 3"),
        (lambda: RandomErasing(value="noise"), "value must be a number, one number for each channel, or"),
        (lambda: RandomErasing(value=()), "value must be a number, one number for each channel, or"),
        (lambda: MixUp(alpha=0), "MixUp: alpha must be a number above 0, got 0"),
        (lambda: CutMix(alpha=float("inf")), "CutMix: alpha must be a number above 0"),
        (lambda: CutMix(num_classes=0), "CutMix: num_classes must be a whole number from 1 on"),
        (lambda: MixUp(p=1.5), "MixUp: p must be a probability"),
    ],
)
def test_arguments_without_sense_are_refused_in_words(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_device": RandomErasing(value="random")}, "normal noise, which uint8 images cannot hold"),
        ({"on_device": RandomErasing(value=0.5)}, "a whole number from 0 to 255 in uint8 images, got 0.5"),
        ({"on_device": RandomErasing(value=(1, 2))}, "one number for each of 3 channels"),
        ({"on_device": MixUp(), "fields": ("image",)}, "MixUp mixes labels, too, and fields has none"),
        ({"on_device": [MixUp(num_classes=4), CutMix(num_classes=3)]}, r"num_classes differ: \[3, 4\]"),
    ],
)
def test_operations_that_do_not_fit_the_batch_are_refused(
    plain: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        Loader(plain, **options)


def write_labelled(folder: Path, label: Field | None, values: list[Any]) -> Path:
    image = Field("image", Kind.IMAGE, shape=(8, 8))
    samples = [{"image": encode_image(make_image(i, 8, 8)), "label": v} for i, v in enumerate(values)]
    return write_pack(folder, (image, label) if label else (image,), samples)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (None, "MixUp mixes labels, and this pack has no field 'label' or 'labels'"),
        (Field("label", Kind.NUMBER, dtype="int64"), "does not say how many classes field 'label' has"),
        (Field("label", Kind.NUMBER, dtype="float64"), "field 'label' holds float64 numbers"),
    ],
)
def test_labels_that_are_no_classes_are_not_mixed(tmp_path: Path, label: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Loader(write_labelled(tmp_path / "pack", label, [0, 1]), on_device=MixUp())


def test_a_class_beyond_num_classes_is_named(tmp_path: Path) -> None:
    pack = write_labelled(tmp_path / "pack", Field("label", Kind.NUMBER, dtype="int64"), [0, 7])
    with pytest.raises(UsageError, match="holds the class 7, and soft labels have classes 0 to 4") as caught:
        list(Loader(pack, on_device=MixUp(num_classes=5)))
    assert caught.value.hint == "num_classes=8"


def test_other_operations_in_the_list_change_no_draw(plain: Path) -> None:
    alone = load(plain, dtype="float32", on_device=[MixUp()])
    beside = load(plain, dtype="float32", on_device=[ColorJitter(0.5), RandomErasing(), MixUp()])
    assert all(np.array_equal(alone[n][1], beside[n][1]) for n in alone)
