# SPDX-License-Identifier: Apache-2.0
"""`Loader(device="cuda")` on a GPU: `make test-gpu`."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from feedrate import (
    ColorJitter,
    CutMix,
    GaussianBlur,
    Grayscale,
    Loader,
    MixUp,
    RandomErasing,
    RandomResizedCrop,
    Solarize,
)
from feedrate.errors import FeedrateError
from support.packs import write_images
from support.waiting import await_makers

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
    pytest.mark.filterwarnings("default"),  # of torch.compile and its kind: not ours to mend
]
OPTIONS: dict[str, Any] = {"batch_size": 8, "image": RandomResizedCrop(32), "flip": True, "seed": 3}
# Solarize comes first: of whole levels it is exact, later a rounding may put a pixel on its other side.
COLOURS = [Solarize(p=0.3), ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), Grayscale(0.2), GaussianBlur(5, p=0.5)]
FLOATS = [*COLOURS, RandomErasing(value="random"), MixUp(0.2), CutMix()]
BYTES = [*COLOURS, RandomErasing(value=7), MixUp(0.2), CutMix()]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return write_images(tmp_path / "pack", count=100, side=64)


def expected(pack: Path, epochs: int = 1) -> list[Any]:
    loader = Loader(pack, output="numpy", **OPTIONS)
    return [
        (torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(y))
        for _ in range(epochs)
        for x, y in loader
    ]


def is_equal(got: Any, wanted: Any) -> bool:
    return all(torch.equal(one.cpu(), other) for one, other in zip(got, wanted, strict=True))


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, torch.device("cuda")])
def test_batches_arrive_on_the_gpu_with_the_same_values(pack: Path, device: Any) -> None:
    batches = list(Loader(pack, device=device, **OPTIONS))  # kept: each must stay what it is
    assert all(x.device == y.device == torch.device("cuda:0") for x, y in batches)
    assert batches[0][0].is_contiguous(memory_format=torch.channels_last)
    assert all(is_equal(*pair) for pair in zip(batches, expected(pack), strict=True))


def test_ten_thousand_batches_with_delays_hold_what_the_cpu_path_gives(pack: Path) -> None:
    options: dict[str, Any] = {"batch_size": 8, "shuffle": False}
    want = [int(x.astype("int64").sum()) for x, _ in Loader(pack, output="numpy", **options)]
    loader, got = Loader(pack, device="cuda", **options), []
    epochs = -(-10_000 // len(want))
    for epoch in range(epochs):
        for step, (images, _) in enumerate(loader):
            if (epoch + step) % 7 == 0:
                torch.cuda._sleep(200_000)  # the GPU is late: copies and reuse overlap
            got.append(images.sum(dtype=torch.int64))
            del images
    assert torch.stack(got).tolist() == want * epochs


def test_the_host_waits_for_nothing(pack: Path) -> None:
    loader = Loader(pack, device="cuda", **OPTIONS)
    list(loader)
    total = torch.zeros((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for images, labels in loader:
            total += images.float().mean() + labels.sum()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(total) > 0


def test_a_graph_is_captured_while_an_epoch_runs(pack: Path) -> None:
    weights, out = torch.randn(256, 256, device="cuda"), torch.zeros(256, 256, device="cuda")
    out.copy_(weights @ weights)  # what the first product sets up cannot be captured
    for _ in range(20):
        loader = Loader(pack, device="cuda", **{**OPTIONS, "batch_size": 4})
        batches = iter(loader)
        first = next(batches)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(50):
                out.copy_(weights @ weights)
        graph.replay()
        rest = [first, *batches]
        assert sum(len(x) for x, _ in rest) == 100
        loader.close()
    assert torch.allclose(out, weights @ weights, atol=1e-2)


def test_a_compiled_model_with_graphs_trains_from_it(pack: Path) -> None:
    model = torch.compile(torch.nn.Conv2d(3, 4, 3).cuda(), mode="reduce-overhead")
    for _ in range(3):
        for images, _ in Loader(pack, device="cuda", drop_last=True, **OPTIONS):
            loss = model(images.float()).square().mean()
            loss.backward()
            model.zero_grad(set_to_none=True)
    assert torch.isfinite(loss)


def test_a_host_batch_may_be_dropped_while_its_copy_waits(pack: Path) -> None:
    torch.cuda.init()
    want = [int(x.long().sum()) for x, _ in expected(pack, epochs=3)]
    loader, sums = Loader(pack, **OPTIONS), []
    for _ in range(3):
        for images, labels in loader:
            assert images.is_pinned()
            assert labels.is_pinned()
            torch.cuda._sleep(20_000_000)
            there = images.to("cuda", non_blocking=True)
            del images, labels
            sums.append(there.sum(dtype=torch.int64))
    assert [int(one) for one in sums] == want


def test_feedrate_does_not_begin_cuda_by_itself(pack: Path) -> None:
    code = (
        "import sys, torch, feedrate\n"
        "images, _ = next(iter(feedrate.Loader(sys.argv[1], batch_size=4)))\n"
        "print(torch.cuda.is_initialized(), images.is_pinned())"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(pack)], capture_output=True, text=True, check=True)
    assert ran.stdout == "False False\n"


def test_what_a_transform_made_is_moved(pack: Path) -> None:
    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        return {"x": torch.from_numpy(sample["image"]).float(), "label": sample["label"], "name": "n"}

    (batch, *_) = Loader(pack, device="cuda", transform=transform, **OPTIONS)
    assert (batch["x"].device.type, batch["label"].device.type, batch["name"][0]) == ("cuda", "cuda", "n")


def test_memory_stays_where_it_is_over_fifty_epochs(pack: Path) -> None:
    loader = Loader(pack, device="cuda", **OPTIONS)
    for _ in range(5):
        for batch in loader:
            del batch
    gc.collect()
    await_makers(loader)  # the first batches of the next epoch are there
    torch.cuda.synchronize()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(50):
        for batch in loader:
            del batch
    await_makers(loader)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 2 * 8 * 3 * 32 * 32
    assert torch.cuda.memory_reserved() == reserved


def test_a_fork_of_a_process_that_used_cuda_is_told_so(pack: Path) -> None:
    torch.cuda.init()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            Loader(pack, device="cuda", **OPTIONS)
        except FeedrateError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        assert "a fork of one that had used CUDA" in told.read()
    os.waitpid(child, 0)


def test_too_little_memory_on_the_gpu_is_a_sentence(pack: Path) -> None:
    loader = Loader(pack, device="cuda", **{**OPTIONS, "image": RandomResizedCrop(1024), "batch_size": 50})
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-4)
    try:
        with pytest.raises(FeedrateError, match="has no memory left for the next batch"):
            list(loader)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize(
    ("finish", "most"),
    [
        ({"dtype": torch.float32}, 1e-6),
        ({"normalize": "imagenet"}, 1e-5),
        ({"normalize": "imagenet", "dtype": torch.bfloat16}, 0.02),
        ({"normalize": "imagenet", "on_device": FLOATS}, 1e-3),
        ({"on_device": BYTES}, 1),
    ],
)
def test_batches_finished_on_the_gpu_are_those_of_the_cpu(
    pack: Path, finish: dict[str, Any], most: float
) -> None:
    there, here = Loader(pack, device="cuda", **OPTIONS, **finish), Loader(pack, **OPTIONS, **finish)
    for (images, labels), (expected_images, expected_labels) in zip(there, here, strict=True):
        assert images.device == labels.device == torch.device("cuda:0")
        assert images.dtype == expected_images.dtype
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert (images.cpu().double() - expected_images.double()).abs().max() <= most
        assert (labels.cpu().double() - expected_labels.double()).abs().max() <= 1e-6


@pytest.mark.parametrize("finish", [{"normalize": "imagenet", "on_device": FLOATS}, {"on_device": BYTES}])
def test_the_host_waits_for_nothing_while_batches_are_finished(pack: Path, finish: dict[str, Any]) -> None:
    loader = Loader(pack, device="cuda", **OPTIONS, **finish)
    list(loader)
    total = torch.zeros((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for images, labels in loader:
            total += images.float().square().mean() + labels.sum()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(total) > 0


def test_finished_batches_that_are_kept_stay_what_they_are(pack: Path) -> None:
    options: dict[str, Any] = {**OPTIONS, "normalize": "imagenet", "on_device": FLOATS}
    sums, kept = [], []
    for images, _ in Loader(pack, device="cuda", **options):
        torch.cuda._sleep(200_000)  # the GPU is late: the next batches are finished meanwhile
        sums.append(images.double().sum())
        kept.append(images)
    again = [images.double().sum() for images in kept]
    assert torch.equal(torch.stack(sums), torch.stack(again))


def test_what_is_finished_on_the_host_is_pinned(pack: Path) -> None:
    torch.cuda.init()
    for images, labels in Loader(pack, normalize="imagenet", on_device=[MixUp()], **OPTIONS):
        assert images.is_pinned()
        assert labels.is_pinned()
