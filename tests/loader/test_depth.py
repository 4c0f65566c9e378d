# SPDX-License-Identifier: Apache-2.0
"""Gray images of more than 8 bits: `depth=` says what a pixel is, and nothing is clipped unasked."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import feedrate
from feedrate import Cache, CenterCrop, Dataset, Loader, RandomCrop, RandomResizedCrop, Resize, View
from feedrate.errors import UsageError
from feedrate.format.fields import Field, Kind
from support.packs import IMAGE, LABEL, encode_image, make_image, write_pack

THREE_CHOICES = r'depth="uint16".*depth=\(low, high\).*depth="clip"'


def make_deep(seed: int, width: int = 20, height: int = 16, most: int = 65535) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, most + 1, (height, width), dtype=np.uint16)


def encode_big_endian(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    size = values.shape[::-1]
    Image.frombytes("I;16B", size, values.astype(">u2").tobytes()).save(file, "TIFF")
    return file.getvalue()


def encode_pgm(values: np.ndarray) -> bytes:
    height, width = values.shape
    return b"P5\n%d %d\n65535\n" % (width, height) + values.astype(">u2").tobytes()


ENCODERS = {
    "png": lambda values: encode_image(values, "PNG"),
    "tiff": lambda values: encode_image(values, "TIFF"),
    "big-endian": encode_big_endian,
    "mode I": lambda values: encode_image(values.astype(np.int32), "TIFF"),
    "pgm": encode_pgm,
}


def scale(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Scale a range to 8 bits by numpy's own arithmetic."""
    scaled = (values.astype(np.float64) - low) * (255 / (high - low))
    return np.rint(np.clip(scaled, 0, 255)).astype(np.uint8)


def in_8_bits(values: np.ndarray) -> bytes:
    return encode_image(values, "PNG")


def write_deep(folder: Path, count: int = 6, encode: Any = ENCODERS["png"], **options: Any) -> Path:
    samples = [{"image": encode(make_deep(n)), "label": n % 3} for n in range(count)]
    field = Field("image", Kind.IMAGE, shape=(16, 20))
    return write_pack(folder, (field, LABEL), samples, **options)


def write_mixed(folder: Path) -> Path:
    """Write a deep image, a gray one of 8 bits, a PNG with colours and a JPEG, all of one size."""
    gray = make_image(1, 20, 16)[..., 0]
    images = [
        ENCODERS["png"](make_deep(0)), encode_image(gray, "PNG"), encode_image(make_image(2, 20, 16), "PNG"),
        encode_image(make_image(3, 20, 16)),
    ]  # fmt: skip
    samples = [{"image": image, "label": 0} for image in images]
    return write_pack(folder, (Field("image", Kind.IMAGE, shape=(16, 20)), LABEL), samples)


def load(pack: Path, **options: Any) -> np.ndarray:
    """Return all images, in the stored order, as N,H,W,C."""
    with Loader(pack, 4, shuffle=False, output="numpy", **options) as loader:
        return np.concatenate([batch[0].copy() for batch in loader])


@pytest.fixture(scope="module")
def deep_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_deep(tmp_path_factory.mktemp("packs") / "deep")


@pytest.fixture(scope="module")
def mixed_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixed(tmp_path_factory.mktemp("packs") / "mixed")


@pytest.mark.parametrize("kind", ENCODERS)
def test_decode_without_a_depth_names_the_file_and_the_three_choices(tmp_path: Path, kind: str):
    path = tmp_path / "chest.img"
    path.write_bytes(ENCODERS[kind](make_deep(1)))
    with pytest.raises(UsageError, match=rf"chest\.img.*more than 8 bits.*{THREE_CHOICES}"):
        feedrate.decode(path)


@pytest.mark.parametrize("policy", ["raise", "skip", print])
def test_a_loader_without_a_depth_names_the_sample_whatever_the_policy(deep_pack: Path, policy: Any):
    with pytest.raises(UsageError, match=rf"sample 'sample-0000\d'.*more than 8 bits.*{THREE_CHOICES}"):
        load(deep_pack, on_bad_sample=policy)


def test_a_dataset_without_a_depth_names_the_sample(deep_pack: Path):
    with pytest.raises(UsageError, match=rf"sample 'sample-00002'.*more than 8 bits.*{THREE_CHOICES}"):
        Dataset(deep_pack)[2]


