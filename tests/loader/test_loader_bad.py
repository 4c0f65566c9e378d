# SPDX-License-Identifier: Apache-2.0
"""Bad samples: named, counted, handled as asked; never noise, never a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedrate import Cache, Loader, RandomCrop, Resize
from feedrate.errors import BadSample, PackError, StorageError
from feedrate.format.fields import Field, Kind
from feedrate.format.index import Part
from feedrate.format.pack import Pack
from support.contracts import spoil, spoil_sample
from support.damage import rewrite_index
from support.packs import IMAGE, LABEL, encode_image, make_image, write_everything, write_images, write_pack


def load(pack: Path, **options) -> tuple[list[str], int, Loader]:
    """Return the keys that came, and how many bad samples were counted."""
    fields = ("image", "label", "key")
    with Loader(pack, 4, shuffle=False, fields=fields, output="numpy", **options) as loader:
        keys = []
        for images, labels, batch_keys in loader:
            assert len(images) == len(labels) == len(batch_keys)
            assert labels.tolist() == [int(key[-5:]) % 3 for key in batch_keys]
            keys += batch_keys
    return keys, loader.stats().bad_samples, loader


def test_a_bad_sample_is_left_out_on_request(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=30)
    for position in (2, 7, 29):
        spoil_sample(pack, position)
    keys, bad, _ = load(pack, on_bad_sample="skip")
    assert keys == [f"sample-{i:05d}" for i in range(30) if i not in (2, 7, 29)]
    assert bad == 3


def test_a_function_is_told_of_bad_samples_in_order(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=20)
    for position in (18, 1):
        spoil_sample(pack, position)
    told: list[BadSample] = []
    keys, _, _ = load(pack, on_bad_sample=told.append)
    assert len(keys) == 18
    assert [(b.key, b.field, b.shard) for b in told] == [
        ("sample-00001", "image", "shard-00000.tar"),
        ("sample-00018", "image", "shard-00001.tar"),
    ]
    assert "crc32c is" in told[0].reason


def test_an_error_in_that_function_reaches_the_loop(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=10)
    spoil_sample(pack, 0)

    def refuse(bad: BadSample) -> None:
        raise KeyError(bad.key)

    with Loader(pack, 4, shuffle=False, on_bad_sample=refuse) as loader:
        with pytest.raises(KeyError, match="sample-00000"):
            list(loader)
        assert loader.state_dict()["samples"] == 0  # the batch was not given


def test_a_batch_with_no_good_sample_is_left_out_and_counted(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=40)
    for position in range(4, 8):
        spoil_sample(pack, position)
    with Loader(pack, 4, shuffle=False, on_bad_sample="skip", output="numpy") as loader:
        sizes = [len(labels) for _, labels in loader]
        assert sizes == [4] * 9
        assert loader.epoch == 1
        stats = loader.stats()
    assert (stats.empty_batches, stats.bad_samples, stats.samples) == (1, 4, 36)


@pytest.mark.parametrize("kind", ["skip", "function"])
def test_with_several_ranks_a_batch_with_no_good_sample_raises(tmp_path: Path, kind: str):
    pack = write_images(tmp_path / "pack", count=80)
    for position in (6, 7):
        spoil_sample(pack, position)
    told: list[BadSample] = []
    options = {"shuffle": False, "world_size": 2, "on_bad_sample": policy_of(kind, told), "output": "numpy"}
    with Loader(pack, 2, rank=0, **options) as loader:
        assert len(list(loader)) == 20
    with Loader(pack, 2, rank=1, **options) as loader:
        with pytest.raises(PackError, match=r"none of the 2 samples of batch 1 on rank 1 .*sample-00006"):
            list(loader)
        assert loader.state_dict()["samples"] == 4  # one batch of each rank
    assert len(told) == (2 if kind == "function" else 0)


@pytest.mark.parametrize("kind", ["skip", "function"])
def test_more_than_a_tenth_of_an_epoch_is_not_skipped_in_silence(tmp_path: Path, kind: str):
    pack = write_images(tmp_path / "pack", count=40)
    for position in (0, 9, 18, 27):
        spoil_sample(pack, position)
    told: list[BadSample] = []
    policy = policy_of(kind, told)
    assert len(load(pack, on_bad_sample=policy)[0]) == 36, "a tenth may be"
    spoil_sample(pack, 39)
    with Loader(pack, 4, shuffle=False, on_bad_sample=policy, output="numpy") as loader:
        words = r"5 of 40 samples of epoch 0 are bad and were skipped, and at most 10% may be; .*sample-00039"
        with pytest.raises(PackError, match=words):
            list(loader)
    assert len(told) == (9 if kind == "function" else 0)


def test_one_bad_sample_is_skipped_however_few_samples_a_rank_has(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=40)
    spoil_sample(pack, 1)
    options = {"shuffle": False, "on_bad_sample": "skip", "output": "numpy", "world_size": 10}
    with Loader(pack, 4, rank=0, **options) as loader:
        assert sum(len(batch[0]) for batch in loader) == 3
    spoil_sample(pack, 2)
    words = r"2 of 4 samples of epoch 0 on rank 0 are bad and were skipped, and at most 10% may be"
    with Loader(pack, 4, rank=0, **options) as loader, pytest.raises(PackError, match=words):
        list(loader)


def test_a_resumed_epoch_counts_what_was_skipped_before(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=40)
    for position in (0, 1, 20, 21, 22):
        spoil_sample(pack, position)
    options = {"shuffle": False, "on_bad_sample": "skip", "output": "numpy"}
    with Loader(pack, 4, **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with Loader(pack, 4, **options) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(0)
        with pytest.raises(PackError, match=r"5 of 40 samples of epoch 0 are bad and were skipped"):
            list(loader)
        loader.load_state_dict({name: value for name, value in state.items() if name != "skipped"})
        assert sum(len(labels) for _, labels in loader) == 33, (
            "a state that was saved before skips were counted"
        )


def policy_of(kind: str, told: list[BadSample]) -> Any:
    return "skip" if kind == "skip" else told.append


def test_state_counts_skipped_samples_too(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=10)
    spoil_sample(pack, 1)
    with Loader(pack, 4, shuffle=False, on_bad_sample="skip", output="numpy") as loader:
        next(iter(loader))
        assert loader.state_dict()["samples"] == 4


def test_a_damaged_row_of_the_index_is_a_bad_sample(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=12, shards=1)
    column = Pack(pack).manifest.shards[0].index.columns["label"][0]
    spoil(pack, "shard-00000.arrow", column + 3 * 8)
    with pytest.raises(BadSample, match=r"sample-00003.*its row of the index cannot be used"):
        load(pack)
    keys, bad, _ = load(pack, on_bad_sample="skip")
    assert len(keys) == 11
    assert bad == 1


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, 200)


def make_unreadable(path: Path) -> None:
    """Let it be opened and not read: what a failing disk does is hard to come by, a folder's error is not."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("kind", ["raise", "skip", "function"])
