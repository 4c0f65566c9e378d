# SPDX-License-Identifier: Apache-2.0
"""How much the GPU decodes with `decode="auto"`: its controller in simulated loops, and in a `Loader`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedrate import Loader, RandomResizedCrop
from feedrate.loader import threads
from feedrate.loader.device import gpu_decode
from feedrate.loader.threads import ShareController, Window
from support.examples import examples
from support.fake_gpu import FakeGpu
from support.packs import write_images, write_mixed
from support.simulated_loop import H200, INFER, Job, Simulation

torch = pytest.importorskip("torch")

Load = Callable[[float], float]

LOOPS = {
    "ResNet-18's training": H200,
    "ResNet-18's inference": INFER,
    "ResNet-50's training": replace(H200, step_s=0.054, launch_s=0.011),
    "no training": replace(H200, step_s=1e-5, launch_s=1e-4),
}


def busy(seed: int, most: float) -> Load:
    """Others of the machine, which take up to so many cores, most of the time much less."""
    drawn = random.Random(seed)
    levels = [most * drawn.random() ** 3 for _ in range(100)]
    return lambda now: levels[int(now / 0.7) % 100]


def in_circumstances(name: str, job: Job, seed: int) -> Job:
    return {
        "alone": job,
        "that waits for each step": replace(job, is_synchronous=True),
        "on a busy machine": replace(job, noise=0.15, others=busy(seed, job.cores / 2)),
        "with slow first steps": replace(job, slow=lambda now: 8 if now < 1 else 3 if now < 1.5 else 1),
        "whose first steps get faster": replace(job, slow=lambda now: max(1.0, 4 - now)),
        "beside a job of 7 seconds": replace(job, others=lambda now: job.cores / 2 if 5 < now < 12 else 0.0),
        "in short epochs": replace(job, epoch=71, noise=0.1),
    }[name]


def rate(job: Job, share: float | None, seed: int, *, after: float = 3.0, seconds: float = 10.0) -> float:
    """Return the batches per second from the third second on; with a share, or as it is chosen."""
    loop = Simulation(job, share=share, seed=seed)
    loop.run(after)
    return loop.run(seconds)


@pytest.mark.parametrize("circumstances", [
    "alone", "that waits for each step", "on a busy machine", "with slow first steps",
    "whose first steps get faster", "beside a job of 7 seconds", "in short epochs",
])  # fmt: skip
@pytest.mark.parametrize("cores", [1, 2, 4, 16])
@pytest.mark.parametrize("loop", LOOPS)
def test_auto_gives_97_percent_of_the_better_of_cpu_and_gpu(
    loop: str, cores: int, circumstances: str
) -> None:
    found = []
    for seed in range(3):
        job = in_circumstances(circumstances, replace(LOOPS[loop], cores=cores), seed)
        when = {
            "after": 5.0 if "first" in circumstances else 3.0,
            "seconds": 20 if "job" in circumstances else 10,
        }
        found.append(rate(job, None, seed, **when) / max(rate(job, share, seed, **when) for share in (0, 1)))
    assert median(found) >= 0.97


@settings(max_examples=examples(25), deadline=None)
@given(
    cores=st.integers(1, 32), cpu_s=st.floats(0.02, 0.4), planned=st.floats(0.05, 0.4),
    kernels_s=st.floats(0.0005, 0.01), step_s=st.floats(0.005, 0.1), launch=st.floats(0.05, 0.7),
    python_s=st.floats(0.0005, 0.003), there_s=st.floats(0.001, 0.004), is_synchronous=st.booleans(),
)  # fmt: skip
def test_whatever_the_times_nearly_the_best_rate_is_found(
    cores: int, cpu_s: float, planned: float, kernels_s: float, step_s: float, launch: float,
    python_s: float, there_s: float, is_synchronous: bool,
) -> None:  # fmt: skip
    job = Job(
        cores, cpu_s, planned * cpu_s, kernels_s, step_s, launch * step_s, python_s, there_s,
        is_synchronous=is_synchronous,
    )  # fmt: skip
    best = max(rate(job, parts / 4, 0, after=10) for parts in range(5))
    assert rate(job, None, 0, after=10, seconds=60) >= 0.9 * best


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("cores", [1, 2])
def test_with_few_cores_all_goes_to_the_gpu_within_three_seconds(cores: int, is_fixed: bool) -> None:
    loop = Simulation(replace(H200, cores=cores), is_fixed=is_fixed)
    loop.run(3)
    assert loop.share.share == 1


def test_less_is_not_tried_where_the_cores_could_not_make_up_for_it() -> None:
    loop = Simulation(replace(H200, cores=2))
    loop.run(3)
    before = len(loop.shares)
    loop.run(120)
    assert len(loop.shares) == before


@pytest.mark.parametrize("is_synchronous", [False, True])
def test_where_the_cpu_does_the_gpu_is_left_to_the_training(is_synchronous: bool) -> None:
    loop = Simulation(replace(H200, is_synchronous=is_synchronous))
    loop.run(120)
    assert loop.shares == []


def test_shares_that_only_the_interpreters_lock_makes_slow_are_left() -> None:
    # The loop does not wait for batches there, and the cores could decode more: it cannot launch faster.
    mixed, there = (rate(INFER, share, 0) for share in (0.625, 1))
    assert mixed < 0.85 * there
    loop = Simulation(INFER)
    loop.run(3)
    assert loop.share.share == 1


def test_where_the_cpu_lacks_a_little_the_gpu_does_a_little() -> None:
    loop = Simulation(replace(H200, cores=8, kernels_s=0.004))
    loop.run(60)
    assert 0 < loop.share.share <= 0.5


def test_a_share_goes_down_again_when_the_loop_needs_less() -> None:
    loop = Simulation(replace(H200, cores=4, slow=lambda now: 1 if now < 20 else 10))  # as a larger model
    loop.run(20)
    assert loop.share.share > 0.5
    loop.run(60)
    assert loop.share.share == 0


def test_a_gpu_that_decodes_slower_than_the_cpu_is_left_alone() -> None:
    loop = Simulation(replace(H200, cores=4, cpu_s=0.1, kernels_s=0.2))
    loop.run(25)
    assert loop.share.share == 0
    assert {share for _, share in loop.shares} == {0, 1}  # tried


def test_a_gpu_that_is_late_with_what_it_decodes_gets_less() -> None:
    job = replace(H200, cores=8, cpu_s=0.4, kernels_s=0.06, launch_s=0.004)
    best = max(rate(job, parts / 8, 0) for parts in range(9))
    assert rate(job, 1, 0) < 0.6 * best
    assert rate(job, None, 0, after=15, seconds=60) >= 0.95 * best


def test_searches_become_rarer() -> None:
    loop = Simulation(INFER)
    loop.run(270)
    tried = [now for now, share in loop.shares if share < 1]
    pauses = [later - earlier for earlier, later in pairwise(tried) if later - earlier > 2]
    assert len(pauses) >= 4
    assert all(later > 2 * earlier for earlier, later in pairwise(pauses))


def test_threads_come_before_the_gpu() -> None:
    loop = Simulation(replace(H200, is_synchronous=True, slow=lambda now: 10 if now < 60 else 1))
    loop.run(60)
    before = loop.controller.threads
    assert before < 8
    loop.run(20)
    assert loop.controller.threads > before
    assert loop.shares == []


def test_all_threads_stay_while_the_gpu_decodes() -> None:
    loop = Simulation(replace(H200, cores=2))
    loop.run(60)
    assert loop.share.share == 1
    assert loop.controller.changes == 0


def test_what_was_found_holds_for_the_next_epoch() -> None:
    loop = Simulation(replace(H200, cores=2, epoch=71))
    loop.run(3)
    before = len(loop.shares)
    loop.run(30)
    assert len(loop.shares) == before
    assert loop.share.share == 1


def test_a_share_that_was_switched_off_stays_off() -> None:
    share = ShareController(lambda: 0.0)
    supply_bound = [Window(80.0, 0.7, 0.0, needed=16.0)] * 2
    assert share.note(supply_bound, has_all_threads=True, threads=16, cores=16)
    assert share.share == 1
    share.switch_off()
    assert not share.note(supply_bound, has_all_threads=True, threads=16, cores=16)
    assert share.share == 0


OPTIONS: dict[str, Any] = {"batch_size": 8, "image": RandomResizedCrop(24), "device": "cuda", "seed": 3}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("threads_given", [None, 1])
def test_a_loop_that_waits_gets_its_images_from_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads_given: int | None
) -> None:
    # A window is over with every batch, and the loop does nothing but wait.
    monkeypatch.setattr(threads, "SHARE_WINDOW_S", 0.0)
    pack = write_mixed(tmp_path / "pack", 48)
    wanted = [[x.clone() for x, _ in Loader(pack, decode="cpu", **OPTIONS)]]
    with Loader(pack, decode="auto", threads=threads_given, **OPTIONS) as loader:
        assert loader.stats().gpu_share == 0
        got = [[x.clone() for x, _ in loader] for _ in range(12)]
        stats = loader.stats()
    assert stats.by_gpu > 0
    assert all(torch.equal(a, b) for a, b in zip(got[0], wanted[0], strict=True))
    assert stats.threads == (threads_given or stats.threads)
    assert threads_given is None or stats.thread_changes == 0


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("share", [1 / 8, 1 / 2, 7 / 8])
def test_any_share_gives_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    pack = write_mixed(tmp_path / "pack", 48)
    monkeypatch.setattr(ShareController, "share", share)
    with Loader(pack, decode="auto", **OPTIONS) as loader, Loader(pack, decode="cpu", **OPTIONS) as plain:
        for one, other in zip(loader, plain, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        stats = loader.stats()
    # Of six images two have no entry points: up to 5 of 8 fit into every batch.
    assert stats.by_gpu == 48 * share if share <= 1 / 2 else 30 <= stats.by_gpu <= 32
    assert stats.gpu_share == share


def test_a_gpu_that_cannot_decode_is_said_once_and_the_cpu_does(
    gpu: FakeGpu, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.why_not = "torch came without NVRTC: pip install it"
    pack = write_images(tmp_path / "pack")
    for _ in range(2):
        with Loader(pack, decode="auto", **OPTIONS) as loader:
            assert len(list(loader)) == len(list(loader)) == 3
            assert loader.stats().gpu_share == 0
    (record,) = caplog.records
    assert "decoded on the CPU, since the GPU cannot: torch came without NVRTC" in record.getMessage()


@pytest.mark.usefixtures("gpu")
def test_a_gpu_without_memory_leaves_decoding_to_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more lines")

    pack = write_mixed(tmp_path / "pack", 48)
    monkeypatch.setattr(ShareController, "share", 1.0)
    monkeypatch.setattr(gpu_decode.GpuDecoder, "_make_room", fail)
    with Loader(pack, decode="auto", **OPTIONS) as loader, Loader(pack, decode="cpu", **OPTIONS) as plain:
        for one, other in zip(loader, plain, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        assert (loader.stats().gpu_share, loader.stats().by_gpu) == (0, 0)
        assert gpu_decode.NO_MEMORY in loader.stats().cpu_reasons
    (record,) = caplog.records
    assert "the CPU decodes from now on" in record.getMessage()