def test_workers_of_a_dataloader_name_the_sample_too(deep_pack: Path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    batches = torch.utils.data.DataLoader(Dataset(deep_pack, output="torch"), 2, num_workers=1)
    with pytest.raises(
        UsageError, match=rf"sample 'sample-0000\d'.*{THREE_CHOICES.replace('.*', '(?s:.*)')}"
    ):
        list(batches)


@pytest.mark.parametrize("status", ["raise", "status"])
def test_decode_batch_without_a_depth_is_an_error_whatever_on_error_says(status: Any):
    with pytest.raises(UsageError, match=rf"image 1 .*more than 8 bits.*{THREE_CHOICES}"):
        feedrate.decode_batch(
            [in_8_bits(make_image(0, 9, 9)), ENCODERS["png"](make_deep(0))], size=8, device="cpu",
            on_error=status,
        )  # fmt: skip


@pytest.mark.parametrize("mode", ["RGB", "LA", "RGBA"])
def test_colours_and_transparency_need_no_depth(mode: str):
    data = encode_image(np.asarray(Image.fromarray(make_image(0, 9, 9)).convert(mode)), "PNG")
    assert feedrate.decode(data).shape == (9, 9, 3)


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_clip_is_pillows_convert(kind: str, mode: str):
    data = ENCODERS[kind](make_deep(2, most=500))
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("L"))
    pixels = feedrate.decode(data, mode=mode, depth="clip")
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, np.broadcast_to(expected[..., None], pixels.shape))


@given(
    seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(sorted(ENCODERS)), mode=st.sampled_from(["L", "RGB"])
)
def test_uint16_is_the_whole_image_as_pillow_opens_it(seed: int, kind: str, mode: str):
    rng = np.random.default_rng(seed)
    data = ENCODERS[kind](make_deep(seed, *rng.integers(1, 30, 2).tolist()))
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image)
    pixels = feedrate.decode(data, mode=mode, depth="uint16")
    assert pixels.dtype == np.uint16
    np.testing.assert_array_equal(pixels, np.broadcast_to(expected[..., None], pixels.shape))


@given(
    seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(sorted(ENCODERS)),
    low=st.floats(-1e5, 1e5), span=st.floats(1e-3, 1e6),
)  # fmt: skip
def test_a_range_is_scaled_as_numpy_does_it(seed: int, kind: str, low: float, span: float):
    values = make_deep(seed)
    pixels = feedrate.decode(ENCODERS[kind](values), mode="L", depth=(low, low + span))
    np.testing.assert_array_equal(pixels[..., 0], scale(values, low, low + span))


def test_floats_take_a_range_or_clip_and_not_uint16():
    values = np.linspace(-2, 3, 320, dtype=np.float32).reshape(16, 20)
    data = encode_image(values, "TIFF")
    pixels = feedrate.decode(data, mode="L", depth=(-1, 2))[..., 0]
    np.testing.assert_array_equal(pixels, scale(values, -1, 2))
    assert feedrate.decode(data, mode="L", depth="clip").max() == 3
    with pytest.raises(UsageError, match=r'floating-point.*depth=\(low, high\).*depth="clip"'):
        feedrate.decode(data, depth="uint16")


def test_values_that_are_no_numbers_become_black():
    values = np.array([[np.nan, 1.0], [-np.inf, np.inf]], np.float32)
    pixels = feedrate.decode(encode_image(values, "TIFF"), mode="L", depth=(0, 2))
    assert pixels[..., 0].tolist() == [[0, 128], [0, 255]]


def test_values_beyond_uint16_are_not_wrapped_around():
    data = encode_image(np.array([[-1024, 3071]], np.int32), "TIFF")
    with pytest.raises(UsageError, match=r"from -1024 to 3071.*depth=\(low, high\)"):
        feedrate.decode(data, depth="uint16")


@pytest.mark.parametrize("interpolation", ["bilinear", "lanczos", "nearest"])
def test_uint16_is_resized_in_its_own_values(interpolation: Any):
    values = make_deep(5, 40, 32, most=4095)
    data, box = ENCODERS["png"](values), (3, 2, 35, 30)
    pixels = feedrate.decode(
        data, crop=box, size=(9, 11), mode="L", depth="uint16", interpolation=interpolation
    )
    image = Image.fromarray(values.astype(np.float32)).crop(box)
    resized = np.asarray(image.resize((11, 9), Image.Resampling[interpolation.upper()]))
    expected = np.rint(np.clip(resized, 0, 65535)).astype(np.uint16)
    np.testing.assert_array_equal(pixels[..., 0], expected)
    assert 0 < expected.max() <= 4095 * 1.5
    assert len(np.unique(expected)) > 50


