# SPDX-License-Identifier: Apache-2.0
"""How much the GPU decodes with `decode="auto"`: its controller in simulated loops, and in a `Loader`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedrate import Loader, RandomResizedCrop
from feedrate.loader import threads
from feedrate.loader.device import gpu_decode
from feedrate.loader.threads import (
    FIRST_DELAY_S,
    LONGEST_DELAY_S,
    ShareController,
    ThreadController,
    Window,
)
from support.examples import examples
from support.fake_gpu import FakeGpu
from support.packs import write_images, write_mixed

torch = pytest.importorskip("torch")


class Loop:
    """A loop that trains on a GPU, and its loader, in time that is only counted.

    A batch takes `cpu_s` of one core, or `planned_s` where the GPU decodes it, and then `gpu_s` of the GPU;
    a training step takes `step_s` of the GPU.
    """

    def __init__(
        self, cores: int, *, cpu_s: float, step_s: float, gpu_s: float = 0.005, planned_s: float = 0.02,
        runs_ahead: bool = False, is_fixed: bool = False, loop_cores: float = 0.0,
    ) -> None:  # fmt: skip
        self.cpu_s, self.step_s, self.gpu_s, self.planned_s = cpu_s, step_s, gpu_s, planned_s
        self.runs_ahead, self.loop_cores = runs_ahead, loop_cores
        self.now = self.loop_waited = self.held_back = self.cpu = 0.0
        self.batches, self.moves = 0, list[tuple[float, float]]()
        self.share = ShareController(lambda: self.now)
        self.controller = ThreadController(cores, lambda: self.now, is_fixed=is_fixed)
        self.begin(cores)

    def begin(self, cores: int) -> None:
        measure = lambda: (  # noqa: E731
            self.loop_waited, self.held_back, self.cpu, self.cpu + self.loop_cores * self.now,
        )  # fmt: skip
        self.controller.begin(cores, 3, 4, measure, self.share)

    def times(self, share: float, count: int) -> tuple[float, float]:
        """Return the seconds of a batch in the loader, and in the loop."""
        made = self.cpu_s * (1 - share) + self.planned_s * share
        return made / count, self.step_s + self.gpu_s * share

    def best(self, cores: int) -> float:
        """Return the highest rate that any share gives."""
        return max(1 / max(self.times(parts / 8, cores)) for parts in range(9))

    def run(self, seconds: float) -> float:
        """Return the batches per second of the next `seconds`."""
        began, before = self.now, self.batches
        while self.now < began + seconds:
            share, count = self.share.share, self.controller.threads
            made, used = self.times(share, count)
            step = max(made, used)
            self.now += step
            self.batches += 1
            self.cpu += made * count
            self.loop_waited += step - used
            if self.runs_ahead and made < step:
                # The loop waits for a batch that a maker holds back, until the GPU has caught up.
                self.held_back += 3 * (step - made)
                self.loop_waited += step / 2
            self.controller.note_batch()
            if self.share.share != share:
                self.moves.append((self.now, self.share.share))
        return (self.batches - before) / (self.now - began)


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("cores", [1, 2])
def test_with_few_cores_nearly_all_goes_to_the_gpu_within_seconds(cores: int, is_fixed: bool) -> None:
    loop = Loop(cores, cpu_s=0.3, step_s=0.03, is_fixed=is_fixed)
    loop.run(10)
    assert loop.share.share == 1
    assert loop.run(300) >= 0.97 * loop.best(cores)


def test_less_is_not_tried_where_the_cores_could_not_make_up_for_it() -> None:
    # ResNet-18 on an H200, two cores: a batch takes 143 ms of a core, or 10 ms where the GPU decodes it.
    loop = Loop(2, cpu_s=0.143, step_s=0.019, gpu_s=0.0006, planned_s=0.01, runs_ahead=True, loop_cores=1.0)
    loop.run(10)
    before = len(loop.moves)
    assert loop.run(600) >= 0.99 * loop.best(2)
    assert len(loop.moves) == before


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_where_the_cpu_does_the_gpu_is_left_to_the_training(runs_ahead: bool) -> None:
    loop = Loop(16, cpu_s=0.3, step_s=0.04, runs_ahead=runs_ahead)
    loop.run(300)
    assert loop.moves == []


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_where_the_cpu_lacks_a_little_the_gpu_does_a_little(runs_ahead: bool) -> None:
    loop = Loop(8, cpu_s=0.36, step_s=0.04, runs_ahead=runs_ahead)
    loop.run(60)
    assert loop.run(600) >= 0.98 * loop.best(8)
    assert max(share for _, share in loop.moves) <= 3 / 8


def test_a_share_goes_down_again_when_the_loop_needs_less() -> None:
    loop = Loop(4, cpu_s=0.3, step_s=0.02)
    loop.run(20)
    assert loop.share.share > 0.5
    loop.step_s = 0.2  # as a larger model
    loop.run(120)
    assert loop.share.share == 0


def test_a_gpu_that_decodes_slower_than_the_cpu_is_left_alone() -> None:
    loop = Loop(4, cpu_s=0.1, step_s=0.02, gpu_s=0.2)
    loop.run(60)
    assert loop.share.share == 0
    assert loop.run(600) >= 0.97 / 0.025


def test_a_gpu_that_is_late_with_what_it_decodes_gets_less() -> None:
    class Late(Loop):
        def times(self, share: float, count: int) -> tuple[float, float]:
            """As in a loop that leaves the GPU little time: batches come the later, the more it decodes."""
            made, used = super().times(share, count)
            return max(made, 0.12 * share), used

    loop = Late(8, cpu_s=0.6, step_s=0.03)
    loop.share._parts = 8
    loop.run(120)
    assert loop.run(600) >= 0.95 * loop.best(8)


ENOUGH: dict[str, Any] = {"has_all_threads": True, "threads": 64, "cores": 64}


def steady(rate: float, *, waited: float = 0.6, held_back: float = 0.3) -> list[Window]:
    """Two windows of a loop that runs ahead of its GPU: it waits in any case, and so do the makers."""
    return [Window(rate, waited, held_back, needed=4.0)] * 2


def begin_at(parts: int) -> ShareController:
    """Return a controller that has gone from nothing to so many eighths, and kept them."""
    share = ShareController(lambda: 0.0)
    waited = 0.8 * parts / 8 - 0.01  # as much as the rule for the first step turns into so many
    assert share.note([Window(80.0, waited, 0.0, needed=16.0)], **ENOUGH)
    assert share.share == parts / 8
    return share


def test_less_is_left_again_where_the_loop_waits_in_any_case_and_the_rate_falls() -> None:
    share = begin_at(8)
    assert share.note(steady(140.0), **ENOUGH)
    assert share.share < 1  # tried
    assert share.note(steady(118.0, waited=0.5), **ENOUGH)
    assert share.share == 1


def test_a_step_that_helped_is_followed_by_the_next_though_the_gpu_is_late_too() -> None:
    share = begin_at(6)
    assert share.note(steady(118.0), **ENOUGH)
    assert share.share > 6 / 8


def test_a_share_that_was_switched_off_stays_off() -> None:
    share = begin_at(8)
    share.switch_off()
    supply_bound = [Window(80.0, 0.7, 0.0, needed=16.0)] * 2
    assert not share.note(supply_bound, **ENOUGH)
    assert share.share == 0


def test_a_share_that_would_not_do_is_tried_more_and_more_rarely() -> None:
    loop = Loop(4, cpu_s=0.1, step_s=0.02, gpu_s=0.2)
    loop.run(1500)
    tried = [now for now, share in loop.moves if share]
    rounds = [later - earlier for earlier, later in pairwise(tried)]
    rounds = [pause for pause in rounds if pause >= FIRST_DELAY_S]
    assert rounds[0] < LONGEST_DELAY_S / 4
    assert rounds[-1] >= LONGEST_DELAY_S


def test_threads_come_before_the_gpu() -> None:
    loop = Loop(16, cpu_s=0.3, step_s=0.15)
    loop.run(60)
    assert loop.controller.threads < 8
    loop.step_s = 0.025
    loop.run(12)
    assert loop.controller.threads >= 12
    assert loop.moves == []


def test_all_threads_stay_while_the_gpu_decodes() -> None:
    loop = Loop(2, cpu_s=0.3, step_s=0.03)
    loop.run(300)
    assert loop.share.share >= 0.75
    assert loop.controller.changes == 0


def test_what_was_found_holds_for_the_next_epoch() -> None:
    loop = Loop(2, cpu_s=0.3, step_s=0.03)
    loop.run(20)
    found = loop.share.share
    loop.begin(2)
    assert loop.share.share == found >= 0.75


@settings(max_examples=examples(30), deadline=None)
@given(
    cores=st.integers(1, 32), cpu_s=st.floats(0.05, 2), step_s=st.floats(0.02, 1),
    gpu_s=st.floats(0.001, 0.2), runs_ahead=st.booleans(),
)  # fmt: skip
def test_whatever_the_times_nearly_the_best_rate_is_found(
    cores: int, cpu_s: float, step_s: float, gpu_s: float, runs_ahead: bool
) -> None:
    loop = Loop(cores, cpu_s=cpu_s, step_s=step_s, gpu_s=gpu_s, planned_s=cpu_s / 8, runs_ahead=runs_ahead)
    loop.run(200)
    assert loop.run(800) >= 0.93 * loop.best(cores)


OPTIONS: dict[str, Any] = {"batch_size": 8, "image": RandomResizedCrop(24), "device": "cuda", "seed": 3}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("threads_given", [None, 1])
def test_a_loop_that_waits_gets_its_images_from_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads_given: int | None
) -> None:
    # A window is over with every second batch, and the loop does nothing but wait.
    monkeypatch.setattr(threads, "WINDOW_S", 0.0)
    monkeypatch.setattr(threads, "WINDOW_BATCHES", 2)
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
