# SPDX-License-Identifier: Apache-2.0
"""`Loader(dtype=, normalize=, on_device=)`: types, order, draws that follow the sample, what is refused."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import feedrate.jax
import feedrate.tensorflow
from feedrate import (
    ColorJitter,
    CutMix,
    GaussianBlur,
    Grayscale,
    Loader,
    MixUp,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    Solarize,
    View,
)
from feedrate.draws import draw_uniforms, make_key
from feedrate.errors import UsageError
from feedrate.loader.batch import Batch, Origin
from feedrate.loader.device import transfer
from feedrate.loader.device.finish import Finish, Label
from feedrate.loader.device.mixing import Noise
from support.finishing import load, load_images, write_pictures
from support.packs import write_everything, write_images, write_numbers

torch = pytest.importorskip("torch")
# Solarize comes first: of whole levels it is exact, later a rounding may put a pixel on its other side.
COLOURS = [Solarize(p=0.3), ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), Grayscale(0.3), GaussianBlur(5, p=0.5)]
ALL = [*COLOURS, RandomErasing(value="random")]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "pack", count=24)


def test_without_these_options_images_are_bytes(pack: Path) -> None:
    assert load_images(pack).dtype == np.uint8


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtype_gives_values_from_0_to_1(pack: Path, dtype: str) -> None:
    with Loader(pack, 24, shuffle=False, dtype=getattr(torch, dtype)) as loader:
        images, labels = next(iter(loader))
    want = torch.from_numpy(load_images(pack)).permute(0, 3, 1, 2).float() / 255
    assert images.dtype == getattr(torch, dtype)
    assert torch.equal(images, want.to(images.dtype))
    assert labels.dtype == torch.int64
    assert torch.equal(torch.from_numpy(load_images(pack, dtype=dtype)), images.float().permute(0, 2, 3, 1))


@pytest.mark.parametrize(
    ("normalize", "mean", "std"),
    [
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        (([0.1, 0.2, 0.3], np.array([0.5, 1, 2])), (0.1, 0.2, 0.3), (0.5, 1, 2)),
    ],
)
def test_normalised_images_are_float32_unless_dtype_says_otherwise(
    pack: Path, normalize: Any, mean: Any, std: Any
) -> None:
    want = (load_images(pack) / 255 - mean) / std
    got = load_images(pack, normalize=normalize)
    assert got.dtype == np.float32
    assert np.abs(got - want).max() < 1e-5
    halves = load_images(pack, normalize=normalize, dtype=torch.float16)
    assert np.abs(halves - want).max() < 2e-3


def test_one_channel_takes_one_mean_and_one_deviation(pack: Path) -> None:
    got = load_images(pack, mode="L", normalize=(0.5, (0.25,)))
    assert np.abs(got - (load_images(pack, mode="L") / 255 - 0.5) / 0.25).max() < 1e-5


def test_memory_stays_channels_last(pack: Path) -> None:
    options: dict[str, Any] = {"normalize": "imagenet", "on_device": [*ALL, MixUp(), CutMix()]}
    for images, _ in Loader(pack, 8, **options):
        assert images.is_contiguous(memory_format=torch.channels_last)


def test_colours_are_finished_before_they_are_normalised(pack: Path) -> None:
    plain = load_images(pack, dtype="float32", on_device=COLOURS)
    assert plain.min() >= 0
    assert plain.max() <= 1
    got = load_images(pack, normalize=((0.5,) * 3, (0.25,) * 3), on_device=COLOURS)
    assert np.abs(got - (plain - 0.5) / 0.25).max() < 1e-5


def test_bytes_are_the_rounded_floats(pack: Path) -> None:
    floats = load_images(pack, dtype="float32", on_device=COLOURS)
    levels = load_images(pack, on_device=COLOURS)
    assert levels.dtype == np.uint8
    assert np.abs(levels - floats * 255).max() < 0.501


def is_equal(one: dict[int, Any], other: dict[int, Any]) -> bool:
    """Within rounding: sums over images of other batches may be added up in another order."""
    return one.keys() == other.keys() and all(np.allclose(one[n][0], other[n][0], atol=1e-5) for n in one)


def test_draws_do_not_depend_on_batch_size_or_threads(pack: Path) -> None:
    options: dict[str, Any] = {"normalize": "imagenet", "on_device": ALL, "seed": 5}
    want = load(pack, **options)
    assert is_equal(want, load(pack, batch_size=24, threads=1, prefetch=1, shuffle=False, **options))
    assert is_equal(want, load(pack, batch_size=1, device="cpu", **options))
    assert not is_equal(want, load(pack, **{**options, "seed": 6}))
    assert not is_equal(want, load(pack, epochs=2, **options))


def test_draws_do_not_depend_on_ranks(pack: Path) -> None:
    want = load(pack, dtype="float32", on_device=ALL)
    parts = [load(pack, dtype="float32", on_device=ALL, rank=rank, world_size=3) for rank in range(3)]
    assert is_equal(want, {number: values for part in parts for number, values in part.items()})


def test_a_resumed_epoch_has_the_draws_that_were_due(pack: Path) -> None:
    options: dict[str, Any] = {"dtype": "float32", "on_device": ALL, "image": RandomResizedCrop(16)}
    whole = [images for images, _ in Loader(pack, 4, **options)]
    begun = Loader(pack, 4, **options)
    for step, _ in enumerate(begun):
        if step == 2:
            break
    again = Loader(pack, 4, **options)
    again.load_state_dict(begun.state_dict())
    rest = [images for images, _ in again]
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(rest, whole[3:], strict=True))


def test_a_sample_that_comes_twice_is_drawn_anew(pack: Path) -> None:
    with Loader(pack, 8, order=[3] * 8, on_device=[ColorJitter(brightness=0.9)]) as loader:
        images, _ = next(iter(loader))
    assert len({image.numpy().tobytes() for image in images}) == 8


def test_a_bad_sample_shifts_no_draw(tmp_path: Path) -> None:
    good, spoilt = (write_images(tmp_path / name, count=30) for name in ("good", "spoilt"))
    shard = next(spoilt.glob("shard-*00.tar"))
    content = bytearray(shard.read_bytes())
    content[2000] ^= 0xFF
    shard.write_bytes(content)
    options: dict[str, Any] = {"dtype": "float32", "on_device": ALL, "shuffle": False}
    want, got = load(good, **options), load(spoilt, on_bad_sample="skip", **options)
    assert len(got) == 29
    assert all(np.allclose(want[number][0], got[number][0], atol=1e-5) for number in got)


def test_crops_and_order_stay_those_of_the_seed(pack: Path) -> None:
    options: dict[str, Any] = {"image": RandomResizedCrop(16), "flip": True, "seed": 3}
    for (one, first), (other, second) in zip(
        Loader(pack, 5, **options),
        Loader(pack, 5, on_device=[ColorJitter()], dtype="float32", **options),
        strict=True,
    ):
        assert torch.equal(one.float() / 255, other)
        assert torch.equal(first, second)


def test_views_and_further_images_have_the_same_draws_and_masks_none(tmp_path: Path) -> None:
    pack = write_everything(tmp_path / "pack")
    fields = ("image", View("image", 16, name="again"), "mask", "points", "label")
    operations = [ColorJitter(0.5, p=0.5), Grayscale(0.5), RandomErasing(value=7)]
    plain = load(pack, image=Resize(16), fields=fields)
    got = load(pack, image=Resize(16), fields=fields, on_device=operations)
    for number, (image, again, *others) in got.items():
        assert np.array_equal(image, again)
        assert all(np.array_equal(a, b) for a, b in zip(others, plain[number][2:], strict=True))
    assert any(not np.array_equal(got[n][0], plain[n][0]) for n in got)


def test_a_function_gets_bytes_where_images_stay_bytes(pack: Path) -> None:
    seen: list[Any] = []

    def invert(images: Any) -> Any:
        seen.append((images.dtype, images.is_contiguous(memory_format=torch.channels_last)))
        return 255 - images

    half = ColorJitter(brightness=(0.5, 0.5))
    got = load_images(pack, on_device=[half, invert, half])
    halves = np.floor(load_images(pack) / 2 + 0.5)
    assert np.abs(got - (255 - halves) / 2).max() <= 0.5
    assert set(seen) == {(torch.uint8, True)}


def test_a_function_gets_floats_from_0_to_1_where_images_become_floats(pack: Path) -> None:
    def invert(images: Any) -> Any:
        assert images.dtype == torch.float32
        return 1 - images

    got = load_images(pack, normalize=((0, 0, 0), (0.5, 0.5, 0.5)), on_device=invert)
    assert np.abs(got - (1 - load_images(pack) / 255) * 2).max() < 1e-5


def test_a_function_may_give_images_another_type(pack: Path) -> None:
    got = load_images(pack, on_device=lambda images: images.to(torch.float64) / 255)
    assert got.dtype == np.float32  # as `load` has it
    assert np.abs(got - load_images(pack) / 255).max() < 1e-6


def test_what_a_function_returned_is_not_changed_behind_its_back(pack: Path) -> None:
    kept: list[Any] = []

    def keep(images: Any) -> Any:
        kept.append((images.clone(), images))
        return images

    for options in ({"dtype": "float32"}, {}):
        load_images(pack, on_device=[keep, ColorJitter(0.5), Solarize(p=1)], **options)
    assert all(torch.equal(before, after) for before, after in kept)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda _: None, "on_device: <lambda> returned NoneType, and images must come back"),
        (
            lambda images: images[1:],
            r"returned a tensor of shape \(4, 3, 16, 20\) for images of shape \(5, 3",
        ),
        (lambda images: images.int(), r"returned torch\.int32; images are uint8 or floats"),
    ],
)
def test_what_is_no_batch_of_images_is_named_with_the_function(pack: Path, function: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_images(pack, on_device=[function])


def test_a_function_is_called_by_one_thread_at_a_time(pack: Path) -> None:
    held: list[bool] = []

    def look(images: Any) -> Any:
        assert loader._setup.finish is not None
        held.append(loader._setup.finish.calls.locked())
        return images

    with Loader(pack, 4, on_device=look) as loader:
        assert len(list(loader)) == 6
    assert held == [True] * 6


def test_a_forked_child_waits_for_no_lock_of_its_parents_threads(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Loader(pack, 4, on_device=lambda images: images) as loader:
        assert loader._setup.finish is not None
        loader._setup.finish.calls.acquire()
        monkeypatch.setattr(loader._resources, "process", -1)  # as if the loader came from another process
        parents = loader._resources.pack
        assert len(list(loader)) == 6
        parents.close()


def test_an_error_in_a_function_arrives_in_the_loop(pack: Path) -> None:
    def fail(images: Any) -> Any:
        raise KeyError(f"{len(images)} images")

    with pytest.raises(KeyError, match="5 images"):
        load_images(pack, on_device=[fail])


def test_no_gradients_are_kept_of_a_module_in_the_list(pack: Path) -> None:
    for images, _ in Loader(pack, 8, dtype="float32", on_device=torch.nn.Conv2d(3, 3, 1)):
        assert not images.requires_grad


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"dtype": "float8"},
            "dtype must be torch.float32, torch.float16 or torch.bfloat16, .* got 'float8'",
        ),
        ({"dtype": torch.int64}, r"dtype must be .* got torch\.int64"),
        ({"dtype": np.float32}, "dtype must be"),
        ({"normalize": "cifar"}, r"normalize must be \(mean, std\) or \"imagenet\", got 'cifar'"),
        ({"normalize": (0.5, 0.5, 0.5)}, r"normalize must be \(mean, std\)"),
        (
            {"normalize": ((0.5, 0.5), (1, 1, 1))},
            r"mean must hold 3 numbers, one for each channel, got \(0.5",
        ),
        ({"normalize": ((0.5,) * 3, 0.5)}, "std must hold 3 numbers"),
        ({"normalize": ((0.5,) * 3, (1, 0, 1))}, r"std must be above 0, got \(1, 0, 1\)"),
        ({"normalize": ((0.5,) * 3, (1, -1, 1))}, "std must be above 0"),
        ({"normalize": ((0.5,) * 3, (1, float("nan"), 1))}, "std must hold 3 numbers"),
        ({"normalize": ((123, 117, 104), (58, 57, 57))}, "mean is in units of 0 to 1"),
        ({"normalize": "imagenet", "mode": "L"}, 'mode="L" gives one channel'),
        ({"normalize": ((0.5,) * 3, (0.5,) * 3), "mode": "L"}, "mean must hold one number"),
        ({"on_device": "ColorJitter"}, "on_device takes operations .* got 'ColorJitter'"),
        ({"on_device": [3]}, "on_device takes operations .* got 3"),
        ({"on_device": [Grayscale]}, r"on_device holds the class Grayscale: write Grayscale\(...\)"),
        (
            {"on_device": [RandomErasing(), Grayscale()]},
            "Grayscale stands behind RandomErasing; the order is",
        ),
        ({"on_device": [MixUp(), RandomErasing()]}, "RandomErasing stands behind MixUp; the order is"),
        ({"on_device": [CutMix(), len]}, "len stands behind CutMix; the order is"),
        (
            {"dtype": "float32", "output": "numpy"},
            'dtype= makes torch tensors, and output="numpy" gives arrays',
        ),
        (
            {"on_device": Grayscale(), "normalize": "imagenet", "transform": lambda sample: sample},
            "normalize= and on_device= work on the batch's images, and transform= decides what a batch is",
        ),
        ({"dtype": "float32", "collate": list}, "collate= decides what a batch is"),
        ({"dtype": "float32", "fields": ("label",)}, "dtype= works on images, and fields has none: label"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(pack: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Loader(pack, **options)


def test_an_empty_list_is_nothing_to_do(tmp_path: Path) -> None:
    assert len(list(Loader(write_numbers(tmp_path / "pack", 6), 2, on_device=[]))) == 3


@pytest.mark.parametrize("name", ["dtype", "normalize", "on_device", "device"])
def test_tensorflow_and_jax_have_no_torch_tensors_to_work_on(
    pack: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    no_strategy = SimpleNamespace(cluster_resolver=SimpleNamespace())
    distribute = SimpleNamespace(
        get_strategy=lambda: no_strategy, MultiWorkerMirroredStrategy=type("Strategy", (), {})
    )
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(distribute=distribute))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(process_count=lambda: 1))
    with pytest.raises(
        UsageError, match=f"{name}= works on torch tensors, and feedrate.tensorflow gives none"
    ):
        feedrate.tensorflow.dataset(pack, **{name: "cuda"})
    if name != "device":  # that is JAX's own
        with pytest.raises(UsageError, match=f"{name}= works on torch tensors, and feedrate.jax gives none"):
            feedrate.jax.batches(pack, **{name: "cuda"})


def test_the_time_it_takes_is_counted(pack: Path) -> None:
    with Loader(pack, 8, dtype="float32", on_device=COLOURS) as loader:
        list(loader)
        stages = {stage.name: stage for stage in loader.stats().stages}
    assert stages["finish"].batches == 3
    assert stages["finish"].busy_s > 0
    assert stages["transfer"].batches == 0


def test_draws_of_a_seed_stay_what_they_are() -> None:
    def uniforms(operation: Any) -> np.ndarray:
        return draw_uniforms(make_key(1, 2, operation.purpose, 0), np.arange(3), operation.uniforms)

    operations = [ColorJitter(), Grayscale(), GaussianBlur(3), Solarize(), RandomErasing(), MixUp(), CutMix()]
    assert [int(operation.purpose) for operation in operations] == [12, 13, 14, 15, 16, 19, 20]
    erasing = RandomErasing(p=1)
    assert erasing.place(uniforms(erasing), (100, 100)).tolist() == [
        [45, 21, 90, 93],
        [13, 37, 61, 67],
        [60, 13, 96, 91],
    ]
    assert np.allclose(
        MixUp(0.4).mix(uniforms(MixUp()), (1, 1)).share, [0.952737, 0.88971, 0.463669], atol=1e-6
    )
    assert CutMix().mix(uniforms(CutMix()), (100, 100)).boxes.tolist() == [
        [0, 0, 81, 74],
        [7, 0, 71, 56],
        [24, 0, 68, 24],
    ]


@pytest.fixture
def side_stream(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Tensors that a loop's stream was told of; 'meta' stands for the GPU, since torch computes there too."""
    used: list[Any] = []
    side = SimpleNamespace(record_event=lambda *_: "event", wait_event=lambda _: None)
    monkeypatch.setattr(transfer, "_streams", {torch.device("meta"): side})
    monkeypatch.setattr(transfer, "pin", lambda tensor: tensor)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: side)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: "event")
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, _: used.append(tensor))
    return used


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_the_loops_stream_is_told_of_the_finished_tensors(side_stream: list[Any], dtype: Any) -> None:
    erasing = RandomErasing(value=3 if dtype is None else "random")
    operations = (*COLOURS, erasing, MixUp(), CutMix())
    normalize = None if dtype is None else ((0.5,) * 3, (0.5,) * 3)
    label = Label("label", 1, classes=5)
    finish = Finish(dtype, normalize, operations, (0,), (8, 8), 3, label, seed=0, noise=Noise(0))
    there = transfer.Transfer(torch.device("meta"), 2, finish, is_plain=True)
    images = torch.zeros(20, 8, 8, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    batch = Batch((images, torch.zeros(20, dtype=torch.int64)), 20, origin=Origin(0, np.arange(20), None))
    finished, labels = there.finish(batch, 0).data.receive()
    assert (finished.dtype, finished.device.type) == (dtype or torch.uint8, "meta")
    assert (labels.shape, labels.device.type) == ((20, 5), "meta")
    assert [one is other for one, other in zip(side_stream, (finished, labels), strict=True)] == [True, True]