def test_a_range_is_scaled_before_the_resize():
    values = make_deep(6, 40, 32)
    window = in_8_bits(scale(values, 1000, 30000))
    np.testing.assert_array_equal(
        feedrate.decode(ENCODERS["png"](values), size=9, depth=(1000, 30000), flip=True),
        feedrate.decode(window, size=9, flip=True),
    )


def test_uint16_lets_white_of_8_bits_be_white(mixed_pack: Path):
    wide, plain = load(mixed_pack, depth="uint16"), load(mixed_pack, depth="clip")
    assert wide.dtype == np.uint16
    np.testing.assert_array_equal(wide[0], np.broadcast_to(make_deep(0)[..., None], (16, 20, 3)))
    np.testing.assert_array_equal(wide[1:], plain[1:].astype(np.uint16) * 257)
    white = in_8_bits(np.full((3, 3), 255, np.uint8))
    assert (feedrate.decode(white, depth="uint16") == 65535).all()


def test_a_range_leaves_images_of_8_bits_as_they_are(mixed_pack: Path):
    ranged, plain = load(mixed_pack, depth=(0, 4095)), load(mixed_pack, depth="clip")
    np.testing.assert_array_equal(ranged[1:], plain[1:])
    np.testing.assert_array_equal(ranged[0, ..., 0], scale(make_deep(0), 0, 4095))


@pytest.mark.parametrize("depth", ["clip", "uint16", (500, 40000)])
@pytest.mark.parametrize("image", [None, Resize(7), RandomResizedCrop(9), CenterCrop(8, resize=10)])
def test_loader_and_dataset_give_the_same(mixed_pack: Path, depth: Any, image: Any):
    if image is None:
        expected = load(mixed_pack, depth=depth)
    else:
        expected = load(mixed_pack, depth=depth, image=image, flip=True, seed=3)
    options = {} if image is None else {"image": image, "flip": True}
    dataset = Dataset(mixed_pack, seed=3, output="numpy", depth=depth, **options)
    for number, pixels in enumerate(expected):
        np.testing.assert_array_equal(dataset[number][0], pixels)


def test_the_number_of_threads_changes_no_value(deep_pack: Path):
    options: dict[str, Any] = {"depth": "uint16", "image": RandomResizedCrop(9), "flip": True}
    np.testing.assert_array_equal(
        load(deep_pack, threads=1, **options), load(deep_pack, threads=3, **options)
    )


def test_padding_and_views_have_16_bits_too(deep_pack: Path):
    options: dict[str, Any] = {"shuffle": False, "output": "numpy", "depth": "uint16", "mode": "L"}
    crop = RandomCrop((20, 24), padding=4, fill=255)
    with Loader(deep_pack, 6, image=crop, fields=("image", View("image", size=8)), **options) as loader:
        ((images, views),) = loader
    assert images.dtype == views.dtype == np.uint16
    assert images.shape == (6, 20, 24, 1)
    assert (images == 65535).any()
    assert 256 < np.median(views) < 65535


def test_masks_keep_their_8_bits(tmp_path: Path):
    mask = np.arange(320, dtype=np.uint8).reshape(16, 20)
    fields = (IMAGE, Field("mask", Kind.MASK))
    sample = {"image": ENCODERS["png"](make_deep(0)), "mask": encode_image(mask, "PNG")}
    pack = write_pack(tmp_path / "p", fields, [sample] * 2)
    options: dict[str, Any] = {"image": Resize((16, 20)), "fields": ("image", "mask"), "output": "numpy"}
    with Loader(pack, 2, depth="uint16", **options) as loader:
        ((images, masks),) = loader
    assert (images.dtype, masks.dtype) == (np.uint16, np.uint8)
    np.testing.assert_array_equal(masks[0], mask)


