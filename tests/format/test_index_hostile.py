# SPDX-License-Identifier: Apache-2.0
"""An index that lies, with right checksums: an error in words, whatever it claims, and no memory by claim."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate import Dataset, Loader, Resize
from feedrate.errors import BadSample, PackError
from support import hostile_index
from support.damage import edit_manifest
from support.packs import write_everything, write_images
from support.paths import TESTS

LARGEST, MB = 2**63 - 1, 2**20
# What is claimed: column -> row of the first shard -> value.
LIES: dict[str, dict[str, dict[int, Any]]] = {
    "lengths that add up beyond 64 bits": {"caption.length": {0: LARGEST, 1: LARGEST, 2: 12}},
    "lengths of images that add up beyond 64 bits": {"image.length": {0: LARGEST, 1: LARGEST, 2: 12}},
    "a negative length": {"caption.length": {1: -1}},
    "the most negative length and offset": {"blob.length": {1: -(2**63)}, "blob.offset": {1: -(2**63)}},
    "600 MB of text in a small file": {"caption.length": {0: 600 * MB}},
    "600 MB of a mask in a small file": {"mask.length": {0: 600 * MB}},
    "many texts of 15 MB in a small file": {"caption.length": dict.fromkeys(range(6), 15 * MB)},
    "an image of 100,000 x 36,000 pixels": {"image.width": {0: 100_000}, "image.height": {0: 36_000}},
    "an image of 13,000 x 13,000 pixels": {"image.width": {0: 13_000}, "image.height": {0: 13_000}},
    "an image with the longest sides": {"image.width": {0: 2**32 - 1}, "image.height": {0: 2**32 - 1}},
    "an image without pixels": {"image.width": {0: 0}, "image.height": {0: 0}},
    "a mask of 13,000 x 13,000 pixels": {"mask.width": {0: 13_000}, "mask.height": {0: 13_000}},
    "a mask with the longest sides": {"mask.width": {0: 2**32 - 1}, "mask.height": {0: 2**32 - 1}},
    "entry points that wrap around": {"image.entries": {1: LARGEST, 2: -(2**63)}},
    "entry points of 600 MB": {"image.entries": {2: 600 * MB}},
    "keys that wrap around": {"key": {1: LARGEST, 2: -(2**63)}},
    "a key of 600 MB": {"key": {2: 600 * MB, 3: 600 * MB, 4: 600 * MB, 5: 600 * MB, 6: 600 * MB}},
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """How each way into a pack ended, by lie; those after a crash are missing."""
    folder = tmp_path_factory.mktemp("hostile")
    pack = write_everything(folder / "good")
    command = [sys.executable, "-m", "support.hostile_index", pack, folder]
    lies = json.dumps(list(LIES.values()))
    ran = subprocess.run(command, input=lies, capture_output=True, text=True, check=False, cwd=TESTS)
    assert "Traceback" not in ran.stderr, ran.stderr[-4000:]
    return dict(zip(LIES, map(json.loads, ran.stdout.splitlines()), strict=False))


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory by Linux's RLIMIT_DATA")
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_of_the_index_ends_in_words_wherever_it_is_read(lie: str, told: dict[str, dict[str, str]]):
    assert lie in told, "the process ended"
    assert {way: end for way, end in told[lie].items() if end.startswith("BARE")} == {}
    assert "PackError" in told[lie].values() or "BadSample" in told[lie].values()


def test_what_a_small_file_cannot_hold_is_told_with_both_sizes(tmp_path: Path) -> None:
    pack = write_images(tmp_path / "pack", shards=1)
    hostile_index.LyingPack(pack, tmp_path / "lying").tell({"image.length": {0: 600 * MB}})
    size_bytes = (pack / "shard-00000.tar").stat().st_size
    with pytest.raises(BadSample, match=f"file ends.*{size_bytes}"):
        Dataset(tmp_path / "lying")[0]


def test_an_image_of_another_size_than_its_row_says_is_told_with_both(tmp_path: Path) -> None:
    pack = write_images(tmp_path / "pack", shards=1)
    lie = {"image.width": {0: 9000}, "image.height": {0: 9000}}
    hostile_index.LyingPack(pack, tmp_path / "lying").tell(lie)
    with pytest.raises(BadSample, match="it has 16 x 16 pixels, not 9000 x 9000 pixels"):
        Dataset(tmp_path / "lying")[0]


def test_a_manifest_that_gives_small_images_a_huge_size_is_refused_before_memory_is_taken(tmp_path: Path):
    pack = write_images(tmp_path / "pack")
    edit_manifest(pack, lambda document: document["fields"]["image"].update(shape=[12_000, 12_000]))
    with pytest.raises(PackError, match="it has 16 x 16 pixels, not 12000 x 12000 pixels"):
        Loader(pack, batch_size=64, output="numpy")


@pytest.mark.parametrize("dtype", ["f4,(", "O", "i8,O", 5, ["a"], "no type"])
def test_a_type_that_is_none_is_told_in_words(tmp_path: Path, dtype: object) -> None:
    pack = write_images(tmp_path / "pack")
    edit_manifest(pack, lambda document: document["fields"]["label"].update(dtype=dtype))
    with pytest.raises(PackError):
        Dataset(pack)


def test_more_samples_than_the_index_can_hold_are_refused(tmp_path: Path) -> None:
    pack = write_images(tmp_path / "pack", shards=1)
    edit_manifest(pack, lambda document: document.update(samples=2**40))
    edit_manifest(pack, lambda document: document["shards"][0].update(samples=2**40))
    with pytest.raises(PackError, match=r"shard-00000\.arrow is too short for 1,099,511,627,776 samples"):
        Dataset(pack)


@pytest.mark.parametrize("length", [600 * MB, LARGEST, -1])
def test_no_room_is_made_for_what_a_remote_shard_cannot_hold(tmp_path: Path, length: int) -> None:
    lying = hostile_index.LyingPack(write_everything(tmp_path / "pack", count=40), tmp_path / "lying")
    lying.tell({"caption.length": {0: length, 1: length}, "mask.length": {2: length}})
    options = {"fields": ("mask", "caption", "number"), "image": Resize(8), "on_bad_sample": "skip"}
    with Loader(f"file://{lying.path}", 4, shuffle=False, output="numpy", **options) as loader:
        assert np.concatenate([batch[2] for batch in loader]).tolist() == list(range(3, 40))
        assert loader.stats().fetch.bytes_fetched < MB
