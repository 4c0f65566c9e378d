# SPDX-License-Identifier: Apache-2.0
"""A loader with a cache gives what one without gives, bit for bit; it hits as often as samples are cached."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from feedrate import (
    Cache,
    CenterCrop,
    Loader,
    PackOptions,
    RandomCrop,
    RandomResizedCrop,
    Recode,
    Resize,
    View,
    pack,
)
from feedrate.errors import BadSample, UsageError
from feedrate.format.fields import Field, Kind
from feedrate.format.raw import dump_bare_table, measure_table
from feedrate.loader import cached_pixels
from support.examples import examples
from support.packs import IMAGE, LABEL, encode_image, make_image, write_everything, write_images, write_pack

EVERYTHING = ("image", "small", "mask", "boxes", "label", "number", View("image", size=5))


def load(folder: Path, epochs: int = 2, **options: Any) -> list[list[Any]]:
    """Return every value of every batch of some epochs."""
    options = {"batch_size": 5, "output": "numpy", "threads": 2, **options}
    with Loader(folder, **options) as loader:
        return [list(loader) for _ in range(epochs)]


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        np.testing.assert_array_equal(ours, theirs)


def save(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def write_mixed(folder: Path) -> Path:
    """Write images of all kinds: the kernel decodes some, Pillow the others."""
    files = []
    for i in range(4):
        pixels = make_image(i, 37 + 5 * i, 50 - 3 * i)
        image, gray = Image.fromarray(pixels), pixels[..., 0]
        files += [
            encode_image(pixels, quality=90),
            encode_image(pixels, progressive=True),
            encode_image(gray),
        ]
        files += [encode_image(pixels, "PNG"), encode_image(gray, "PNG"), encode_image(pixels, "WEBP")]
        files += [save(image.convert("CMYK"), "JPEG"), save(image.convert("P"), "PNG")]
        files += [save(image.convert("RGBA"), "PNG")]
    return write_pack(
        folder, (IMAGE, LABEL), [{"image": file, "label": i % 3} for i, file in enumerate(files)]
    )


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    return write_everything(tmp_path / "pack")


@pytest.mark.parametrize("tier", ["ram", "disk", "both", "little"])
@pytest.mark.parametrize(
    "image",
    [
        RandomResizedCrop(12),
        RandomCrop(20),
        CenterCrop((9, 30)),
        CenterCrop(16, resize=20),
        Resize((7, 50)),
        Resize(99),
    ],
    ids=lambda image: f"{type(image).__name__}-{image.out_size}",
)
def test_pixels_masks_and_boxes_are_those_without_a_cache(
    everything: Path, tmp_path: Path, image: Any, tier: str
) -> None:
    options: dict[str, dict[str, Any]] = {
        "ram": {"ram": "1GB"}, "disk": {"ram": 0, "disk": f"{tmp_path}:1GB"},
        "both": {"ram": 50_000, "disk": tmp_path}, "little": {"ram": 20_000},
    }  # fmt: skip
    wanted = {"image": image, "flip": True, "fields": EVERYTHING, "seed": 3}
    plain = load(everything, **wanted)
    with Cache(**options[tier]) as cache:
        assert_same(load(everything, **wanted, cache=cache), plain)


@pytest.mark.parametrize("is_old_pillow", [False, True])
def test_all_kinds_of_image_files_come_out_the_same(tmp_path: Path, monkeypatch, is_old_pillow: bool) -> None:
    folder = write_mixed(tmp_path / "pack")
    if is_old_pillow:
        monkeypatch.setattr(cached_pixels.pillow, "resizes_as_kernel", lambda: False)
    wanted = {"image": RandomResizedCrop(14), "flip": True, "fields": ("image", "number")}
    with Cache(ram="1GB") as cache, Loader(folder, 5, output="numpy", cache=cache, **wanted) as loader:
        epochs = [list(loader) for _ in range(2)]
        if not is_old_pillow:
            assert loader.stats().by_pillow == 28  # in the first epoch alone
        assert loader.stats().cache.hit_rate == 1
    assert_same(epochs, load(folder, **wanted))


def test_whole_images_of_one_size_come_out_the_same(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack")
    with Cache(ram="1GB") as cache:
        assert_same(load(folder, flip=True, cache=cache), load(folder, flip=True))


@pytest.mark.parametrize(
    "options",
    [{"weights": "balanced"}, {"split": (0.25, 0.75)}, {"order": [3, 3, 3, 1, 0, 1]}, {"shuffle": False},
     {"order": "windowed"}, {"pad": True, "rank": 1, "world_size": 3}],
    ids=str,
)  # fmt: skip
def test_every_order_comes_out_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = write_images(tmp_path / "pack", side=None)
    wanted = {"image": RandomResizedCrop(10), "flip": 0.3, "fields": ("image", "key"), **options}
    with Cache(ram="1GB") as cache:
        assert_same(load(folder, 3, **wanted, cache=cache), load(folder, 3, **wanted))


def test_a_loader_goes_on_from_a_state_with_a_cache_or_without(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack", side=None)
    options = {"image": RandomResizedCrop(10), "output": "numpy", "batch_size": 3}
    with Cache(ram="1GB") as cache, Loader(folder, cache=cache, **options) as loader:
        list(loader)
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = list(iterator)
    with Loader(folder, **options) as plain:
        plain.load_state_dict(state)
        assert_same(list(plain), rest)
    with Cache(ram="1GB") as cache, Loader(folder, cache=cache, **options) as other:
        other.load_state_dict(state)
        assert_same(list(other), rest)


@settings(max_examples=examples(10))
@given(limit=st.integers(0, 30), epochs=st.integers(2, 3), batch_size=st.integers(1, 9))
def test_the_hit_rate_is_the_cached_share(tmp_path_factory, limit: int, epochs: int, batch_size: int) -> None:
    folder = write_images(tmp_path_factory.mktemp("packs") / "pack", count=25)
    size = 16 * 16 * 3 + 28  # pixels, and a table with one checksum
    with (
        Cache(ram=limit * size + 1) as cache,
        Loader(folder, batch_size, cache=cache, output="numpy") as loader,
    ):
        for _ in range(epochs):
            list(loader)
        stats = loader.stats().cache
    assert stats.cached_share == min(limit, 25) / 25
    assert stats.hit_rate == stats.cached_share
    assert stats.hits + stats.misses == 25


def test_stats_tell_tiers_and_how_much_larger_samples_became(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack", count=10)
    size = 16 * 16 * 3 + 28
    with (
        Cache(ram=4 * size, disk=f"{tmp_path}:{3 * size}") as cache,
        Loader(folder, 5, cache=cache, output="numpy") as loader,
    ):
        assert loader.stats().cache.cached_share == 0
        assert loader.stats().cache.growth is None
        for _ in range(2):
            list(loader)
        stats = loader.stats().cache
    assert [(tier.kind, tier.samples, tier.size_bytes, tier.hits) for tier in stats.tiers] == [
        ("ram", 4, 4 * size, 4), ("disk", 3, 3 * size, 3)]  # fmt: skip
    stored = sum(tier.source_bytes for tier in stats.tiers)
    assert stats.growth == 7 * size / stored
    assert (stats.misses, stats.damaged, stats.returned_bytes) == (3, 0, 0)


def test_a_split_counts_its_own_samples(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack")
    with Cache(ram="1GB") as cache:
        load(folder, 1, cache=cache, split=(0, 0.5))
        with Loader(folder, cache=cache, split=(0.5, 1), output="numpy") as other:
            assert other.stats().cache.cached_share == 0
        with Loader(folder, cache=cache, split=(0, 0.5), output="numpy") as same:
            assert same.stats().cache.cached_share == 1


def test_gray_images_take_a_third_of_the_room(tmp_path: Path) -> None:
    gray = make_image(1, 40, 30)[..., 0]
    files = [encode_image(gray), encode_image(np.stack([gray] * 3, axis=-1), "PNG")]
    folder = write_pack(tmp_path / "pack", (IMAGE, LABEL), [{"image": f, "label": 0} for f in files])
    with (
        Cache(ram="1GB") as cache,
        Loader(folder, cache=cache, image=RandomCrop(8), output="numpy") as loader,
    ):
        list(loader)
        assert loader.stats().cache.tiers[0].size_bytes == 2 * (40 * 30 + 28)


def test_of_an_operation_that_is_not_random_the_result_is_kept(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack", side=None)
    with Cache(ram="1GB") as cache, Loader(folder, cache=cache, image=Resize(8), output="numpy") as loader:
        list(loader)
        assert loader.stats().cache.tiers[0].size_bytes == 20 * (8 * 8 * 3 + 28)


def test_raw_pixels_are_left_where_they_are(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "p", PackOptions(workers=1, recode=Recode(raw=True)))
    with (
        Cache(ram="1GB") as cache,
        Loader(tmp_path / "p", cache=cache, image=Resize(8), output="numpy") as loader,
    ):
        list(loader)
        assert loader.stats().cache.samples == 0


def test_bad_samples_are_the_same_ones(tmp_path: Path) -> None:
    files = [encode_image(make_image(i, 40, 40), quality=90) for i in range(30)]
    files[2] = files[2][: len(files[2]) * 2 // 3] + b"\xff\xd9"  # damaged below: some crops do not show it
    files[4] = encode_image(make_image(4, 8, 8))  # too small
    folder = write_pack(tmp_path / "pack", (IMAGE, LABEL), [{"image": f, "label": 0} for f in files])
    data = bytearray((folder / "shard-00001.tar").read_bytes())
    data[-20] ^= 1  # the last one is not what was packed
    (folder / "shard-00001.tar").write_bytes(data)

    def run(cache: Cache | None) -> tuple[list[Any], list[str]]:
        bad: list[str] = []
        options = {
            "image": RandomCrop(16),
            "fields": ("image", "key"),
            "on_bad_sample": lambda b: bad.append(str(b)),
        }
        return load(folder, 4, cache=cache, **options), bad

    plain, bad = run(None)
    with Cache(ram="1GB") as cache:
        assert_same(run(cache), (plain, bad))
        with pytest.raises(BadSample, match="sample-000"):
            load(folder, image=RandomCrop(16), cache=cache)
    assert bad


def test_masks_beyond_8_bits_are_bad_only_where_a_crop_shows_it(tmp_path: Path) -> None:
    values = np.zeros((40, 40), np.uint16)
    values[:5, :5] = 1000
    fields = (Field("image", Kind.IMAGE), Field("mask", Kind.MASK))
    image = encode_image(make_image(0, 40, 40))
    folder = write_pack(
        tmp_path / "pack", fields, [{"image": image, "mask": encode_image(values, "PNG")}] * 20
    )
    options = {"image": RandomCrop(20), "fields": ("image", "mask", "key"), "on_bad_sample": "skip"}
    with Cache(ram="1GB") as cache:
        assert_same(load(folder, 4, cache=cache, **options), load(folder, 4, **options))


@pytest.mark.parametrize("damage", ["flip", "cut", "zero"])
def test_damage_on_the_disk_never_reaches_a_batch(tmp_path: Path, damage: str) -> None:
    folder = write_everything(tmp_path / "pack")
    options = {"image": RandomResizedCrop(16), "fields": ("image", "mask", "number"), "batch_size": 4}
    plain = load(folder, 3, **options)
    with (
        Cache(ram=0, disk=tmp_path) as cache,
        Loader(folder, output="numpy", cache=cache, **options) as loader,
    ):
        epochs = [list(loader)]
        (store,) = cache._stores.values()
        spoil(store.opened.paths[0], damage)
        with pytest.warns(RuntimeWarning, match="not what was put there"):
            epochs.append(list(loader))
        assert loader.stats().cache.damaged > 0
        epochs.append(list(loader))
    assert_same(epochs, plain)


def test_a_disk_folder_that_is_deleted_under_the_job_takes_nothing_away(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack")
    (tmp_path / "scratch").mkdir()
    with (
        Cache(ram=0, disk=tmp_path / "scratch") as cache,
        Loader(folder, output="numpy", cache=cache) as loader,
    ):
        epochs = [list(loader)]
        (tmp_path / "scratch").rmdir()
        epochs.append(list(loader))
        assert loader.stats().cache.hit_rate == 1
    assert_same(epochs, load(folder, batch_size=256))


def test_a_small_disk_that_fills_up_ends_the_filling_alone(
    small_disk: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("feedrate.cache.limits.describe_storage", lambda _: SimpleNamespace(is_memory=False))
    folder = write_images(tmp_path / "pack", count=120)
    with Cache(ram=0, disk=small_disk) as cache, Loader(folder, 8, output="numpy", cache=cache) as loader:
        epochs = [list(loader) for _ in range(2)]
        stats = loader.stats().cache
    assert 0.2 < stats.cached_share < 0.8
    assert stats.hit_rate == stats.cached_share
    assert_same(epochs, load(folder, batch_size=8))


def spoil(path: str, damage: str) -> None:
    with open(path, "r+b") as file:
        data = np.frombuffer(file.read(), np.uint8).copy()
        if damage == "cut":
            file.truncate(len(data) // 3)
            return
        data[:: 97 if damage == "flip" else 1] ^= 16 if damage == "flip" else data
        file.seek(0)
        file.write(data.tobytes())


def test_a_flipped_bit_anywhere_is_noticed_or_not_read(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack", count=4)
    plain = load(folder, 1, shuffle=False)
    with Cache(ram="1MB") as cache:
        load(folder, 1, cache=cache, shuffle=False)
        (store,) = cache._stores.values()
        length = os.stat(store.opened.paths[0]).st_size
        for at in range(0, length, 61):
            with open(store.opened.paths[0], "r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ (1 << at % 8)]))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert_same(load(folder, 1, cache=cache, shuffle=False), plain)


def test_ranks_share_one_cache(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack", count=24)
    with Cache(ram="1GB") as first, Cache(ram="1GB") as second:
        for rank, cache in enumerate((first, second)):
            load(folder, 1, cache=cache, rank=rank, world_size=2)
        with Loader(folder, cache=first, output="numpy") as loader:
            assert loader.stats().cache.cached_share == 1
            list(loader)
            assert loader.stats().cache.hit_rate == 1


def test_a_fork_uses_the_cache_of_its_parent(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack")
    with Cache(ram="1GB") as cache, Loader(folder, 7, output="numpy", cache=cache) as loader:
        list(loader)
        child = os.fork()
        if not child:
            list(loader)
            os._exit(0 if loader.stats().cache.hit_rate == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_cache_outlives_its_loaders(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack")
    with Cache(ram="1GB") as cache:
        load(folder, 1, cache=cache)
        with Loader(folder, cache=cache, output="numpy") as loader:
            list(loader)
            assert loader.stats().cache.hit_rate == 1


@pytest.mark.parametrize("is_closed", [True, False])
def test_nothing_of_a_cache_is_left_in_the_process(tmp_path: Path, is_closed: bool) -> None:
    folder = write_images(tmp_path / "pack")

    def use() -> None:
        cache = Cache(ram="1MB", disk=tmp_path)
        load(folder, cache=cache)
        if is_closed:
            cache.close()

    def find() -> tuple[set[threading.Thread], int]:
        gc.collect()
        return set(threading.enumerate()), len(os.listdir("/proc/self/fd"))

    use()
    threads, files = find()
    use()
    now = find()
    assert now[0] <= threads  # one that another test left may have ended meanwhile
    assert now[1] <= files


def test_auto_takes_what_the_limit_leaves(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack")
    with Cache() as cache, Loader(folder, cache=cache, output="numpy") as loader:
        list(loader)
        assert loader.stats().cache.cached_share == 1
        assert loader.stats().cache.tiers[0].limit_bytes is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ram": "8 gigs"}, "'8 gigs' is not a size"),
        ({"ram": -1}, 'ram must be "auto", a size such as "8GB" or a number of bytes, got -1'),
        ({"ram": 0}, "a cache needs memory or a disk, got ram=0 and disk=None"),
        ({"ram": 0.5}, "ram must be"),
        ({"disk": "/nowhere/at/all:1GB"}, "the cache's disk /nowhere/at/all is not a folder"),
        ({"disk": "/dev/shm:1GB"}, r"the cache's disk /dev/shm is memory \(tmpfs\)"),
        ({"disk": "/:much"}, "'much' is not a size"),
        ({"disk": 5}, "disk must be a folder and a size"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Cache(**options)


def test_a_loader_wants_a_cache_that_is_one(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack")
    with pytest.raises(UsageError, match=r"cache must be a feedrate\.Cache, got 'auto'"):
        Loader(folder, cache="auto", output="numpy")  # type: ignore[arg-type]
    cache = Cache(ram="1MB")
    cache.close()
    with pytest.raises(UsageError, match="closed"):
        Loader(folder, cache=cache, output="numpy")


def test_a_loader_whose_cache_is_closed_says_so(tmp_path: Path) -> None:
    cache = Cache(ram="1MB")
    with Loader(write_images(tmp_path / "pack"), cache=cache, output="numpy") as loader:
        list(loader)
        cache.close()
        with pytest.raises(UsageError, match="this cache is closed"):
            list(loader)


def test_without_a_cache_nothing_of_it_is_imported() -> None:
    check = "import feedrate.loader.loader, sys; sys.exit('feedrate.cache.store' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@given(st.integers(1, 5000), st.integers(1, 90), st.sampled_from([1, 3]), st.sampled_from([64, 8192, 32768]))
def test_the_size_of_a_table_is_known_beforehand(width: int, height: int, channels: int, block: int) -> None:
    pixels = np.zeros((height, width) if channels == 1 else (height, width, channels), np.uint8)
    assert len(dump_bare_table(pixels, block)) == measure_table(width, height, channels, block)
