# SPDX-License-Identifier: Apache-2.0
"""`Loader(device="cuda", decode="gpu")` without a GPU: the kernels run on the CPU (fake_gpu)."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate import CenterCrop, Loader, RandomCrop, RandomResizedCrop, Resize, View, index, kernel
from feedrate.errors import BadSample, FeedrateError, GpuError, UsageError
from feedrate.format.fields import Field, Kind
from feedrate.loader.cache import Cache
from feedrate.loader.device import gpu_decode
from feedrate.loader.device.transfer import Transfer
from feedrate.remote.pack import RemotePack
from support.damage import flip_byte
from support.fake_gpu import FakeGpu
from support.packs import (
    IMAGE,
    encode_image,
    encode_mixed,
    make_noise,
    write_everything,
    write_images,
    write_mixed,
    write_pack,
)
from support.range_server import serve

torch = pytest.importorskip("torch")
OPTIONS: dict[str, Any] = {"batch_size": 8, "image": RandomResizedCrop(24), "flip": True, "seed": 3}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    return write_mixed(tmp_path / "mixed", 42)


def load(pack: Path | str, decode: str, epochs: int = 1, **options: Any) -> tuple[list[Any], Any]:
    with Loader(pack, device="cuda", decode=decode, **{**OPTIONS, **options}) as loader:
        batches = [batch for _ in range(epochs) for batch in loader]
        return batches, loader.stats()


def assert_equal(got: list[Any], wanted: list[Any]) -> None:
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.usefixtures("gpu")
def test_batches_are_those_of_the_cpu_path(mixed: Path) -> None:
    got, stats = load(mixed, "gpu", epochs=3, threads=2)
    assert_equal(got, load(mixed, "cpu", epochs=3, threads=2)[0])
    assert got[0][0].is_contiguous(memory_format=torch.channels_last)
    assert (stats.by_gpu, stats.gpu_share) == (3 * 28, 1.0)
    assert stats.cpu_reasons == {gpu_decode.NO_ENTRIES: 3 * 14}
    assert stats.by_pillow == 3 * 14


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "box", "hamming", "nearest"])
def test_every_filter_gives_the_pixels_of_the_cpu(mixed: Path, interpolation: Any) -> None:
    operation = RandomResizedCrop((20, 31), interpolation=interpolation)
    got, stats = load(mixed, "gpu", image=operation, order=[0, 1, 2, 3], shuffle=False)
    assert_equal(got, load(mixed, "cpu", image=operation, order=[0, 1, 2, 3], shuffle=False)[0])
    assert stats.by_gpu + stats.cpu_reasons.get(gpu_decode.UNSURE, 0) == 4


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "options",
    [
        {"image": CenterCrop(16, resize=40)},
        {"image": Resize(33)},
        {"image": RandomCrop(20)},
        {"image": RandomResizedCrop(16, interpolation=("bilinear", "bicubic"))},
        {"mode": "L"},
        {"fields": ["image", "label", "key", "number"]},
        {"fields": [View("image", size=12), "label", View("image", size=(9, 30), name="wide")]},
        {"dtype": torch.float32, "normalize": "imagenet"},
        {"weights": "balanced"},
        {"rank": 1, "world_size": 3, "pad": True},
    ],
    ids=str,
)
def test_whatever_is_asked_for_the_batches_are_those_of_the_cpu_path(
    mixed: Path, options: dict[str, Any]
) -> None:
    got, stats = load(mixed, "gpu", **options)
    assert_equal(got, load(mixed, "cpu", **options)[0])
    assert stats.by_gpu > 0


@pytest.mark.usefixtures("gpu")
def test_fields_that_are_no_images_come_from_the_cpu_in_the_same_batch(tmp_path: Path) -> None:
    pack = write_everything(tmp_path / "pack")
    options: dict[str, Any] = {"fields": ["image", "small", "mask", "boxes", "caption"], "batch_size": 5}
    (*got, _), stats = load(pack, "gpu", **options)
    for one, other in zip(got, load(pack, "cpu", **options)[0], strict=False):
        assert all(torch.equal(one[i], other[i]) for i in range(3))
        assert all(torch.equal(a, b) for a, b in zip(one[3], other[3], strict=True))
        assert one[4] == other[4]
    assert stats.by_gpu == 2 * 12


@pytest.mark.usefixtures("gpu")
def test_an_epoch_goes_on_where_it_was_left_whichever_way_it_was_decoded(mixed: Path) -> None:
    wanted, _ = load(mixed, "cpu")
    with Loader(mixed, device="cuda", decode="gpu", **OPTIONS) as loader:
        batches = iter(loader)
        got = [next(batches) for _ in range(2)]
        state = loader.state_dict()
    for decode in ("cpu", "gpu"):
        with Loader(mixed, device="cuda", decode=decode, **OPTIONS) as loader:
            loader.load_state_dict(state)
            assert_equal(got + list(loader), wanted)


def spoil_bytes(pack: Path, number: int) -> None:
    """Turn over a bit of a stored image, in the middle of it."""
    with Loader(pack, batch_size=1, shuffle=False, image=Resize(8), output="numpy") as loader:
        opened = loader._resources.pack
        at = np.array([number])
        ranges = opened.ranges("image", opened.rows(at)[0], at)
        path = Path(opened.files.paths[int(ranges.file[0])])
    data = bytearray(path.read_bytes())
    data[int(ranges.offset[0] + ranges.length[0] // 2)] ^= 1
    path.write_bytes(data)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("decode", ["cpu", "gpu"])
def test_a_damaged_image_is_raised_with_its_name(mixed: Path, decode: str) -> None:
    spoil_bytes(mixed, 7)
    with pytest.raises(BadSample, match=r"sample-00007', field 'image' .*crc32c is"):
        load(mixed, decode)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("where", [7, 4], ids=["for the GPU", "for the CPU"])
def test_damaged_images_are_skipped_and_told_alike(mixed: Path, where: int) -> None:
    spoil_bytes(mixed, where)
    told: dict[str, list[str]] = {"cpu": [], "gpu": []}
    got = {
        decode: load(mixed, decode, on_bad_sample=lambda bad, told=words: told.append(str(bad)))
        for decode, words in told.items()
    }
    assert_equal(got["gpu"][0], got["cpu"][0])
    assert sum(len(images) for images, _ in got["gpu"][0]) == 41
    assert told["gpu"] == told["cpu"]
    assert len(told["cpu"]) == got["gpu"][1].bad_samples == 1


def test_what_the_gpu_finds_bad_is_decoded_by_the_cpu(gpu: FakeGpu, mixed: Path) -> None:
    def spoil(name: str, args: Any) -> None:
        if name == "resize_last":  # the last one: pixels and statuses are there
            statuses, out = args[4], args[5]
            statuses[1::3] = 8
            out[1::3] = 0

    gpu.spoil = spoil
    got, stats = load(mixed, "gpu")
    assert_equal(got, load(mixed, "cpu")[0])
    assert 0 < stats.cpu_reasons[gpu_decode.FOUND_BAD] < 28
    assert stats.by_gpu + sum(stats.cpu_reasons.values()) == 42
    assert stats.bad_samples == 0


def test_a_sample_that_no_kernel_spoke_of_is_not_taken_for_good(gpu: FakeGpu, mixed: Path) -> None:
    def spoil(name: str, args: Any) -> None:
        if name == "resize_last":
            args[4][:] = -1
            args[5][:] = 77

    gpu.spoil = spoil
    got, stats = load(mixed, "gpu")
    assert_equal(got, load(mixed, "cpu")[0])
    assert stats.by_gpu == 0


def change_entries(entries: bytes) -> bytes:
    """Return entry points of which a later one has a wrong predictor, with the checksum of whole ones."""
    changed = bytearray(entries)
    changed[-3] ^= 0x10
    crc = kernel.crc32c(bytes(changed[12:]), kernel.crc32c(bytes(changed[:8])))
    changed[8:12] = struct.pack("<I", crc)
    return bytes(changed)


@pytest.mark.usefixtures("gpu")
def test_entry_points_that_lie_make_the_same_bad_sample_either_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = kernel.scan

    def scan(data: bytes) -> Any:
        found = real(data)
        return found._replace(entries=change_entries(found.entries)) if data == lying else found

    images = [encode_image(make_noise(i, 160, 120), quality=95) for i in range(24)]
    lying = images[5]
    monkeypatch.setattr(kernel, "scan", scan)
    pack = write_pack(tmp_path / "pack", (IMAGE,), [{"image": image} for image in images])
    told: dict[str, list[str]] = {"cpu": [], "gpu": []}
    got = {
        decode: load(pack, decode, image=Resize(24), on_bad_sample=lambda b, to=to: to.append(str(b)))
        for decode, to in told.items()
    }
    assert len(told["cpu"]) == 1
    assert told["gpu"] == told["cpu"]
    assert got["gpu"][1].cpu_reasons == {gpu_decode.FOUND_BAD: 1}
    assert_equal(got["gpu"][0], got["cpu"][0])


@pytest.mark.usefixtures("gpu")
def test_an_iteration_that_is_left_ends_without_a_trace(mixed: Path) -> None:
    import threading

    for _ in range(3):
        loader = Loader(mixed, device="cuda", decode="gpu", **{**OPTIONS, "batch_size": 2})
        batches = iter(loader)
        kept = next(batches)
        loader.close()
        assert_equal([kept], load(mixed, "cpu", batch_size=2)[0][:1])
        assert loader._resources.gpu is not None
        assert loader._resources.gpu.buffer_bytes == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("feedrate-maker")]


@pytest.mark.usefixtures("gpu")
def test_what_the_gpu_does_not_take_is_said_once(mixed: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(mixed, "gpu", epochs=2)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert gpu_decode.NO_ENTRIES in record.getMessage()
    assert "with the same pixels" in record.getMessage()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transform": lambda sample: sample["label"]}, "transform and collate get pixels on the host"),
        ({"cache": "1MB"}, "the cache keeps decoded samples on the host"),
        ({"image": RandomCrop(20, padding=4, pad_if_needed=True)}, "crops with padding"),
        ({"fields": ["label"]}, "no field of images is asked for"),
    ],
)
def test_where_the_gpu_decodes_nothing_that_is_said_and_the_cpu_does(
    gpu: FakeGpu, mixed: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any], words: str
) -> None:
    if "cache" in options:  # made here, so that it goes with the test, and its thread with it
        options = {"cache": Cache(ram=options["cache"])}
    got, stats = load(mixed, "gpu", **options)
    assert_equal(got, load(mixed, "cpu", **options)[0])
    assert (gpu.launches, stats.by_gpu) == ([], 0)
    (record,) = caplog.records
    assert words in record.getMessage()


def test_decode_gpu_needs_a_gpu_to_send_batches_to(tmp_path: Path) -> None:
    pack = write_images(tmp_path / "pack")
    with pytest.raises(UsageError, match="this loader has none") as caught:
        Loader(pack, decode="gpu")
    assert 'device="cuda"' in str(caught.value.hint)
    for decode in ("auto", "cpu"):
        with Loader(pack, decode=decode, batch_size=8) as loader:
            assert len(list(loader)) == 3


def test_what_is_no_way_to_decode_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='decode must be "auto", "cpu" or "gpu", got \'cuda\''):
        Loader(write_images(tmp_path / "pack"), decode="cuda")  # type: ignore[arg-type]


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_cannot_compile_is_an_error_where_it_was_asked_for(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise GpuError("torch came without NVRTC", hint="pip install it")

    monkeypatch.setattr(gpu_decode, "compile_source", fail)
    with pytest.raises(GpuError, match="without NVRTC"):
        load(mixed, "gpu")


def fail_to_allocate(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    """Let the device have no room for what is as large as this, or larger."""
    real = torch.empty

    def empty(shape: Any, *args: Any, **options: Any) -> Any:
        if "device" in options and isinstance(shape, int) and shape >= size_bytes:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more lines")
        return real(shape, *args, **options)

    monkeypatch.setattr(torch, "empty", empty)


@pytest.mark.usefixtures("gpu")
def test_a_gpu_without_memory_for_buffers_is_told_with_what_to_do(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_allocate(monkeypatch, 50_000)
    with pytest.raises(FeedrateError, match=r"no memory left to decode images: its buffers take") as caught:
        load(mixed, "gpu")
    assert 'decode="cpu"' in str(caught.value.hint)


@pytest.mark.usefixtures("gpu")
def test_no_more_memory_than_allowed_is_taken(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_decode.kernels, "MOST_MEMORY", 300_000)
    sizes: list[int] = []
    real = gpu_decode.GpuDecoder.close

    def close(decoder: Any) -> None:
        sizes.append(decoder.buffer_bytes)
        real(decoder)

    monkeypatch.setattr(gpu_decode.GpuDecoder, "close", close)
    got, stats = load(mixed, "gpu")
    assert_equal(got, load(mixed, "cpu")[0])
    assert 0 < stats.by_gpu < 28
    assert stats.cpu_reasons[gpu_decode.NOT_PLANNED] > 0
    assert 0 < sizes[0] <= 1.02 * 300_000  # parts are rounded up


@pytest.mark.usefixtures("gpu")
def test_memory_for_the_next_batch_that_is_not_there_names_what_decoding_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = write_images(tmp_path / "pack", side=64)

    def fail(*_: Any, **__: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    with Loader(pack, device="cuda", decode="gpu", dtype=torch.float32, **OPTIONS) as loader:
        monkeypatch.setattr(torch, "empty_like", fail)
        with pytest.raises(FeedrateError, match=r"no memory left for the next batch.*decoding there takes"):
            list(loader)


@pytest.mark.usefixtures("gpu")
def test_a_pack_that_names_images_of_several_fields_counts_each(tmp_path: Path) -> None:
    fields = (Field("image", Kind.IMAGE), Field("other", Kind.IMAGE))
    samples = [{"image": encode_mixed(6 * i), "other": encode_mixed(4 + 6 * i)} for i in range(6)]
    pack = write_pack(tmp_path / "pack", fields, samples)
    got, stats = load(pack, "gpu", fields=["image", "other"])
    assert_equal(got, load(pack, "cpu", fields=["image", "other"])[0])
    assert (stats.by_gpu, stats.cpu_reasons) == (6, {gpu_decode.NO_ENTRIES: 6})


@pytest.mark.parametrize("is_older", [False, True])
def test_the_order_of_passes_is_that_of_the_cpu_path_whatever_pillow_there_is(
    gpu: FakeGpu, mixed: Path, monkeypatch: pytest.MonkeyPatch, is_older: bool
) -> None:
    from feedrate.kernel import pillow

    monkeypatch.setattr(pillow, "resizes_as_kernel", lambda: not is_older)
    options: dict[str, Any] = {"image": Resize((24, 60), interpolation="bicubic"), "order": [0, 1, 2, 3]}
    got, stats = load(mixed, "gpu", **options)
    assert_equal(got, load(mixed, "cpu", **options)[0])
    assert gpu.launches
    assert stats.by_gpu == 4


@pytest.mark.usefixtures("gpu")
def test_a_pack_behind_an_address_is_decoded_alike(mixed: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    wanted, _ = load(mixed, "cpu")
    with serve(mixed.parent) as server:
        got, stats = load(f"{server.url}/mixed", "gpu")
    assert_equal(got, wanted)
    assert stats.by_gpu == 28


@pytest.mark.usefixtures("gpu")
def test_what_is_damaged_on_scratch_comes_from_the_source(mixed: Path, scratch: Path) -> None:
    wanted, _ = load(mixed, "cpu", order="staged")
    with Loader(mixed, scratch=scratch, device="cuda", decode="gpu", **OPTIONS) as loader:
        opened = loader._resources.pack
        assert isinstance(opened, RemotePack)
        assert opened.copy is not None
        opened.copy.let_flow()
        opened.copy._thread.join(120)
        copy = opened.copy.copy
    for shard in copy.data.glob("shard-*.tar"):
        flip_byte(shard, 40)
    got, stats = load(mixed, "gpu", scratch=scratch)
    assert_equal(got, wanted)
    assert stats.fetch.spoilt_on_scratch == 2
    assert stats.bad_samples == 0


def test_a_batch_waits_for_the_gpu_before_it_takes_memory_there(
    gpu: FakeGpu, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.launches = []
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(Transfer, "wait", lambda _, step: seen.append((step, len(gpu.launches))))
    load(mixed, "gpu", prefetch=1)  # so that one thread makes them one by one
    kernels_of_a_batch = 6
    assert seen == [(step, step * kernels_of_a_batch) for step in range(6)]


def test_a_maker_waits_for_the_statuses_of_every_batch_and_the_loop_for_none(
    gpu: FakeGpu, mixed: Path
) -> None:
    with Loader(mixed, device="cuda", decode="gpu", **OPTIONS) as loader:
        list(loader)
    assert gpu.waits_by == {"feedrate-maker"}
    assert gpu.waits >= 6


def test_a_fork_of_a_process_that_used_cuda_is_told_so(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(UsageError, match="a fork of one that had used CUDA"):
        load(mixed, "gpu")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("limit", "value"), [("gpu_decode.MOST_READ_BYTES", 30_000), ("gpu_decode.kernels.MAX_IMAGES", 7)]
)
def test_what_is_more_than_is_read_or_decoded_at_once_comes_from_the_cpu(
    mixed: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(f"feedrate.loader.device.{limit}", value)
    got, stats = load(mixed, "gpu")
    assert_equal(got, load(mixed, "cpu")[0])
    assert stats.cpu_reasons[gpu_decode.NOT_PLANNED] > 0
    assert stats.by_gpu < 28
    assert stats.by_gpu + sum(stats.cpu_reasons.values()) == 42


@pytest.mark.usefixtures("gpu")
def test_images_that_are_files_of_their_own_are_decoded_alike(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / "photos" / "cat").mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / "cat" / f"{i}.jpg").write_bytes(encode_mixed(6 * i))
    index(tmp_path / "photos", tmp_path / "pack")
    got, stats = load(tmp_path / "pack", "gpu")
    assert_equal(got, load(tmp_path / "pack", "cpu")[0])
    assert stats.by_gpu == 12