@pytest.mark.parametrize(
    ("name", "harm", "words"),
    [
        ("shard-00001.tar", remove, "shard-00001.tar cannot be read: No such file"),
        ("shard-00001.tar", cut, r"shard-00001.tar is cut short: 200 of [\d,]+ bytes are there"),
        ("shard-00001.tar", make_unreadable, "shard-00001.tar .*"),
        ("shard-00001.arrow", remove, "shard-00001.arrow cannot be read: No such file"),
        ("shard-00001.arrow", cut, r"shard-00001.arrow is cut short: 200 of [\d,]+ bytes are there"),
        ("shard-00001.arrow", make_unreadable, "shard-00001.arrow .*"),
    ],
)
def test_storage_that_is_lost_in_mid_epoch_raises_whatever_the_policy(
    tmp_path: Path, kind: str, name: str, harm: Callable[[Path], None], words: str
):
    pack = write_images(tmp_path / "pack", count=40)
    told: list[BadSample] = []
    policy = "raise" if kind == "raise" else policy_of(kind, told)
    with Loader(pack, 1, shuffle=False, prefetch=1, on_bad_sample=policy, output="numpy") as loader:
        iterator = iter(loader)
        next(iterator)
        harm(pack / name)
        with pytest.raises(StorageError, match=words) as caught:
            list(iterator)
        assert loader.state_dict()["samples"] == 20, "what lies before it was given"
        loader.set_epoch(1)
        with pytest.raises(StorageError, match=words):
            list(loader)
    assert told == []
    assert "feedrate verify" in (caught.value.hint or "")


