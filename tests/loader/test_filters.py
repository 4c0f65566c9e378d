# SPDX-License-Identifier: Apache-2.0
"""The filters of a resize: Pillow's pixels by every way to an image, and a draw of their own."""

from __future__ import annotations

import enum
import io
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import feedrate
from feedrate import (
    Cache,
    CenterCrop,
    Dataset,
    Loader,
    PackOptions,
    RandomCrop,
    RandomResizedCrop,
    Recode,
    Resize,
    View,
    pack,
)
from feedrate.errors import UsageError
from feedrate.format.fields import Field, Kind
from feedrate.kernel import pillow
from support.examples import examples
from support.images import save_image
from support.packs import IMAGE, LABEL, encode_image, make_image, write_images, write_pack

WORDS = ("bilinear", "bicubic", "lanczos", "box", "hamming", "nearest")
# The order of the two passes shows in the last bit.
TOLERANCE = 0 if int(PIL.__version__.split(".")[0]) >= 13 else 1


class InterpolationMode(enum.Enum):
    """As torchvision has it."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BICUBIC = "bicubic"


def noise(seed: int, width: int, height: int, gray: bool = False) -> np.ndarray:
    """Return an image with edges: filters overshoot at them, on both sides."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels[rng.random((height, width)) < 0.5] = rng.choice([0, 255], 3)
    return pixels[..., 0] if gray else pixels


def by_pillow(file: bytes, box: Any, size: tuple[int, int], word: str, *, mode: str = "RGB") -> np.ndarray:
    with Image.open(io.BytesIO(file)) as image:
        crop = image.convert(mode).crop(box)
    pixels = np.asarray(crop.resize(size[::-1], Image.Resampling[word.upper()]))
    return pixels.reshape(*size, -1)


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= TOLERANCE


side = st.integers(1, 120)


@settings(max_examples=examples(120), deadline=None)
@given(
    word=st.sampled_from(WORDS),
    kind=st.sampled_from(["baseline", "gray", "progressive", "PNG"]),
    mode=st.sampled_from(["RGB", "L"]),
    shape=st.tuples(side, side),
    edges=st.tuples(*[st.floats(0, 1)] * 4),
    size=st.tuples(side, side),
    flip=st.booleans(),
)
def test_pixels_are_those_of_pillow_with_the_same_filter(word, kind, mode, shape, edges, size, flip) -> None:
    width, height = shape
    pixels = noise(width + 121 * height, width, height, gray=kind == "gray")
    options: dict[str, Any] = {} if kind == "PNG" else {"quality": 95, "progressive": kind == "progressive"}
    file = encode_image(pixels, "PNG" if kind == "PNG" else "JPEG", **options)
    left, top = int(edges[0] * (width - 1)), int(edges[1] * (height - 1))
    box = (
        left,
        top,
        left + 1 + int(edges[2] * (width - left - 1)),
        top + 1 + int(edges[3] * (height - top - 1)),
    )
    ours = feedrate.decode(file, crop=box, size=size, mode=mode, flip=flip, interpolation=word)
    assert_close(ours[:, ::-1] if flip else ours, by_pillow(file, box, size, word, mode=mode))


@pytest.mark.parametrize("word", WORDS)
def test_a_large_reduction_is_that_of_pillow(word: str) -> None:
    file = encode_image(noise(0, 1500, 1100), quality=95)
    ours = feedrate.decode(file, size=(4, 5), interpolation=word)
    assert_close(ours, by_pillow(file, (0, 0, 1500, 1100), (4, 5), word))


@pytest.mark.parametrize("word", ["bicubic", "lanczos"])
def test_before_pillow_13_the_horizontal_pass_comes_first_where_that_shows(word: str, monkeypatch) -> None:
    monkeypatch.setattr(pillow, "resizes_as_kernel", lambda: False)
    file = encode_image(noise(5, 90, 300), quality=95)
    with Image.open(io.BytesIO(file)) as image:
        across = image.convert("RGB").resize((80, 300), Image.Resampling[word.upper()])
    expected = np.asarray(across.resize((80, 60), Image.Resampling[word.upper()]))
    np.testing.assert_array_equal(feedrate.decode(file, size=(60, 80), interpolation=word), expected)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    files = []
    for i in range(4):
        pixels = noise(i, 61 + 9 * i, 80 - 7 * i)
        files += [encode_image(pixels, quality=95), encode_image(pixels, progressive=True)]
        files += [encode_image(pixels, "PNG"), encode_image(pixels[..., 0], quality=95)]
    samples = [{"image": file, "label": i % 3} for i, file in enumerate(files)]
    return write_pack(tmp_path_factory.mktemp("mixed") / "pack", (IMAGE, LABEL), samples), files