def test_torch_gets_uint16_and_floats_from_0_to_1(deep_pack: Path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    values = load(deep_pack, depth="uint16", mode="L")
    options: dict[str, Any] = {"shuffle": False, "depth": "uint16", "mode": "L"}
    expected = torch.from_numpy(values.astype(np.float32)).permute(0, 3, 1, 2) / 65535
    with Loader(deep_pack, 6, **options) as loader:
        ((images, _),) = loader
    assert images.dtype == torch.uint16
    torch.testing.assert_close(images.to(torch.float32) / 65535, expected)
    with Loader(deep_pack, 6, dtype=torch.float32, **options) as loader:
        ((images, _),) = loader
    torch.testing.assert_close(images, expected)
    with Loader(deep_pack, 6, normalize=((0.5,), (0.25,)), **options) as loader:
        ((images, _),) = loader
    torch.testing.assert_close(images, (expected - 0.5) / 0.25)


def test_operations_on_the_device_work_on_floats(deep_pack: Path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    options: dict[str, Any] = {"shuffle": False, "depth": "uint16", "on_device": [feedrate.Solarize(p=1.0)]}
    with Loader(deep_pack, 6, dtype=torch.float16, **options) as loader:
        ((images, _),) = loader
    assert images.dtype == torch.float16
    assert images.max() <= 128 / 255
    with pytest.raises(UsageError, match=r'on_device=.*depth="uint16".*dtype=torch.float32'):
        Loader(deep_pack, **options)


def test_a_dataset_gives_pillow_images_of_16_bits(deep_pack: Path):
    image, _ = Dataset(deep_pack, depth="uint16", mode="L")[1]
    assert image.mode == "I;16"
    np.testing.assert_array_equal(np.asarray(image), make_deep(1))
    with pytest.raises(UsageError, match=r'output="pil".*mode="L"'):
        Dataset(deep_pack, depth="uint16")


@pytest.mark.parametrize("depth", ["uint8", 16, (1, 1), (2, 1), (0, float("inf")), (1, 2, 3), True])
def test_a_depth_that_makes_no_sense_is_refused_in_words(deep_pack: Path, depth: Any):
    words = r'depth must be "clip", "uint16" or \(low, high\)'
    with pytest.raises(UsageError, match=words):
        Loader(deep_pack, depth=depth)
    with pytest.raises(UsageError, match=words):
        Dataset(deep_pack, depth=depth)
    with pytest.raises(UsageError, match=words):
        feedrate.decode(b"", depth=depth)


def test_decode_batch_takes_a_range_and_refuses_16_bits():
    values = make_deep(3)
    images, crops = [ENCODERS["png"](values)], [(0, 0, 20, 16), (2, 2, 18, 10)]
    options: dict[str, Any] = {"image_index": [0, 0], "size": 8, "device": "cpu"}
    pixels = feedrate.decode_batch(images, crops, depth=(100, 9000), **options)
    expected = feedrate.decode_batch([in_8_bits(scale(values, 100, 9000))], crops, **options)
    np.testing.assert_array_equal(np.asarray(pixels), np.asarray(expected))
    with pytest.raises(UsageError, match=r"decode_batch gives 8 bits.*feedrate.decode"):
        feedrate.decode_batch(images, crops, depth="uint16", **options)


@pytest.mark.parametrize("depth", ["clip", "uint16", (500, 40000)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("image", [None, Resize(7), RandomResizedCrop(9)])
def test_a_cache_gives_what_the_pack_gives(mixed_pack: Path, depth: Any, mode: Any, image: Any):
    options: dict[str, Any] = {"depth": depth, "image": image, "mode": mode, "flip": True}
    expected = load(mixed_pack, **options)
    with Loader(mixed_pack, 4, shuffle=False, output="numpy", cache=Cache(ram="64MB"), **options) as loader:
        first = next(iter(loader))[0].copy()
        loader.set_epoch(0)
        again = next(iter(loader))[0].copy()
        assert sum(tier.hits for tier in loader.stats().cache.tiers) == 4
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(again, expected)


def test_caches_of_two_depths_are_apart(mixed_pack: Path):
    cache = Cache(ram="64MB")
    for depth in ("clip", (0, 60000), "uint16", (0, 4095), "clip"):
        expected = load(mixed_pack, depth=depth)
        np.testing.assert_array_equal(load(mixed_pack, depth=depth, cache=cache), expected)


def test_a_state_tells_of_another_depth(deep_pack: Path):
    with Loader(deep_pack, 2, depth=(0, 4095), output="numpy") as loader:
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
        loader.load_state_dict(state)
    with Loader(deep_pack, 2, depth="clip", output="numpy") as other:
        with pytest.raises(UsageError, match=r"another depth: \[0.0, 4095.0\] there, 'clip' here"):
            other.load_state_dict(state)
        other.load_state_dict({name: value for name, value in state.items() if name != "depth"})
        other.load_state_dict({**state, "depth": None})
