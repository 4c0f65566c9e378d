# SPDX-License-Identifier: Apache-2.0
"""What batches hold: every kind of field, one draw for all of them, transforms, options, statistics."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedrate import CenterCrop, Dataset, Loader, RandomCrop, RandomResizedCrop, Resize, View
from feedrate.errors import NotFound, UsageError
from feedrate.format.fields import Field, Kind
from feedrate.format.pack import Pack
from feedrate.loader.pipeline import Meter
from feedrate.model.limits import LIMITS
from support.contracts import Load, LoaderContract, plain
from support.packs import (
    LABEL,
    encode_image,
    make_image,
    write_everything,
    write_images,
    write_multi_label,
    write_numbers,
    write_pack,
)
from support.paths import ROOT

ALL = ("image", "small", "mask", "label", "weight", "points", "ragged", "caption", "meta", "blob", "boxes")


class TestNumpyLoader(LoaderContract):
    @pytest.fixture
    def load(self) -> Load:
        return lambda pack, **options: load_plainly(pack, output="numpy", **options)


class TestTorchLoader(LoaderContract):
    @pytest.fixture
    def load(self) -> Load:
        return lambda pack, **options: load_plainly(pack, output="torch", **options)


class TestWindowedLoader(LoaderContract):
    @pytest.fixture
    def load(self) -> Load:
        return lambda pack, **options: load_plainly(pack, order="windowed", prefetch=1, threads=1, **options)


class TestTransformingLoader(LoaderContract):
    @pytest.fixture
    def load(self) -> Load:
        return lambda pack, **options: load_transformed(pack, **options)


def load_plainly(pack: Path, **options):
    with Loader(pack, fields=("image", "label", "key"), **options) as loader:
        assert len(loader) == -(-len(Pack(pack)) // options["batch_size"])
        for images, labels, keys in loader:
            yield plain(images), np.asarray(labels), keys


def load_transformed(pack: Path, **options):
    fields = ("image", "label", "key")
    with Loader(
        pack, fields=fields, transform=lambda sample: dict(sample), output="numpy", **options
    ) as loader:
        for batch in loader:
            yield batch["image"], batch["label"], batch["key"]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_everything(tmp_path_factory.mktemp("packs") / "everything")


def read_everything(pack: Path, **options) -> dict[int, dict]:
    """Return number -> field -> value."""
    options = {"fields": (*ALL, "number"), "output": "numpy", "batch_size": 5, **options}
    samples = {}
    with Loader(pack, **options) as loader:
        names = [f if isinstance(f, str) else f.name for f in options["fields"]]
        for batch in loader:
            columns = dict(zip(names, batch, strict=True))
            for i, number in enumerate(columns["number"]):
                samples[int(number)] = {name: column[i] for name, column in columns.items()}
    return samples


def test_fields_that_are_not_pixels_arrive_as_they_were_packed(everything: Path):
    for i, sample in read_everything(everything, image=Resize(8)).items():
        assert sample["label"] == i % 3
        assert sample["weight"] == i / 4
        assert sample["points"].tolist() == [[i] * 3] * 2
        assert sample["ragged"].tolist() == list(range(i % 3 + 1))
        assert sample["caption"] == f"image číslo {i}"
        assert sample["meta"] == {"i": i}
        assert sample["blob"] == bytes([i]) * i


def test_types_of_the_columns_are_stable(everything: Path):
    fields = ("label", "weight", "points", "mask", "ragged")
    with Loader(everything, fields=fields, image=Resize(8), shuffle=False, output="numpy") as loader:
        label, weight, points, mask, ragged = next(iter(loader))
    assert (label.dtype, weight.dtype, points.dtype, mask.dtype) == (
        np.int64,
        np.float64,
        np.float32,
        np.uint8,
    )
    assert points.shape == (12, 2, 3)
    assert mask.shape == (12, 8, 8)
    assert isinstance(ragged, list)


def test_torch_batches_are_channels_last_views_of_one_buffer(everything: Path):
    fields = ("image", "mask", "label", "points", "boxes", "ragged", "caption")
    import torch

    with Loader(everything, fields=fields, image=Resize((6, 8)), output="torch") as loader:
        image, mask, label, points, boxes, ragged, caption = next(iter(loader))
    assert image.shape == (12, 3, 6, 8)
    assert image.dtype == torch.uint8
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert mask.shape == (12, 6, 8)
    assert label.dtype == torch.int64
    assert points.shape == (12, 2, 3)
    assert all(isinstance(b, torch.Tensor) and b.dtype == torch.float32 for b in boxes)
    assert all(isinstance(r, torch.Tensor) for r in ragged)
    assert isinstance(caption[0], str)


@pytest.mark.parametrize("fields", [None, ("image", "label", "weight", "number", "patient")])
def test_a_batch_of_one_sample_comes_from_a_pack_with_a_text_field(tmp_path: Path, fields: tuple | None):
    # The text makes rows of the index a length that is no multiple of a number's eight bytes.
    pytest.importorskip("torch", reason="torch is not installed")
    columns = (
        Field("image", Kind.IMAGE, shape=(8, 8)), LABEL, Field("weight", Kind.NUMBER, dtype="float64"),
        Field("patient", Kind.TEXT),
    )  # fmt: skip
    image = encode_image(make_image(0, 8, 8))
    samples = [{"image": image, "label": i, "weight": i / 2, "patient": b"p%d" % i} for i in range(3)]
    pack = write_pack(tmp_path / "pack", columns, samples)
    with Loader(pack, 2, shuffle=False, fields=fields, output="torch") as loader:
        *_, (images, labels, *rest) = loader
    assert (images.shape, labels.tolist()) == ((1, 3, 8, 8), [2])
    if fields is not None:
        assert [rest[0].tolist(), rest[1].tolist(), rest[2]] == [[1.0], [2], ["p2"]]


def test_mask_and_boxes_follow_the_image(everything: Path):
    operation = RandomResizedCrop(16)
    with Loader(everything, image=operation, flip=True, seed=3) as loader:
        artist = loader._setup.sampler
        rows, _ = loader._resources.pack.rows(np.arange(12))
        geometry = artist.draw(0, rows, None)
    assert geometry.flips.any()
    assert not geometry.flips.all()
    for i, sample in read_everything(everything, image=operation, flip=True, seed=3).items():
        width, height = 40 + 2 * i, 32 + 4 * i
        box, flip = geometry.boxes[i], geometry.flips[i]
        mask = (np.add.outer(np.arange(height), np.arange(width)) // 5 % 7).astype(np.uint8)
        by_hand = np.asarray(
            Image.fromarray(mask).crop(tuple(box)).resize((16, 16), Image.Resampling.NEAREST)
        )
        np.testing.assert_array_equal(sample["mask"], by_hand[:, ::-1] if flip else by_hand)
        pixels = Image.fromarray(make_image(i, width, height)).crop(tuple(box)).resize((16, 16), 2)
        by_hand = np.asarray(pixels)[:, ::-1] if flip else np.asarray(pixels)
        assert np.abs(sample["image"].astype(int) - by_hand).mean() < 8  # JPEG's own loss
        np.testing.assert_allclose(sample["boxes"], boxes_by_hand(i, box, flip, 16), atol=1e-4)


def boxes_by_hand(i: int, crop: np.ndarray, flip: bool, side: int) -> np.ndarray:
    kept = []
    for left, top, right, bottom, name in [(2, 3, 20, 15, 7), (30, 20, 39, 31, 8), (0, 0, 1, 1, 9)][
        : 1 + i % 3
    ]:
        xs = [(x - crop[0]) / (crop[2] - crop[0]) * side for x in (left, right)]
        ys = [(y - crop[1]) / (crop[3] - crop[1]) * side for y in (top, bottom)]
        xs = [side - x for x in reversed(xs)] if flip else xs
        xs, ys = ([min(max(v, 0), side) for v in vs] for vs in (xs, ys))
        if xs[1] > xs[0] and ys[1] > ys[0]:
            kept.append((xs[0], ys[0], xs[1], ys[1], name))
    return np.array(kept, np.float32).reshape(-1, 5)


def test_a_view_shows_the_same_part_at_another_size(everything: Path):
    fields = ("image", View("image", size=8), View("mask", size=(4, 6), name="tiny"), "number")
    samples = read_everything(everything, fields=fields, image=RandomResizedCrop(16), flip=True)
    for sample in samples.values():
        small = np.asarray(Image.fromarray(sample["image"]).resize((8, 8), Image.Resampling.BILINEAR))
        assert np.abs(small.astype(int) - sample["image_8"]).mean() < 6
        assert sample["tiny"].shape == (4, 6)


def test_two_images_of_a_sample_show_the_same_part(everything: Path):
    for sample in read_everything(
        everything, image=RandomResizedCrop(12, scale=(0.5, 1)), flip=True
    ).values():
        assert np.abs(sample["image"].astype(int) - sample["small"]).mean() < 14


def test_the_draw_does_not_depend_on_which_fields_are_asked_for(everything: Path):
    options = {"image": RandomResizedCrop(8), "flip": True, "seed": 9}
    full = read_everything(everything, **options)
    alone = read_everything(everything, fields=("mask", "number"), **options)
    assert all((alone[i]["mask"] == full[i]["mask"]).all() for i in full)


@pytest.mark.parametrize("changed", [{"batch_size": 3}, {"threads": 1, "prefetch": 1}, {"shuffle": False}])
def test_the_draw_does_not_depend_on_how_samples_are_batched(everything: Path, changed: dict):
    options = {"image": RandomResizedCrop(8), "flip": True, "seed": 1}
    one, two = read_everything(everything, **options), read_everything(everything, **{**options, **changed})
    assert all((one[i]["image"] == two[i]["image"]).all() for i in one)


def test_epochs_draw_other_parts(everything: Path):
    with Loader(everything, shuffle=False, image=RandomResizedCrop(8), output="numpy") as loader:
        first, second = next(iter(loader))[0].copy(), next(iter(loader))[0]
    assert (first != second).any(axis=(1, 2, 3)).all()


def test_the_share_of_flips_is_the_one_asked_for(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=40)
    whole = {"shuffle": False, "output": "numpy", "fields": ("image",)}
    (plain_images,) = next(iter(Loader(pack, **whole)))
    (mirrored,) = next(iter(Loader(pack, flip=1.0, **whole)))
    np.testing.assert_array_equal(mirrored, plain_images[:, :, ::-1])
    (half,) = next(iter(Loader(pack, flip=True, **whole)))
    assert 8 < (half != plain_images).any(axis=(1, 2, 3)).sum() < 32


def test_images_of_one_size_need_no_operation(tmp_path: Path):
    pytest.importorskip("torch", reason="torch is not installed")
    with Loader(write_images(tmp_path / "pack", side=16), batch_size=4) as loader:
        assert loader.classes == ["cat", "dog", "emu"]
        image, label = next(iter(loader))
    assert image.shape == (4, 3, 16, 16)
    assert label.shape == (4,)


def test_images_of_many_sizes_need_an_operation(tmp_path: Path):
    with pytest.raises(UsageError, match="'image' differ in size") as caught:
        Loader(write_images(tmp_path / "pack", side=None))
    assert "RandomResizedCrop(224)" in (caught.value.hint or "")


def test_a_pack_without_images_gives_what_it_has(tmp_path: Path):
    with Loader(write_numbers(tmp_path / "pack", 5), output="numpy") as loader:
        (labels,) = next(iter(loader))
    assert sorted(labels.tolist()) == [0, 0, 1, 1, 2]


def test_progressive_images_go_through_pillow_and_are_counted(tmp_path: Path):
    from support.packs import IMAGE, encode_image

    kinds = [{"quality": 90}, {"quality": 90, "progressive": True}]
    samples = [{"image": encode_image(make_image(i, 30, 30), **kinds[i % 2]), "label": 0} for i in range(8)]
    with Loader(write_pack(tmp_path / "pack", (IMAGE, LABEL), samples), image=Resize(9)) as loader:
        list(loader)
        stats = loader.stats()
    assert stats.by_pillow == 4
    assert sum(stats.pillow_reasons.values()) == 4


def test_weights_balance_the_classes(tmp_path: Path):
    samples = [{"label": 0 if i < 270 else 1 + i % 2} for i in range(300)]
    pack = write_pack(tmp_path / "pack", (LABEL,), samples)
    counts: Counter[int] = Counter()
    with Loader(pack, weights="balanced", output="numpy") as loader:
        for _ in range(5):
            for (labels,) in loader:
                counts.update(labels.tolist())
    assert counts.total() == 1500
    assert all(400 < counts[label] < 600 for label in range(3))


def test_a_sample_drawn_twice_in_an_epoch_is_cut_twice(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=6, side=None)
    weights = [0, 0, 0, 1, 0, 0]
    with Loader(pack, weights=weights, image=RandomResizedCrop(8), output="numpy") as loader:
        images, labels = next(iter(loader))
    assert labels.tolist() == [0] * 6
    assert len({image.tobytes() for image in images}) == 6


def test_a_given_order_is_followed(tmp_path: Path):
    pack = write_numbers(tmp_path / "pack", 9)
    with Loader(pack, fields=("number",), order=[8, 0, 8], output="numpy") as loader:
        assert len(loader) == 1
        assert next(iter(loader))[0].tolist() == [8, 0, 8]


def test_splits_share_nothing_and_miss_nothing(tmp_path: Path):
    pack = write_numbers(tmp_path / "pack", 50)
    parts = []
    for split, seed in (((0, 0.8), 1), ((0.8, 1), 2)):
        with Loader(pack, fields=("number",), split=split, seed=seed, output="numpy") as loader:
            parts.append([n for (numbers,) in loader for n in numbers.tolist()])
    assert [len(part) for part in parts] == [40, 10]
    assert sorted(parts[0] + parts[1]) == list(range(50))


def test_ranks_share_the_epoch(tmp_path: Path):
    pack = write_numbers(tmp_path / "pack", 53)
    seen, counts = [], set()
    for rank in range(4):
        with Loader(pack, 5, fields=("number",), rank=rank, world_size=4, output="numpy") as loader:
            batches = [numbers.tolist() for (numbers,) in loader]
        counts.add(len(batches))
        seen += [number for batch in batches for number in batch]
    assert counts == {3}
    assert sorted(seen) == list(range(53))


def test_transform_sees_one_sample_and_collate_all_of_them(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=5)

    def transform(sample: dict) -> tuple:
        assert sample["image"].shape == (16, 16, 3)
        return sample["image"].mean(), int(sample["label"]), sample["key"]

    fields = ("image", "label", "key")
    import torch

    with Loader(pack, fields=fields, shuffle=False, transform=transform, output="torch") as loader:
        mean, label, keys = next(iter(loader))
    assert mean.dtype == torch.float64
    assert label.tolist() == [0, 1, 2, 0, 1]
    assert keys[0] == "sample-00000"
    with Loader(pack, fields=fields, transform=transform, collate=len) as loader:
        assert list(loader) == [5]


def test_an_error_in_transform_arrives_with_its_traceback_and_the_samples_key(tmp_path: Path):
    def break_at_seven(sample: dict) -> dict:
        if sample["number"] == 7:
            raise LookupError("seven")
        return sample

    pack = write_numbers(tmp_path / "pack", 20)
    fields = ("label", "number")
    with (
        Loader(pack, 4, shuffle=False, fields=fields, transform=break_at_seven) as loader,
        pytest.raises(LookupError, match="seven") as caught,
    ):
        list(loader)
    shown = "".join(traceback.format_exception(caught.value))
    assert "break_at_seven" in shown
    assert "sample-00007" in shown


def test_a_crop_larger_than_the_image_is_a_bad_sample_in_words(tmp_path: Path):
    from feedrate.errors import BadSample

    pack = write_images(tmp_path / "pack", side=16)
    for operation in (RandomCrop(17), CenterCrop(32)):
        with pytest.raises(BadSample, match="the image has 16x16 pixels, smaller than"):
            list(Loader(pack, image=operation))


def test_stats_say_what_was_done_and_what_is_slow(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=10)
    with Loader(pack, 4) as loader:
        assert (loader.stats().slowest, loader.stats().limit) == ("nothing was loaded yet", None)
        list(loader)
        stats = loader.stats()
    assert (stats.batches, stats.samples, stats.bad_samples) == (3, 10, 0)
    assert {s.name: s.batches for s in stats.stages}["read and decode"] == 3
    assert stats.bytes_read > 10 * 300
    assert stats.slowest


@pytest.mark.parametrize(
    ("stage", "limit"),
    [
        ("fetch", "storage-bound"), ("read and decode", "decode-bound"), ("transform", "transform-bound"),
        ("collate", "handover-bound"), ("transfer", "copy-bound"), ("other fields", "unpack-bound"),
    ],
)  # fmt: skip
def test_stats_name_the_limit_by_the_codes_of_the_doctor(stage: str, limit: str) -> None:
    meter = Meter()
    with meter.stage(stage):
        pass
    meter.count(batches=1)
    meter.add_wait("consumer", 2.0)
    assert meter.read().limit == limit
    assert limit in LIMITS
    meter.add_wait("makers", 3.0)
    assert meter.read().limit == "device-bound"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number, got 2.5"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"prefetch": -1}, "prefetch must be at least 1, got -1"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"shuffle": "yes"}, "shuffle must be True or False, got 'yes'"),
        ({"fields": ("imag",)}, "unknown field 'imag': this pack has image, label, key, number"),
        ({"fields": "image"}, "fields must be a tuple of names"),
        ({"fields": ()}, "fields must be a tuple of names"),
        ({"fields": ("label", "label")}, "fields names 'label' twice"),
        ({"fields": (View("label", 3),)}, "View shows images and masks; field 'label' is number"),
        ({"image": 224}, "image must be an image operation, got 224"),
        ({"flip": 1.5}, "flip must be True, False or a probability from 0 to 1, got 1.5"),
        ({"order": "random"}, "order must be .* got 'random'"),
        ({"order": [0], "weights": "balanced"}, "give one of them"),
        ({"order": [0], "split": (0, 0.5)}, "order and split cannot be combined"),
        ({"weights": "even"}, "weights must be .* got 'even'"),
        ({"weights": [1, 2]}, r"each of the pack's 20 samples, got shape \(2,\)"),
        ({"weights": [-1] * 20}, "not negative, got -1"),
        ({"weights": [0] * 20}, "weights are all 0"),
        ({"split": (0.5, 0.2)}, r"0 <= start < stop <= 1, got \(0.5, 0.2\)"),
        ({"split": 0.9}, "got 0.9"),
        ({"rank": 1}, "rank and world_size belong together"),
        ({"rank": 2, "world_size": 2}, r"rank must be below world_size \(2\), got 2"),
        ({"drop_last": True, "pad": True}, "choose one"),
        ({"drop_last": True, "batch_size": 21}, "no batch would come"),
        ({"transform": 3}, "transform must be a function, got 3"),
        ({"on_bad_sample": "ignore"}, "on_bad_sample must be .* got 'ignore'"),
        ({"output": "jax"}, "output must be .* got 'jax'"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_words(tmp_path: Path, options: dict, words: str):
    pack = write_images(tmp_path / "pack", count=20)
    with pytest.raises(UsageError, match=words):
        Loader(pack, **options)


def test_a_near_miss_is_suggested(tmp_path: Path):
    with pytest.raises(UsageError) as caught:
        Loader(write_images(tmp_path / "pack"), fields=("imag",))
    assert caught.value.hint == "did you mean 'image'?"


def test_a_missing_pack_is_named(tmp_path: Path):
    with pytest.raises(NotFound, match="no pack at"):
        Loader(tmp_path / "nothing")


def test_an_opened_pack_may_be_given_and_stays_open(tmp_path: Path):
    pack = Pack(write_images(tmp_path / "pack"))
    for _ in range(2):
        with Loader(pack, 8) as loader:
            assert len(list(loader)) == 3


def test_the_examples_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch", reason="torch is not installed")
    page = (ROOT / "docs" / "loader.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    assert len(examples) == 11
    write_images(tmp_path / "photos.pack", count=40, side=None)
    (tmp_path / "photo.jpg").write_bytes(encode_image(make_image(0, 30, 30)))
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for example in examples:
        exec(compile(example.replace("224", "32"), "loader.md", "exec"), names)
    assert names["remaining"] == 32
    assert names["pixels"].shape == (10, 10, 3)
    assert names["crops"].shape == (2, 3, 32, 32)
    assert [one.status for one in names["statuses"]] == ["ok", "corrupt"]
    for name in ("loader", "sharp", "drawn", "train", "held_out", "again", "dark"):
        names[name].close()


def test_loading_needs_neither_pyarrow_nor_pillow_nor_torch(tmp_path: Path):
    write_images(tmp_path / "pack", count=8)
    script = (
        "import sys, feedrate\n"
        "loader = feedrate.Loader('pack', image=feedrate.RandomResizedCrop(8), flip=True, output='numpy')\n"
        "print(len(list(loader)), sorted({'torch', 'pyarrow', 'PIL'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "1 []\n"


def test_a_multi_label_pack_gives_images_and_labels(tmp_path: Path):
    pack = write_multi_label(tmp_path / "pack")
    with Loader(pack, 8, shuffle=False, output="numpy") as loader:
        ((images, labels),) = loader
        assert loader.classes == ["cat", "dog", "emu"]
    assert images.shape == (8, 16, 16, 3)
    assert labels.tolist() == [[i & 1, i >> 1 & 1, i >> 2 & 1] for i in range(8)]
    with pytest.raises(UsageError, match="needs a label of whole numbers; this pack's labels is array"):
        Loader(pack, weights="balanced")


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ({"num_workers": 8}, "threads="),
        ({"pin_memory": True}, 'device="cuda"'),
        ({"pin_memory_device": "cuda"}, 'device="cuda"'),
        ({"persistent_workers": True}, "leave it out"),
        ({"in_order": False}, "leave it out"),
        ({"prefetch_factor": 2}, "prefetch="),
        ({"sampler": [1, 2]}, "order="),
        ({"batch_sampler": [[1, 2]]}, "order="),
        ({"collate_fn": list}, "collate="),
        ({"generator": None}, "seed="),
        ({"worker_init_fn": print}, "leave it out"),
        ({"timeout": 3}, "leave it out"),
        ({"multiprocessing_context": "spawn"}, "leave it out"),
        ({"shufle": True}, "did you mean shuffle="),
        ({"banana": 1}, "Loader has no option banana"),
        ({"scratch": True}, 'scratch="auto"'),
        ({"scratch": False}, "leave it out"),
    ],
)
def test_words_of_the_dataloader_end_in_what_to_write_instead(tmp_path: Path, option: dict, instead: str):
    with pytest.raises(UsageError) as caught:
        Loader(write_numbers(tmp_path / "pack", 3), 2, **option)
    assert instead in str(caught.value)


@pytest.mark.parametrize("make", [Loader, Dataset])
@pytest.mark.parametrize("pack", [None, 3, [1, 2], b"pack"])
def test_what_is_no_pack_is_named(make: type, pack: object):
    with pytest.raises(UsageError, match="must be the folder or the address of a pack, got") as caught:
        make(pack)
    assert "feedrate pack" in str(caught.value)