def load(folder: Path, *, epochs: int = 1, batch_size: int = 16, **options: Any) -> list[Any]:
    """Return the first batch of each epoch."""
    options = {"shuffle": False, "output": "numpy", "threads": 2, "seed": 4, **options}
    with Loader(folder, batch_size, **options) as loader:
        return [next(iter(loader)) for _ in range(epochs)]


OPERATIONS = {
    "crop": lambda word: RandomResizedCrop(24, interpolation=word),
    "centre": lambda word: CenterCrop(24, resize=28, interpolation=word),
    "whole": lambda word: Resize((20, 31), word),
    "plain": lambda word: RandomCrop(24, interpolation=word),
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", ["crop", "centre", "whole"])
def test_a_loader_and_a_dataset_resize_with_the_filter_of_the_operation(mixed, name: str, word: str) -> None:
    folder, files = mixed
    operation = OPERATIONS[name](word)
    images = load(folder, image=operation, flip=True)[0][0]
    dataset = Dataset(folder, image=operation, flip=True, seed=4, output="numpy")
    np.testing.assert_array_equal(images, np.stack([dataset[i][0] for i in range(len(files))]))
    if name == "whole":
        upright = load(folder, image=operation)[0][0]
        for ours, file in zip(upright, files, strict=True):
            with Image.open(io.BytesIO(file)) as image:
                box = (0, 0, *image.size)
            assert_close(ours, by_pillow(file, box, (20, 31), word))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("word", ["bicubic", "nearest", WORDS])
@pytest.mark.parametrize("is_old_pillow", [False, True])
def test_a_cache_changes_no_pixel(mixed, name: str, word: Any, is_old_pillow: bool, monkeypatch) -> None:
    if is_old_pillow:
        monkeypatch.setattr(pillow, "resizes_as_kernel", lambda: False)
    folder, _ = mixed
    views = ("image", View("image", 9), View("image", 9, "other", "lanczos"))
    options: dict[str, Any] = {"image": OPERATIONS[name](word), "flip": True, "fields": views, "epochs": 3}
    with Cache(ram="4MB") as cache:
        cached = load(folder, cache=cache, **options)
    for ours, theirs in zip(cached, load(folder, **options), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("word", WORDS)
def test_raw_fields_are_resized_with_the_filter(tmp_path: Path, word: str) -> None:
    for i in range(4):
        save_image(tmp_path / "s" / "a" / f"{i}.png", i, width=70 + 9 * i, height=90 - 5 * i)
    save_image(tmp_path / "s" / "a" / "4.png", 4, mode="L", width=60, height=50)
    pack(tmp_path / "s", tmp_path / "raw", PackOptions(workers=1, recode=Recode(raw=True)))
    pack(tmp_path / "s", tmp_path / "plain", PackOptions(workers=1))
    options: dict[str, Any] = {"image": RandomResizedCrop(32, interpolation=word), "flip": True}
    raw, plain = (load(tmp_path / name, **options)[0][0] for name in ("raw", "plain"))
    assert_close(raw, plain)


def test_masks_stay_nearest_whatever_the_filter_of_the_image(tmp_path: Path) -> None:
    mask = np.where(noise(1, 60, 50, gray=True) > 128, 200, 7).astype(np.uint8)
    fields = (IMAGE, Field("mask", Kind.MASK))
    sample = {"image": encode_image(make_image(0, 60, 50)), "mask": encode_image(mask, "PNG")}
    folder = write_pack(tmp_path / "pack", fields, [sample, sample])
    operation = RandomResizedCrop(23, interpolation="bicubic")
    wanted = ("mask", View("mask", 9, interpolation="lanczos"))
    for part in load(folder, image=operation, fields=wanted)[0]:
        assert set(np.unique(part)) == {7, 200}


def test_crops_and_flips_of_a_seed_do_not_depend_on_the_filter(mixed) -> None:
    folder, files = mixed
    one, drawn = (
        load(folder, image=RandomResizedCrop(24, interpolation=words), flip=True)[0][0]
        for words in ("bicubic", ("bicubic", "bicubic", "nearest"))
    )
    equal = [bool((a == b).all()) for a, b in zip(one, drawn, strict=True)]
    assert 0 < sum(equal) < len(files)


def test_each_image_gets_one_of_the_filters_and_another_one_in_another_epoch(mixed) -> None:
    folder, files = mixed
    words = ("bilinear", "bicubic", "lanczos")
    of_each = [load(folder, image=Resize(24, word))[0][0] for word in words]
    epochs = load(folder, image=Resize(24, words), epochs=6)
    drawn = []
    for images, _ in epochs:
        found = [[bool((pixels == one[i]).all()) for one in of_each] for i, pixels in enumerate(images)]
        assert all(any(one) for one in found)
        drawn.append(tuple(one.index(True) for one in found))
    assert len(set(drawn)) == 6
    counts = np.bincount(np.concatenate(drawn), minlength=3)
    assert counts.min() > len(files)  # of twice as many


def test_a_draw_does_not_depend_on_batches_and_a_dataset_makes_the_same(mixed) -> None:
    folder, files = mixed
    operation = Resize(24, WORDS)
    whole = load(folder, image=operation)[0][0]
    with Loader(folder, 3, image=operation, seed=4, shuffle=False, output="numpy") as loader:
        np.testing.assert_array_equal(np.concatenate([images for images, _ in loader]), whole)
    dataset = Dataset(folder, image=operation, seed=4, output="numpy")
    np.testing.assert_array_equal(np.stack([dataset[i][0] for i in range(len(files))]), whole)
    unseeded = Dataset(folder, image=operation, output="numpy")
    assert any((unseeded[0][0] != unseeded[0][0]).any() for _ in range(60))


def test_a_view_has_the_filter_of_the_operation_or_its_own(mixed) -> None:
    folder, _ = mixed
    fields = (View("image", 9), View("image", 9, "own", "nearest"), View("image", 9, "drawn", WORDS))
    usual, own, drawn = load(folder, image=Resize(24, "bicubic"), fields=fields)[0]
    np.testing.assert_array_equal(usual, load(folder, image=Resize(9, "bicubic"))[0][0])
    np.testing.assert_array_equal(own, load(folder, image=Resize(9, "nearest"))[0][0])
    np.testing.assert_array_equal(drawn, load(folder, image=Resize(9, WORDS))[0][0])


@pytest.mark.parametrize(
    ("given_as", "word"),
    [
        (Image.Resampling.BICUBIC, "bicubic"),
        (Image.Resampling.NEAREST, "nearest"),
        (InterpolationMode.BICUBIC, "bicubic"),
        (InterpolationMode.NEAREST, "nearest"),
        (InterpolationMode.NEAREST_EXACT, "nearest"),
        (["bicubic"], "bicubic"),
        ([Image.Resampling.BOX, "bicubic"], ("box", "bicubic")),
    ],
)
def test_members_of_the_enums_of_pillow_and_torchvision_are_taken(given_as: Any, word: Any) -> None:
    assert RandomResizedCrop(8, interpolation=given_as) == RandomResizedCrop(8, interpolation=word)
    assert View("image", 8, interpolation=given_as) == View("image", 8, interpolation=word)
    if isinstance(word, str) and not isinstance(given_as, list):
        file = encode_image(noise(1, 20, 20))
        ours = feedrate.decode(file, size=9, interpolation=given_as)
        np.testing.assert_array_equal(ours, feedrate.decode(file, size=9, interpolation=word))


@pytest.mark.parametrize(
    ("wrong", "words", "hint"),
    [
        ("bicubc", "got 'bicubc'", "did you mean 'bicubic'?"),
        ("BILINEAR", "got 'BILINEAR'", "did you mean 'bilinear'?"),
        (3, "got 3", None),
        (None, "got None", None),
        (True, "got True", None),
        (("bicubic", "area"), "got 'area'", None),
        ((), "an empty tuple: there is no filter to draw", None),
    ],
)
def test_a_filter_that_is_none_is_refused_with_those_there_are(wrong: Any, words: str, hint: Any) -> None:
    for make in (RandomResizedCrop, CenterCrop, Resize, RandomCrop):
        with pytest.raises(UsageError, match=f"^{make.__name__}: interpolation .*{words}") as told:
            make(8, interpolation=wrong)
        assert told.value.hint == hint
    if not isinstance(wrong, tuple):
        known = "bilinear, bicubic, lanczos, box, hamming, nearest"
        with pytest.raises(UsageError, match=f"decode: interpolation must be one of {known}; {words}"):
            feedrate.decode(b"", interpolation=wrong)


def test_decode_does_not_draw() -> None:
    with pytest.raises(UsageError, match=r"decode: .*got \('box', 'bicubic'\)"):
        feedrate.decode(b"", interpolation=("box", "bicubic"))


def test_an_operation_says_its_filter_only_where_it_is_another_one() -> None:
    assert repr(CenterCrop(8, 9)) == "CenterCrop(size=8, resize=9)"
    assert repr(Resize(8, Image.Resampling.BOX)) == "Resize(size=8, interpolation='box')"


def test_an_operation_of_the_user_s_own_needs_no_filter(tmp_path: Path) -> None:
    class Whole:
        out_size, uniforms, min_size = (8, 8), 0, (1, 1)

        def place(self, widths: Any, heights: Any, uniforms: Any) -> Any:
            del uniforms
            nothing = np.zeros_like(widths)
            return np.stack([nothing, nothing, widths, heights], axis=1).astype(np.int32)

    folder = write_images(tmp_path / "pack", 4)
    ours = load(folder, image=Whole())[0][0]
    np.testing.assert_array_equal(ours, load(folder, image=Resize(8))[0][0])
