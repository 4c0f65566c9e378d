# SPDX-License-Identifier: Apache-2.0
"""`Loader(device="cuda", cache=Cache(gpu=...))` without a GPU: the kernels run on the CPU (fake_gpu)."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
from feedrate.errors import BadSample, GpuError, UsageError
from feedrate.format.fields import Field, Kind
from feedrate.kernel import pillow
from feedrate.loader.cache import GpuBudget
from feedrate.loader.device import gpu_decode, gpu_tier
from support.damage import flip_byte
from support.fake_gpu import FakeGpu
from support.packs import (
    IMAGE,
    LABEL,
    encode_image,
    encode_mixed,
    make_image,
    make_noise,
    write_everything,
    write_images,
    write_mixed,
    write_pack,
)
from support.range_server import serve

torch = pytest.importorskip("torch")
OPTIONS: dict[str, Any] = {"batch_size": 8, "image": RandomResizedCrop(24), "flip": True, "seed": 3}
COUNT = 42  # of `mixed`: 28 for the GPU


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    return write_mixed(tmp_path / "mixed", COUNT)


def load(folder: Path | str, cache: Cache | None, epochs: int = 2, **options: Any) -> tuple[list[Any], Any]:
    with Loader(folder, device="cuda", cache=cache, **{**OPTIONS, **options}) as loader:
        batches = [batch for _ in range(epochs) for batch in loader]
        return batches, loader.stats()


def assert_equal(got: Any, wanted: Any) -> None:
    if isinstance(got, torch.Tensor):
        assert torch.equal(got, wanted)
    elif isinstance(got, (list, tuple)):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert_equal(one, other)
    else:
        assert got == wanted


def assert_same_as_without(
    folder: Path, cache: Cache, epochs: int = 2, decode: str = "cpu", **options: Any
) -> Any:
    """Compare batches with those of no cache; return the stats."""
    got, stats = load(folder, cache, epochs, decode=decode, **options)
    assert_equal(got, load(folder, None, epochs, decode="cpu", **options)[0])
    return stats


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("decode", ["auto", "cpu", "gpu"])
def test_batches_are_those_without_a_cache_and_all_hits_from_the_second_epoch_on(
    mixed: Path, decode: str
) -> None:
    stats = assert_same_as_without(mixed, Cache(gpu="1GB"), 3, decode, threads=2)
    (tier,) = stats.cache.tiers
    assert (tier.kind, tier.samples, tier.hits, stats.cache.misses) == ("gpu", COUNT, COUNT, 0)
    assert (stats.cache.cached_share, stats.cache.hit_rate) == (1, 1)
    assert stats.by_gpu == (0 if decode == "cpu" else 28)


@pytest.mark.usefixtures("gpu")
def test_the_first_epoch_misses_and_counts_a_byte_per_channel(mixed: Path) -> None:
    _, stats = load(mixed, Cache(gpu="1GB"), epochs=1, decode="gpu")
    (tier,) = stats.cache.tiers
    sizes = [make_noise(i, 70 + 17 * i % 90, 60 + 29 * i % 80).shape for i in range(COUNT)]
    assert tier.size_bytes == sum(h * w * (1 if i % 6 == 3 else 3) for i, (h, w, _) in enumerate(sizes))
    assert tier.source_bytes == sum(len(encode_mixed(i)) for i in range(COUNT))
    assert (tier.hits, stats.cache.misses, tier.limit_bytes) == (0, COUNT, 10**9)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("decode", ["cpu", "gpu"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "box", "hamming", "nearest"])
def test_every_filter_gives_the_pixels_of_the_cpu(mixed: Path, decode: str, interpolation: Any) -> None:
    operation = RandomResizedCrop((20, 31), interpolation=interpolation)
    stats = assert_same_as_without(mixed, Cache(gpu="1GB"), 2, decode, image=operation)
    assert stats.cache.hit_rate == 1


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "options",
    [
        {"image": CenterCrop(16, resize=40)},
        {"image": Resize(33)},
        {"image": RandomCrop(20)},
        {"image": RandomResizedCrop(16, interpolation=("bilinear", "lanczos"))},
        {"mode": "L"},
        {"fields": ["image", "label", "key", "number"]},
        {"fields": [View("image", size=12), "label", View("image", size=(9, 30), name="wide")]},
        {"dtype": torch.float32, "normalize": "imagenet"},
        {"weights": "balanced"},
        {"rank": 1, "world_size": 3, "pad": True},
        {"split": (0.2, 0.7)},
    ],
    ids=str,
)
def test_whatever_is_asked_for_the_batches_are_those_without_a_cache(
    mixed: Path, options: dict[str, Any]
) -> None:
    for decode in ("cpu", "gpu"):
        stats = assert_same_as_without(mixed, Cache(gpu="1GB"), 3, decode, **options)
        assert stats.cache.hits > 0


def test_hits_read_no_image_decode_nothing_and_wait_for_nothing(gpu: FakeGpu, mixed: Path) -> None:
    # So many are prefetched that the loop is never too far ahead of its GPU.
    options = {"device": "cuda", "decode": "gpu", "cache": Cache(gpu="1GB"), "prefetch": 12}
    with Loader(mixed, **options, **OPTIONS) as loader:
        list(loader)
        before, gpu.launches, gpu.waits = loader.stats(), [], 0
        list(loader)
        stats = loader.stats()
    assert set(gpu.launches) == {"prepare_crops", "take_pixels", "resize_first", "resize_last"}
    assert gpu.waits == 0
    assert (stats.bytes_read, stats.by_gpu, stats.by_pillow) == (
        before.bytes_read,
        before.by_gpu,
        before.by_pillow,
    )


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("decode", ["auto", "cpu", "gpu"])
def test_what_does_not_fit_comes_as_without_a_cache_in_the_same_batch(tmp_path: Path, decode: str) -> None:
    folder = write_images(tmp_path / "pack", 30, side=40)
    cache = Cache(gpu=12 * 40 * 40 * 3 + 100)
    stats = assert_same_as_without(folder, cache, 4, decode)
    (tier,) = stats.cache.tiers
    assert (tier.samples, tier.hits, stats.cache.misses) == (12, 12, 18)
    assert stats.cache.cached_share == stats.cache.hit_rate == 12 / 30


@pytest.mark.usefixtures("gpu")
def test_what_is_kept_is_the_same_in_every_epoch_after_the_first(mixed: Path) -> None:
    with Loader(mixed, device="cuda", decode="gpu", cache=Cache(gpu="300KB"), **OPTIONS) as loader:
        list(loader)
        first = loader.stats().cache.tiers[0].samples
        for _ in range(3):
            list(loader)
            stats = loader.stats().cache
            assert (stats.tiers[0].samples, stats.hits, stats.misses) == (first, first, COUNT - first)
    assert 0 < first < COUNT


@pytest.mark.usefixtures("gpu")
def test_an_image_larger_than_the_budget_does_not_end_the_filling(tmp_path: Path) -> None:
    files = [encode_image(make_noise(i, *((200, 200) if i == 0 else (40, 40)))) for i in range(20)]
    folder = write_pack(tmp_path / "pack", (IMAGE, LABEL), [{"image": f, "label": 0} for f in files])
    stats = assert_same_as_without(folder, Cache(gpu=19 * 4800), 2, "gpu", shuffle=False)
    assert stats.cache.hits == 19


@pytest.mark.usefixtures("gpu")
def test_memory_is_taken_in_chunks_as_it_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_tier, "CHUNK_BYTES", 5 * 40 * 40 * 3 + 100)  # 5 images, and a rest
    folder = write_images(tmp_path / "pack", 30, side=40)
    options = {**OPTIONS, "batch_size": 4, "prefetch": 1, "decode": "gpu"}
    with Loader(folder, device="cuda", cache=Cache(gpu="1MB"), **options) as loader:
        batches = iter(loader)
        next(batches)
        tier = loader._resources.tier
        assert tier is not None
        assert tier.memory_bytes < 0.7 * 1_000_000
        assert len(list(batches)) == 7
        assert tier.memory_bytes == 6 * gpu_tier.CHUNK_BYTES
        list(loader)
        assert loader.stats().cache.hit_rate == 1


@pytest.mark.usefixtures("gpu")
def test_nothing_else_than_the_budget_is_taken(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_tier, "CHUNK_BYTES", 100_000)
    for decode in ("cpu", "gpu"):
        with Loader(mixed, device="cuda", decode=decode, cache=Cache(gpu="250KB"), **OPTIONS) as loader:
            list(loader), list(loader)
            tier = loader._resources.tier
            assert tier is not None
            assert 200_000 <= tier.memory_bytes <= 250_000
            stats = loader.stats().cache
            assert 150_000 < stats.tiers[0].size_bytes <= 250_000
            assert stats.hits == stats.tiers[0].samples


@pytest.mark.usefixtures("gpu")
def test_two_loaders_of_one_cache_share_its_budget_and_give_it_back(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack", 30, side=40)
    cache = Cache(gpu=20 * 40 * 40 * 3)
    assert cache.gpu is not None
    options = {**OPTIONS, "device": "cuda", "cache": cache}
    with (
        Loader(folder, split=(0, 0.5), **options) as first,
        Loader(folder, split=(0.5, 1), **options) as second,
    ):
        for loader in (first, second):
            list(loader), list(loader)
        # The first took all of it.
        assert (first.stats().cache.hits, second.stats().cache.hits) == (15, 0)
        assert cache.gpu.left == 0
    assert cache.gpu.left == cache.gpu.limit_bytes
    _, stats = load(folder, cache)
    assert stats.cache.hits == 20


@pytest.mark.usefixtures("gpu")
def test_close_gives_the_memory_back(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    loader = Loader(mixed, device="cuda", cache=Cache(gpu="1MB"), **OPTIONS)
    kept = next(iter(loader))
    tier = loader._resources.tier
    assert tier is not None
    assert tier.memory_bytes == 1_000_000
    loader.close()
    loader.close()
    assert (tier.memory_bytes, emptied) == (0, [True])
    assert_equal(kept, load(mixed, None, 1)[0][0])


def test_a_budget_that_does_not_fit_is_told_with_what_would(gpu: FakeGpu, mixed: Path) -> None:
    gpu.free_bytes = 3_000_000_000
    with pytest.raises(
        UsageError, match=r"gpu='2.5GB'\) does not fit: cpu has 3.00 GB free, .* 1.00 GB"
    ) as caught:
        load(mixed, Cache(gpu="2.5GB"))
    assert 'gpu="2000MB"' in str(caught.value.hint)
    load(mixed, Cache(gpu="2000MB"))


@pytest.mark.parametrize("decode", ["cpu", "gpu"])
def test_what_is_free_is_taken_up_to_a_reserve_and_then_that_is_said(
    gpu: FakeGpu, mixed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, decode: str
) -> None:
    monkeypatch.setattr(gpu_tier, "CHUNK_BYTES", 100_000)
    taken = 0
    real = torch.empty

    def empty(shape: Any, *args: Any, **options: Any) -> Any:
        nonlocal taken
        taken += shape if shape == 100_000 else 0
        gpu.free_bytes = 1_250_000_000 - 1000 * taken
        return real(shape, *args, **options)

    monkeypatch.setattr(torch, "empty", empty)
    gpu.free_bytes = 1_250_000_000
    with caplog.at_level(logging.WARNING, "feedrate"):
        stats = assert_same_as_without(mixed, Cache(gpu="auto"), 3, decode)
    assert taken == 300_000
    assert stats.cache.tiers[0].limit_bytes is None
    assert 0 < stats.cache.hits == stats.cache.tiers[0].samples < COUNT
    (said,) = [r.getMessage() for r in caplog.records if "takes no more" in r.getMessage()]
    assert "300 KB" in said
    assert "1.00 GB stay free for the model" in said


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("decode", ["cpu", "gpu"])
def test_no_memory_while_filling_freezes_the_tier_with_one_sentence(
    mixed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, decode: str
) -> None:
    monkeypatch.setattr(gpu_tier, "CHUNK_BYTES", 100_001)
    real, chunks = torch.empty, 0

    def empty(shape: Any, *args: Any, **options: Any) -> Any:
        nonlocal chunks
        chunks += shape == 100_001
        if shape == 100_001 and chunks > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more lines")
        return real(shape, *args, **options)

    monkeypatch.setattr(torch, "empty", empty)
    with caplog.at_level(logging.WARNING, "feedrate"):
        stats = assert_same_as_without(mixed, Cache(gpu="10MB"), 3, decode)
    assert chunks == 3
    assert 0 < stats.cache.hits == stats.cache.tiers[0].samples < COUNT
    (said,) = [r.getMessage() for r in caplog.records if "takes no more" in r.getMessage()]
    assert "CUDA out of memory" in said
    assert "more lines" not in said


@pytest.mark.usefixtures("gpu")
def test_no_memory_to_make_crops_with_is_no_error(
    mixed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, calls = gpu_decode.GpuDecoder._make_room, 0

    def make_room(decoder: Any, needed: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        real(decoder, needed)

    monkeypatch.setattr(gpu_decode.GpuDecoder, "_make_room", make_room)
    with caplog.at_level(logging.WARNING, "feedrate"):
        assert_same_as_without(mixed, Cache(gpu="10MB"), 2, "cpu")
    (said,) = [r.getMessage() for r in caplog.records]
    assert "no memory left to work with (CUDA out of memory" in said


def test_gpu_needs_a_gpu_to_send_batches_to(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack")
    with pytest.raises(UsageError, match=r"cache=Cache\(gpu='1GB'\) keeps samples on the GPU") as caught:
        Loader(folder, cache=Cache(gpu="1GB"))
    assert 'device="cuda"' in str(caught.value.hint)


@pytest.mark.parametrize("size", [-1, True, 2.5, None, "much"])
def test_what_is_no_size_is_named(size: Any) -> None:
    with pytest.raises(UsageError, match=r"gpu must be|much"):
        Cache(gpu=size)


def test_a_cache_on_the_gpu_has_no_memory_of_the_host_unless_it_is_asked_for() -> None:
    assert [tier.kind for tier in Cache().tiers] == ["ram"]
    assert Cache(gpu="auto").tiers == ()
    assert [tier.kind for tier in Cache(gpu="1GB", ram="auto").tiers] == ["ram"]
    assert repr(Cache(gpu="1GB")) == "Cache(ram=0, disk=None, gpu='1GB')"
    assert (
        repr(pickle.loads(pickle.dumps(Cache(gpu="1GB", ram="2GB"))))
        == "Cache(ram='2GB', disk=None, gpu='1GB')"
    )
    with pytest.raises(UsageError, match="needs memory or a disk"):
        Cache(ram=0, gpu=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transform": lambda sample: sample["label"]}, "transform and collate get pixels on the host"),
        ({"image": RandomCrop(20, padding=4, pad_if_needed=True)}, "crops with padding"),
        ({"fields": ["label"]}, "no field of images is asked for"),
    ],
)
def test_where_nothing_can_be_kept_that_is_said_once_and_batches_come_as_ever(
    gpu: FakeGpu, mixed: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any], words: str
) -> None:
    stats = assert_same_as_without(mixed, Cache(gpu="1GB"), **options)
    assert (gpu.launches, stats.cache) == ([], None)
    (record,) = caplog.records
    assert f"cache=Cache(gpu='1GB'): nothing is kept on the GPU, since {words}" in record.getMessage()


@pytest.mark.usefixtures("gpu")
def test_masks_and_boxes_come_from_the_pack_and_follow_the_same_draw(tmp_path: Path) -> None:
    folder = write_everything(tmp_path / "pack")
    fields = ["image", "small", "mask", "boxes", "caption", View("small", size=7)]
    stats = assert_same_as_without(folder, Cache(gpu="1GB"), 3, "gpu", fields=fields, batch_size=5)
    assert (stats.cache.samples, stats.cache.tiers[0].samples) == (24, 24)
    assert stats.cache.hit_rate == 1
    assert stats.cache.hits == 36  # one image is asked for twice


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("decode", ["auto", "gpu"])
def test_tiers_below_serve_what_is_not_on_the_gpu(tmp_path: Path, decode: str) -> None:
    folder = write_images(tmp_path / "pack", 30, side=40)
    with Cache(gpu=12 * 40 * 40 * 3, ram=10 * (40 * 40 * 3 + 28) + 1) as cache:
        stats = assert_same_as_without(folder, cache, 3, decode).cache
    assert [(tier.kind, tier.samples, tier.hits) for tier in stats.tiers] == [
        ("gpu", 12, 12),
        ("ram", 10, 10),
    ]
    assert (stats.misses, stats.samples) == (8, 30)
    assert stats.cached_share == stats.hit_rate == 22 / 30


@pytest.mark.usefixtures("gpu")
def test_what_lies_on_the_gpu_and_below_counts_once(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pack", 30, side=40)
    with Cache(gpu="1GB", ram="1GB") as cache:
        # Another rank's samples, and padding needs pixels on the host: these go to memory.
        list(Loader(folder, device="cuda", cache=cache, image=RandomCrop(24, padding=1), batch_size=8))
        stats = assert_same_as_without(folder, cache).cache
    assert (stats.cached_share, stats.hit_rate, stats.tiers[1].samples) == (1, 1, 0)


@pytest.mark.usefixtures("gpu")
def test_pixels_that_a_pack_stores_are_kept_too(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "p", PackOptions(workers=1, recode=Recode(raw=True)))
    for decode in ("auto", "gpu"):
        stats = assert_same_as_without(tmp_path / "p", Cache(gpu="1GB"), 2, decode)
        assert stats.cache.hit_rate == 1
        assert stats.cache.tiers[0].samples > 0


@pytest.mark.usefixtures("gpu")
def test_an_epoch_goes_on_where_it_was_left_with_and_without_the_tier(mixed: Path) -> None:
    wanted, _ = load(mixed, None, epochs=2)
    options = {**OPTIONS, "device": "cuda", "decode": "gpu"}
    with Loader(mixed, cache=Cache(gpu="1GB"), **options) as loader:
        got = list(loader)
        batches = iter(loader)
        got += [next(batches) for _ in range(2)]
        state = loader.state_dict()
        for cache in (None, Cache(gpu="100KB")):
            with Loader(mixed, cache=cache, **options) as other:
                other.load_state_dict(state)
                assert_equal(got + list(other), wanted)


@pytest.mark.usefixtures("gpu")
def test_an_iteration_that_is_left_early_leaves_nothing_half_done(mixed: Path) -> None:
    with Loader(mixed, device="cuda", decode="gpu", cache=Cache(gpu="1GB"), **OPTIONS) as loader:
        for _ in range(4):
            next(iter(loader))
        loader.set_epoch(0)
        got = [*loader, *loader]
        assert loader.stats().cache.hit_rate == 1
    assert_equal(got, load(mixed, None)[0])


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("decode", ["cpu", "gpu"])
def test_bad_samples_are_the_same_ones(tmp_path: Path, decode: str) -> None:
    files = [encode_image(make_image(i, 40, 40), quality=90) for i in range(30)]
    files[2] = files[2][: len(files[2]) * 2 // 3] + b"\xff\xd9"  # damaged below: some crops do not show it
    files[4] = encode_image(make_image(4, 8, 8))  # too small
    folder = write_pack(tmp_path / "pack", (IMAGE, LABEL), [{"image": f, "label": 0} for f in files])
    flip_byte(folder / "shard-00001.tar", -20)  # the last one is not what was packed

    def run(cache: Cache | None, decode: str) -> tuple[list[Any], list[str]]:
        bad: list[str] = []
        options = {"fields": ("image", "key"), "on_bad_sample": lambda b: bad.append(str(b))}
        return load(folder, cache, 4, decode=decode, image=RandomCrop(16), **options)[0], bad

    wanted, bad = run(None, "cpu")
    got, also_bad = run(Cache(gpu="1GB"), decode)
    assert_equal(got, wanted)
    assert also_bad == bad != []
    with pytest.raises(BadSample, match="sample-000"):
        load(folder, Cache(gpu="1GB"), image=RandomCrop(16), decode=decode)


def test_what_the_gpu_finds_bad_is_decoded_whole_by_the_cpu(gpu: FakeGpu, mixed: Path) -> None:
    def spoil(name: str, args: Any) -> None:
        if name == "prepare":
            args[4][1::3] |= 8

    gpu.spoil = spoil
    stats = assert_same_as_without(mixed, Cache(gpu="1GB"), 2, "gpu")
    assert stats.cache.hit_rate == 1
    assert 0 < stats.by_gpu < 28


def test_what_the_gpu_finds_bad_takes_room_once(gpu: FakeGpu, tmp_path: Path) -> None:
    def spoil(name: str, args: Any) -> None:
        if name == "prepare":
            args[4][1::3] |= 8

    gpu.spoil = spoil
    folder = write_images(tmp_path / "pack", 30, side=40)
    stats = assert_same_as_without(folder, Cache(gpu=30 * 40 * 40 * 3), 2, "gpu")
    (tier,) = stats.cache.tiers
    assert (tier.samples, tier.hits) == (30, 30)


def test_a_crop_whose_weights_are_unsure_comes_from_the_cpu(gpu: FakeGpu, mixed: Path) -> None:
    def spoil(name: str, args: Any) -> None:
        if name == "prepare_crops":
            args[4][::2] |= 16

    gpu.spoil = spoil
    operation = RandomResizedCrop(24, interpolation="lanczos")
    stats = assert_same_as_without(mixed, Cache(gpu="1GB"), 2, "cpu", image=operation)
    assert stats.cache.hit_rate == 1


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("gpu_decode.kernels.MOST_MEMORY", 300_000),
        ("gpu_decode.MOST_READ_BYTES", 30_000),
        ("gpu_tier.MOST_CROP_BYTES", 60_000),
        ("gpu_tier.MOST_HOST_BYTES", 20_000),
    ],
)
def test_what_is_too_much_at_once_is_done_in_turns(
    mixed: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(f"feedrate.loader.device.{limit}", value)
    stats = assert_same_as_without(mixed, Cache(gpu="1GB"), 2, "gpu")
    assert (stats.by_gpu, stats.cache.hit_rate) == (28, 1)


@pytest.mark.usefixtures("gpu")
def test_images_that_are_too_large_for_it_come_as_without_a_cache(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_tier, "LARGEST_BYTES", 100 * 90 * 3)
    stats = assert_same_as_without(mixed, Cache(gpu="1GB"), 3, "gpu")
    assert 0 < stats.cache.hits == stats.cache.tiers[0].samples < COUNT


@pytest.mark.usefixtures("gpu")
def test_what_an_older_pillow_decodes_is_left_to_it(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pillow, "resizes_as_kernel", lambda: False)
    stats = assert_same_as_without(mixed, Cache(gpu="1GB"), 3)
    assert stats.cache.tiers[0].samples == stats.cache.hits == 28


@pytest.mark.usefixtures("gpu")
def test_a_pack_behind_an_address_is_fetched_once(mixed: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    wanted, _ = load(mixed, None)
    with serve(mixed.parent) as server:
        with Loader(
            f"{server.url}/mixed", device="cuda", decode="gpu", cache=Cache(gpu="1GB"), **OPTIONS
        ) as loader:
            got = list(loader)
            asked = len(server.asked)
            got += list(loader)
        assert len(server.asked) == asked
    assert_equal(got, wanted)


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_cannot_compile_is_an_error_where_the_tier_was_asked_for(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise GpuError("torch came without NVRTC", hint="pip install it")

    monkeypatch.setattr(gpu_decode, "compile_source", fail)
    with pytest.raises(GpuError, match="without NVRTC"):
        load(mixed, Cache(gpu="1GB"), decode="cpu")


@pytest.mark.usefixtures("gpu")
def test_a_second_field_of_another_size_is_cut_at_the_same_place(tmp_path: Path) -> None:
    fields = (Field("image", Kind.IMAGE), Field("other", Kind.IMAGE))
    samples = [{"image": encode_mixed(i), "other": encode_mixed(i + 7)} for i in range(18)]
    folder = write_pack(tmp_path / "pack", fields, samples)
    stats = assert_same_as_without(folder, Cache(gpu="1GB"), 2, "gpu", fields=["other", "image"])
    assert stats.cache.hit_rate == 1


def test_a_batch_waits_for_the_gpu_before_it_takes_memory_there(
    gpu: FakeGpu, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feedrate.loader.device.transfer import Transfer

    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(Transfer, "wait", lambda _, step: seen.append((step, len(gpu.launches))))
    with Loader(mixed, device="cuda", decode="cpu", cache=Cache(gpu="1GB"), prefetch=1, **OPTIONS) as loader:
        list(loader)
    assert seen == [(step, 4 * step) for step in range(6)]


@pytest.mark.usefixtures("gpu")
def test_tables_are_right_after_many_makers_filled_them_at_once(mixed: Path) -> None:
    options = {"batch_size": 3, "prefetch": 8, "weights": np.ones(COUNT)}
    stats = assert_same_as_without(mixed, Cache(gpu="1GB"), 6, "gpu", **options)
    assert stats.cache.hits + stats.cache.misses == COUNT


def test_a_second_loader_of_a_cache_begins_when_little_memory_is_left(mixed: Path, gpu: FakeGpu) -> None:
    cache = Cache(gpu="1GB")
    with Loader(mixed, device="cuda", cache=cache, **OPTIONS) as train:
        first = list(train)
        gpu.free_bytes = 500 << 20  # the model has taken the rest
        with Loader(mixed, device="cuda", cache=cache, **OPTIONS) as validate:
            assert_equal(list(validate), first)


def test_a_budget_is_granted_whole_or_in_part_and_never_twice() -> None:
    budget = GpuBudget("10MB", 10_000_000)
    assert budget.take(1_000_000, 8_000_000) == 8_000_000
    assert budget.take(3_000_000, 8_000_000) == 0
    assert budget.take(1_000_000, 8_000_000) == 2_000_000
    budget.give(8_000_000)
    assert budget.left == 8_000_000


@pytest.mark.usefixtures("gpu")
def test_what_is_held_outlives_the_tier(mixed: Path) -> None:
    with Loader(mixed, device="cuda", cache=Cache(gpu="1GB"), **OPTIONS) as loader:
        list(loader)
        tier = loader._resources.tier
        assert tier is not None
        memory = tier.hold()
        before = [bytes(chunk[:64].numpy()) for chunk in memory]
    assert tier.memory_bytes == 0
    assert memory
    assert [bytes(chunk[:64].numpy()) for chunk in memory] == before
