# SPDX-License-Identifier: Apache-2.0
"""The drop-in for ImageFolder: alone, pickled, and inside a real DataLoader by fork and by spawn."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedrate import Dataset, Loader, RandomResizedCrop, Resize
from feedrate.errors import BadSample, UsageError
from support.contracts import Load, LoaderContract, spoil
from support.packs import write_everything, write_images, write_multi_label

torch = pytest.importorskip("torch", reason="torch is not installed")
DataLoader = torch.utils.data.DataLoader


class TestDatasetInDataLoader(LoaderContract):
    @pytest.fixture
    def load(self) -> Load:
        return load_batches


def load_batches(pack: Path, batch_size: int, image=None, flip: bool = False, seed: int = 0):
    fields = ("image", "label", "key")
    dataset = Dataset(pack, fields=fields, image=image, flip=flip, seed=seed, output="numpy")
    return DataLoader(dataset, batch_size, collate_fn=stack)


def stack(samples: list[tuple]) -> tuple:
    images, labels, keys = zip(*samples, strict=True)
    return np.stack(images), np.array(labels), list(keys)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("packs") / "images", count=12, side=None)


def to_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((8, 8)))).permute(2, 0, 1)


def add_ten(label: int) -> int:
    return label + 10


def test_a_sample_is_what_image_folder_gives(pack: Path):
    dataset = Dataset(pack)
    image, label = dataset[1]
    assert isinstance(image, Image.Image)
    assert image.mode == "RGB"
    assert label == 1
    assert isinstance(label, int)
    assert dataset.classes == ["cat", "dog", "emu"]
    assert dataset.class_to_idx == {"cat": 0, "dog": 1, "emu": 2}
    assert dataset.targets == [i % 3 for i in range(12)]
    assert len(dataset) == 12


def test_transforms_are_applied_to_image_and_label(pack: Path):
    image, label = Dataset(pack, transform=to_tensor, target_transform=add_ten)[2]
    assert image.shape == (3, 8, 8)
    assert label == 12


def test_negative_and_numpy_indices_work_and_others_do_not(pack: Path):
    dataset = Dataset(pack, fields=("key",))
    assert dataset[-1] == dataset[np.int64(11)] == "sample-00011"
    for index in (12, -13):
        with pytest.raises(IndexError, match=f"sample {index} of a pack that has 12"):
            dataset[index]
    with pytest.raises(TypeError):
        dataset["a"]
    assert len(list(dataset)) == 12


@pytest.mark.parametrize(
    ("output", "kind"), [("pil", Image.Image), ("numpy", np.ndarray), ("torch", torch.Tensor)]
)
def test_outputs_show_the_same_pixels(pack: Path, output, kind: type):
    pixels = Dataset(pack, output=output)[3][0]
    assert isinstance(pixels, kind)
    array = pixels.permute(1, 2, 0).numpy() if output == "torch" else np.asarray(pixels)
    np.testing.assert_array_equal(array, Dataset(pack, output="numpy")[3][0])


def test_several_samples_at_once_are_those_one_by_one(pack: Path):
    dataset = Dataset(pack, fields=("image", "number"), output="numpy")
    for together, index in zip(dataset.__getitems__([4, 0, -1]), (4, 0, -1), strict=True):
        alone = dataset[index]
        np.testing.assert_array_equal(together[0], alone[0])
        assert together[1] == alone[1]


def test_images_of_one_size_are_decoded_together_and_have_memory_of_their_own(pack: Path):
    dataset = Dataset(pack, fields=("image", "number"), image=Resize(8), output="torch")
    samples = dataset.__getitems__([4, 0, -1])
    for (together, number), index in zip(samples, (4, 0, -1), strict=True):
        alone = dataset[index]
        torch.testing.assert_close(together, alone[0], rtol=0, atol=0)
        assert number == alone[1]
        # To keep one, to save it or to hand it over must not take the others along.
        assert together.untyped_storage().nbytes() == 8 * 8 * 3


def test_the_first_bad_sample_of_a_batch_is_named(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=6, shards=3)
    for shard in (1, 2):
        spoil(pack, f"shard-0000{shard}.tar", -3)
    with pytest.raises(BadSample, match="sample 'sample-00005', field 'image'"):
        Dataset(pack, image=Resize(8)).__getitems__([0, 5, 3])


def test_every_kind_of_field_comes(tmp_path: Path):
    fields = ("mask", "weight", "points", "caption", "meta", "blob", "boxes", "number")
    dataset = Dataset(write_everything(tmp_path / "pack"), fields=fields, image=Resize(8), output="numpy")
    mask, weight, points, caption, meta, blob, boxes, number = dataset[4]
    assert mask.shape == (8, 8)
    assert (weight, caption, meta, blob, number) == (1.0, "image číslo 4", {"i": 4}, b"\4" * 4, 4)
    assert points.shape == (2, 3)
    assert boxes.shape[1] == 5


def test_a_seed_gives_the_draw_of_the_loader(pack: Path):
    options = {"image": RandomResizedCrop(8), "flip": True, "seed": 6, "output": "numpy"}
    dataset = Dataset(pack, **options)
    dataset.set_epoch(2)
    with Loader(pack, 12, shuffle=False, **options) as loader:
        loader.set_epoch(2)
        images, _ = next(iter(loader))
    for i in range(12):
        np.testing.assert_array_equal(dataset[i][0], images[i])


def test_without_a_seed_every_access_draws_anew_from_random(pack: Path):
    dataset = Dataset(pack, image=RandomResizedCrop(8), output="numpy")
    state = random.getstate()
    first, second = dataset[0][0], dataset[0][0]
    random.setstate(state)
    again = dataset[0][0]
    assert (first != second).any()
    np.testing.assert_array_equal(first, again)


def test_it_pickles_as_its_arguments(pack: Path):
    dataset = Dataset(pack, transform=to_tensor)
    dataset[0]
    data = pickle.dumps(dataset)
    assert len(data) < 600 + len(str(pack))
    assert len(pickle.loads(data)) == 12


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])  # each one imports torch
def test_a_data_loader_with_workers_gives_every_sample(pack: Path, method: str, workers: int):
    dataset = Dataset(pack, transform=to_tensor, fields=("image", "label", "number"))
    dataset[0]  # the pack is open in this process when the workers start
    loader = DataLoader(dataset, 5, shuffle=True, num_workers=workers, multiprocessing_context=method)
    numbers = []
    for images, labels, batch_numbers in loader:
        assert images.shape[1:] == (3, 8, 8)
        assert labels.tolist() == [n % 3 for n in batch_numbers.tolist()]
        numbers += batch_numbers.tolist()
    assert sorted(numbers) == list(range(12))


def test_a_bad_sample_is_named_across_workers(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=4, shards=1)
    spoil(pack, "shard-00000.tar", -3)
    loader = DataLoader(Dataset(pack, output="torch"), 2, num_workers=1, multiprocessing_context="fork")
    # torch builds the error anew from its text.
    with pytest.raises(BadSample, match="sample 'sample-00003', field 'image'"):
        list(loader)


def test_a_bad_sample_survives_pickling(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=4, shards=1)
    spoil(pack, "shard-00000.tar", -3)
    with pytest.raises(BadSample) as caught:
        Dataset(pack)[3]
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.key) == (str(caught.value), "sample-00003")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fields": ("lable",)}, "unknown field 'lable'"),
        ({"image": "crop"}, "image must be an image operation, got 'crop'"),
        ({"output": "jax"}, "output must be .* got 'jax'"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"transform": 1}, "transform must be a function, got 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(pack: Path, options: dict, words: str):
    with pytest.raises(UsageError, match=words):
        Dataset(pack, **options)


def test_a_sample_of_a_multi_label_pack_is_image_and_labels(tmp_path: Path):
    dataset = Dataset(write_multi_label(tmp_path / "pack"), target_transform=lambda labels: labels.tolist())
    image, labels = dataset[6]
    assert image.size == (16, 16)
    assert labels == [0, 1, 1]
    assert dataset.classes == ["cat", "dog", "emu"]
    assert dataset.class_to_idx == {"cat": 0, "dog": 1, "emu": 2}


def test_targets_of_a_multi_label_pack_are_its_arrays(tmp_path: Path):
    dataset = Dataset(write_multi_label(tmp_path / "pack"), split=(0, 0.5))
    targets = np.stack(dataset.targets)
    np.testing.assert_array_equal(targets, np.stack([labels for _, labels in dataset]))
    assert targets.shape == (4, 3)


def test_mode_l_gives_gray_images(tmp_path: Path):
    pack = write_images(tmp_path / "pack")
    colour, _ = Dataset(pack)[3]
    gray, _ = Dataset(pack, mode="L")[3]
    assert gray.mode == "L"
    np.testing.assert_array_equal(gray, colour.convert("L"))
    assert Dataset(pack, mode="L", output="numpy")[3][0].shape == (16, 16, 1)
    assert Dataset(pack, mode="L", output="torch")[3][0].shape == (1, 16, 16)
    with pytest.raises(UsageError, match="mode must be"):
        Dataset(pack, mode="gray")
