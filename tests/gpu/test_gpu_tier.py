# SPDX-License-Identifier: Apache-2.0
"""`Loader(device="cuda", cache=Cache(gpu=...))` on a GPU: `make test-gpu`."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from feedrate import Cache, CenterCrop, CutMix, Loader, MixUp, RandomErasing, RandomResizedCrop, Resize
from feedrate.errors import UsageError
from feedrate.filters import FILTERS
from feedrate.kernel import pillow
from feedrate.loader.device import gpu_tier
from support.packs import write_mixed

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
    pytest.mark.filterwarnings("default"),  # of torch: not ours to mend
]
OPTIONS: dict[str, Any] = {"batch_size": 16, "image": RandomResizedCrop(48), "flip": True, "seed": 3}
COUNT = 240  # 160 of them for the GPU
# The rest is Pillow's, and an older one's crops may differ in the last bit from those of what would be kept.
KEPT = COUNT if pillow.resizes_as_kernel() else COUNT * 4 // 6


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixed(tmp_path_factory.mktemp("packs") / "mixed", COUNT)


def make(pack: Path, cache: Cache | None, decode: str = "cpu", **options: Any) -> Loader:
    return Loader(pack, device="cuda", decode=decode, cache=cache, **{**OPTIONS, **options})


def assert_equal(got: Any, wanted: Any) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("decode", ["auto", "cpu", "gpu"])
@pytest.mark.parametrize("interpolation", list(FILTERS))
def test_every_filter_gives_the_pixels_of_the_cpu_over_three_epochs(
    pack: Path, interpolation: Any, decode: str
) -> None:
    operation = RandomResizedCrop(56, interpolation=interpolation)
    with make(pack, Cache(gpu="100MB"), decode, image=operation) as there:
        here = make(pack, None, image=operation)
        for _ in range(3):
            assert_equal(list(there), list(here))  # kept: each must stay what it is
        stats = there.stats()
    assert (stats.cache.tiers[0].samples, stats.cache.hit_rate) == (KEPT, KEPT / COUNT)
    assert stats.by_gpu >= (0 if decode == "cpu" else 0.95 * COUNT * 4 / 6)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "L"},
        {"image": Resize((40, 91))},
        {"image": CenterCrop(32, resize=40)},
        {"image": RandomResizedCrop(224), "batch_size": 100},
        {"batch_size": 1},
        {"on_bad_sample": "skip", "dtype": torch.bfloat16, "normalize": "imagenet"},
        {"on_device": [RandomErasing(value=7), MixUp(0.2), CutMix()]},
    ],
    ids=str,
)
@pytest.mark.parametrize("limit", ["100MB", "1.5MB"], ids=["all", "a part"])
def test_whatever_is_asked_for_the_batches_are_those_without_a_cache(
    pack: Path, options: dict[str, Any], limit: str
) -> None:
    with make(pack, Cache(gpu=limit), "gpu", **options) as there:
        here = make(pack, None, **options)
        for _ in range(2):
            batches = list(there)
            assert batches[0][0].device == torch.device("cuda:0")
            assert batches[0][0].is_contiguous(memory_format=torch.channels_last)
            assert_equal(batches, list(here))
        stats = there.stats().cache
    assert 0 < stats.hits == stats.tiers[0].samples
    assert (stats.hit_rate == KEPT / COUNT) == (limit == "100MB")


@pytest.mark.parametrize("decode", ["auto", "cpu", "gpu"])
@pytest.mark.parametrize("limit", ["100MB", "1.5MB"], ids=["all", "a part"])
def test_the_host_waits_for_nothing(pack: Path, decode: str, limit: str) -> None:
    loader = make(pack, Cache(gpu=limit), decode)
    total = torch.zeros((), device="cuda")
    list(make(pack, None, "gpu"))  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(4):
            for images, labels in loader:
                total += images.float().mean() + labels.sum()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(total) > 0
    loader.close()


def test_a_late_gpu_beside_a_training_step_gets_the_batches_without_a_cache(pack: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    want = [int(x.long().sum()) for x, _ in make(pack, None, shuffle=False)]
    sums = []
    with make(pack, Cache(gpu="2MB"), "gpu", shuffle=False) as loader:
        for epoch in range(4):
            loader.set_epoch(0)
            for step, (images, _) in enumerate(loader):
                if (epoch + step) % 5 == 0:
                    torch.cuda._sleep(
                        2_000_000
                    )  # the GPU is late: filling, crops and reuse of memory overlap
                model(images.float() / 255).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                sums.append(images.sum(dtype=torch.int64))
                del images
        assert torch.stack(sums).tolist() == want * 4


def test_memory_is_what_was_asked_for_and_is_given_back(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_tier, "CHUNK_BYTES", 2 << 20)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    free, before = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    loader = make(pack, Cache(gpu="6MB"))
    for _ in range(3):
        for batch in loader:
            del batch
    gc.collect()
    tier = loader._resources.tier
    assert tier is not None
    assert 4_000_000 < tier.memory_bytes <= 6_000_000
    assert tier.memory_bytes <= torch.cuda.memory_allocated() - before <= tier.memory_bytes + (8 << 20)
    loader.close()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before < 1 << 20
    assert torch.cuda.mem_get_info()[0] >= free - (64 << 20)


def test_a_budget_beyond_what_is_free_is_told_with_what_would_fit(pack: Path) -> None:
    free, total = torch.cuda.mem_get_info()
    loader = make(pack, Cache(gpu=free))
    with pytest.raises(
        UsageError, match=r"does not fit: cuda:0 has .* free, of which .* stay free"
    ) as caught:
        iter(loader)
    hint = str(caught.value.hint)
    most = int(hint.removeprefix('gpu="').partition("MB")[0]) * 1_000_000
    assert 0 <= most <= free - max(10**9, total // 20)


def test_where_nothing_is_free_beyond_the_reserve_that_is_said_and_nothing_is_taken(
    pack: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_tier, "LEAST_FREE_BYTES", torch.cuda.mem_get_info()[1])
    with make(pack, Cache(gpu="auto"), "gpu") as loader:
        assert_equal([*loader, *loader], [*(here := make(pack, None)), *here])
        assert loader.stats().cache.tiers[0].samples == 0
    (said,) = [record.getMessage() for record in caplog.records if "takes no more" in record.getMessage()]
    assert "stay free for the model" in said


def test_two_loaders_fill_and_crop_at_the_same_time(pack: Path) -> None:
    wanted = list(make(pack, None))
    cache = Cache(gpu="100MB")
    with make(pack, cache, "gpu") as there, make(pack, cache, "cpu") as also:
        for one, other, want in zip(there, also, wanted, strict=True):
            assert_equal([one, other], [want, want])


def test_a_graph_is_captured_while_the_tier_grows(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_tier, "CHUNK_BYTES", 1 << 18)
    weights, out = torch.randn(256, 256, device="cuda"), torch.zeros(256, 256, device="cuda")
    out.copy_(weights @ weights)  # what the first product sets up cannot be captured
    for decode in ("cpu", "gpu", "gpu"):
        loader = make(pack, Cache(gpu="20MB"), decode, batch_size=4)
        batches = iter(loader)
        first = next(batches)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(50):
                out.copy_(weights @ weights)
        graph.replay()
        assert sum(len(x) for x, _ in [first, *batches]) == COUNT
        torch.cuda.synchronize()
        loader.close()
    assert torch.allclose(out, weights @ weights, atol=1e-2)
