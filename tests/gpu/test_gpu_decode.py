# SPDX-License-Identifier: Apache-2.0
"""`Loader(device="cuda", decode="gpu")` on a GPU: `make test-gpu`."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from feedrate import CutMix, Loader, MixUp, RandomErasing, RandomResizedCrop, Resize
from feedrate.errors import FeedrateError
from feedrate.filters import FILTERS
from feedrate.loader import threads
from support.packs import write_mixed
from support.waiting import await_makers

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
    pytest.mark.filterwarnings("default"),  # of torch: not ours to mend
]
OPTIONS: dict[str, Any] = {"batch_size": 16, "image": RandomResizedCrop(48), "flip": True, "seed": 3}
COUNT = 240  # 160 of them for the GPU


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixed(tmp_path_factory.mktemp("packs") / "mixed", COUNT)


def make(pack: Path, decode: str, **options: Any) -> Loader:
    return Loader(pack, device="cuda", decode=decode, **{**OPTIONS, **options})


def assert_equal(got: Any, wanted: Any) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("interpolation", list(FILTERS))
def test_every_filter_gives_the_pixels_of_the_cpu_over_three_epochs(pack: Path, interpolation: Any) -> None:
    operation = RandomResizedCrop(56, interpolation=interpolation)
    there, here = make(pack, "gpu", image=operation), make(pack, "cpu", image=operation)
    for _ in range(3):
        assert_equal(list(there), list(here))  # kept: each must stay what it is
    stats = there.stats()
    assert stats.by_gpu >= 0.95 * 3 * COUNT * 4 / 6
    assert stats.by_gpu + sum(stats.cpu_reasons.values()) == 3 * COUNT


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "L"},
        {"image": Resize((40, 91))},
        {"image": RandomResizedCrop(224), "batch_size": 100},
        {"batch_size": 1},
        {"on_bad_sample": "skip", "dtype": torch.bfloat16, "normalize": "imagenet"},
        {"on_device": [RandomErasing(value=7), MixUp(0.2), CutMix()]},
    ],
    ids=str,
)
def test_whatever_is_asked_for_the_batches_are_those_of_the_cpu_path(
    pack: Path, options: dict[str, Any]
) -> None:
    there = make(pack, "gpu", **options)
    batches = list(there)
    assert batches[0][0].device == torch.device("cuda:0")
    assert batches[0][0].is_contiguous(memory_format=torch.channels_last)
    assert_equal(batches, list(make(pack, "cpu", **options)))
    assert there.stats().by_gpu > 0


@pytest.mark.parametrize("decode", ["gpu", "auto"])
def test_the_host_waits_for_nothing(pack: Path, decode: str) -> None:
    loader = make(pack, decode)
    list(loader)
    total = torch.zeros((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            for images, labels in loader:
                total += images.float().mean() + labels.sum()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(total) > 0


def test_damaged_images_are_left_out_without_a_wait(pack: Path, tmp_path: Path) -> None:
    import shutil

    spoilt = shutil.copytree(pack, tmp_path / "spoilt")
    shard = min(spoilt.glob("shard-*.tar"))
    data = bytearray(shard.read_bytes())
    for at in range(len(data) // 8, len(data), len(data) // 4):
        data[at] ^= 0x40
    shard.write_bytes(data)
    torch.cuda.set_sync_debug_mode("error")
    try:
        there, here = (make(spoilt, decode, on_bad_sample="skip") for decode in ("gpu", "cpu"))
        batches = {loader: list(loader) for loader in (there, here)}
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_equal(batches[there], batches[here])
    assert there.stats().bad_samples == here.stats().bad_samples > 0


def test_memory_stays_where_it_is_over_thirty_epochs(pack: Path) -> None:
    loader = make(pack, "gpu")
    for _ in range(8):
        for batch in loader:
            del batch
    gc.collect()
    await_makers(loader)  # the first batches of the next epoch are there
    torch.cuda.synchronize()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(30):
        for batch in loader:
            del batch
    await_makers(loader)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 2 * 16 * 3 * 48 * 48
    assert torch.cuda.memory_reserved() <= reserved + (32 << 20)  # a larger crop may still come


def test_a_late_gpu_beside_a_training_step_gets_the_batches_of_the_cpu(pack: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    want = [int(x.long().sum()) for x, _ in make(pack, "cpu", shuffle=False)]
    loader, sums = make(pack, "gpu", shuffle=False), []
    for epoch in range(4):
        loader.set_epoch(0)
        for step, (images, _) in enumerate(loader):
            if (epoch + step) % 5 == 0:
                torch.cuda._sleep(2_000_000)  # the GPU is late: decoding and reuse of memory overlap
            model(images.float() / 255).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            sums.append(images.sum(dtype=torch.int64))
            del images
    assert torch.stack(sums).tolist() == want * 4


def test_batches_that_are_kept_stay_what_they_are(pack: Path) -> None:
    sums, kept = [], []
    for images, _ in make(pack, "gpu", batch_size=4):
        torch.cuda._sleep(200_000)
        sums.append(images.sum(dtype=torch.int64))
        kept.append(images)
    assert torch.equal(torch.stack(sums), torch.stack([x.sum(dtype=torch.int64) for x in kept]))


def test_a_graph_is_captured_while_batches_are_decoded_there(pack: Path) -> None:
    weights, out = torch.randn(256, 256, device="cuda"), torch.zeros(256, 256, device="cuda")
    out.copy_(weights @ weights)  # what the first product sets up cannot be captured
    for _ in range(5):
        batches = iter(make(pack, "gpu", batch_size=4))
        first = next(batches)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(50):
                out.copy_(weights @ weights)
        graph.replay()
        assert sum(len(x) for x, _ in [first, *batches]) == COUNT
    assert torch.allclose(out, weights @ weights, atol=1e-2)


def test_two_loaders_decode_at_the_same_time(pack: Path) -> None:
    wanted = list(make(pack, "cpu"))
    there, also = make(pack, "gpu"), make(pack, "gpu")
    for one, other, want in zip(there, also, wanted, strict=True):
        assert_equal([one, other], [want, want])


def test_a_share_that_changes_all_the_time_gives_the_same_batches(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(controller: threads.ShareController, *_: Any, **__: Any) -> bool:
        controller._parts = (controller._parts + 2) % (threads.PARTS + 1)
        return True

    # Another share after every window, whatever this machine gains from.
    monkeypatch.setattr(threads.ShareController, "note", note)
    monkeypatch.setattr(threads, "SHARE_WINDOW_S", 0.0)
    there, here = make(pack, "auto"), make(pack, "cpu")
    shares = set()
    for _ in range(15):
        for one, other in zip(there, here, strict=True):
            assert_equal([one], [other])
            shares.add(there.stats().gpu_share)
    assert shares == {parts / threads.PARTS for parts in range(threads.PARTS + 1)}
    assert there.stats().by_gpu > 0


def test_too_little_memory_on_the_gpu_is_a_sentence(pack: Path) -> None:
    loader = make(pack, "gpu", image=RandomResizedCrop(1024), batch_size=80)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-4)
    try:
        with pytest.raises(FeedrateError, match="has no memory left"):
            list(loader)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