def test_text_and_keys_on_lost_storage_raise_too(tmp_path: Path):
    pack = write_everything(tmp_path / "pack")
    for fields, name in ((("caption",), "shard-00001.tar"), (("key",), "shard-00001.arrow")):
        with Loader(pack, 1, shuffle=False, fields=fields, prefetch=1, on_bad_sample="skip") as loader:
            iterator = iter(loader)
            next(iterator)
            kept = (pack / name).read_bytes()
            cut(pack / name)
            with pytest.raises(StorageError, match=f"{name} is cut short: 200 of"):
                list(iterator)
        (pack / name).write_bytes(kept)


def test_with_a_cache_lost_storage_raises_for_what_is_not_cached(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=40)
    options = {"shuffle": False, "prefetch": 1, "on_bad_sample": "skip", "output": "numpy"}
    with Cache(ram="1GB") as cache, Loader(pack, 1, cache=cache, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        remove(pack / "shard-00001.tar")
        with pytest.raises(StorageError, match=r"shard-00001\.tar cannot be read"):
            list(iterator)


def test_a_row_that_points_behind_the_shard_is_a_bad_sample(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=20, shards=1)

    def lie(part: Part) -> None:
        part.rows["image.offset"][3] = 10**9

    rewrite_index(pack, lie)
    keys, bad, _ = load(pack, on_bad_sample="skip")
    assert (len(keys), bad) == (19, 1)


def test_a_damaged_jpeg_with_a_right_checksum_is_named(tmp_path: Path):
    file = encode_image(make_image(1, 64, 64), quality=90)
    samples = [{"image": file, "label": 0} for _ in range(4)]
    samples[2] = {"image": file[: len(file) // 2], "label": 2}  # it was packed in this state
    pack = write_pack(tmp_path / "pack", (IMAGE, LABEL), samples, shards=1)
    with pytest.raises(BadSample, match="sample-00002"), Loader(pack, image=Resize(64)) as loader:
        list(loader)


def test_values_that_do_not_parse_are_bad_samples(tmp_path: Path):
    fields = (Field("meta", Kind.JSON), Field("points", Kind.ARRAY), Field("caption", Kind.TEXT))
    from support.packs import encode_array

    good = {"meta": b"{}", "points": encode_array(np.zeros(2)), "caption": b"x"}
    spoiled = [{**good, "meta": b"{"}, {**good, "points": b"no"}, {**good, "caption": b"\xff"}, *[good] * 27]
    pack = write_pack(tmp_path / "pack", fields, spoiled, shards=1)
    told: list[BadSample] = []
    with Loader(
        pack, fields=("meta", "points", "caption"), shuffle=False, on_bad_sample=told.append
    ) as loader:
        ((meta, points, caption),) = list(loader)
    assert (meta, len(points), caption) == ([{}] * 27, 27, ["x"] * 27)
    assert [b.field for b in told] == ["meta", "points", "caption"]


def test_an_array_that_claims_more_than_it_holds_is_a_bad_sample(tmp_path: Path):
    from support.packs import encode_array

    good = {"points": encode_array(np.zeros(2))}
    lie = {"points": good["points"].replace(b"(2,)", b"(%d,)" % 10**15)[: len(good["points"])]}
    pack = write_pack(tmp_path / "pack", (Field("points", Kind.ARRAY),), [lie, *[good] * 19], shards=1)
    with Loader(pack, on_bad_sample="skip", output="numpy") as loader:
        ((points,),) = list(loader)
    assert len(points) == 19


def test_samples_too_small_for_the_crop_can_be_skipped(tmp_path: Path):
    sizes = [(20, 20), (10, 30), (30, 10), *[(16, 16)] * 17]
    samples = [{"image": encode_image(make_image(i, *size)), "label": i % 3} for i, size in enumerate(sizes)]
    pack = write_pack(tmp_path / "pack", (IMAGE, LABEL), samples)
    keys, bad, _ = load(pack, image=RandomCrop(16), on_bad_sample="skip")
    assert keys == [f"sample-{i:05d}" for i in (0, *range(3, 20))]
    assert bad == 2


def test_skipping_keeps_all_fields_together(tmp_path: Path):
    pack = write_everything(tmp_path / "pack")
    spoil_sample(pack, 5)
    fields = ("number", "image", "mask", "caption", "boxes", "points")
    with Loader(pack, fields=fields, image=Resize(8), on_bad_sample="skip", output="numpy") as loader:
        ((number, image, mask, caption, boxes, points),) = list(loader)
    assert 5 not in number
    assert len(number) == len(image) == len(mask) == len(caption) == len(boxes) == len(points) == 11
    assert caption == [f"image číslo {n}" for n in number]
    assert (points[:, 0, 0] == number).all()


def test_with_a_transform_a_bad_sample_is_left_out_before_it(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=11)
    spoil_sample(pack, 0)
    fields = ("key", "image")
    with Loader(pack, fields=fields, transform=lambda s: s["key"], on_bad_sample="skip") as loader:
        (keys,) = list(loader)
    assert sorted(keys) == [f"sample-{i:05d}" for i in range(1, 11)]


# Loads small images, then a large one with a few MB to spare.
SHORT_OF_MEMORY = """
import resource, sys
from feedrate import Dataset, Loader, Resize
from PIL import Image, JpegImagePlugin, PngImagePlugin

pack, (spare, small, large) = sys.argv[1], map(int, sys.argv[2:])
options = {"image": Resize(8), "output": "numpy"}
loader = Loader(pack, 1, order=[small] * 9 + [large], prefetch=1, threads=1, on_bad_sample="skip", **options)
batches = iter(loader)
next(batches)
used_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (spare << 20), resource.RLIM_INFINITY))
try:
    print(len(list(batches)), "more batches and", loader.stats().bad_samples, "bad")
except BaseException as error:
    print(type(error).__name__, error)
try:
    Dataset(pack, **options)[large]
except BaseException as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux keeps to a limit on memory")
@pytest.mark.parametrize(
    ("kind", "spare"),
    [("raw", 12), ("png", 12), ("progressive", 12), ("progressive", 40)],
    ids=["kernel", "Pillow", "Pillow's progressive", "libjpeg, which calls it broken data"],
)
def test_too_little_memory_is_neither_damage_nor_skipped(tmp_path: Path, kind: str, spare: int):
    from feedrate import PackOptions, Recode, pack

    options: dict[str, Any] = {"progressive": True, "subsampling": 0} if kind == "progressive" else {}
    suffix = "jpg" if kind == "progressive" else "png"
    for name, side in (("a", 64), ("b", 2400)):
        (tmp_path / "s").mkdir(exist_ok=True)
        Image.new("RGB", (side, side), "teal").save(tmp_path / "s" / f"{name}.{suffix}", **options)
    pack(tmp_path / "s", tmp_path / "p", PackOptions(workers=1, recode=Recode(raw=kind == "raw")))
    order = [str(position) for position in np.argsort(Pack(tmp_path / "p").column("number"))]
    words = [sys.executable, "-c", SHORT_OF_MEMORY, str(tmp_path / "p"), str(spare), *order]
    # One arena: each thread's own would come with 64 MB that count already.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    ran = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["MemoryError"] * 2, (
        ran.stdout + ran.stderr
    )
    assert "out of memory" in ran.stdout
