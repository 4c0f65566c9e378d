# SPDX-License-Identifier: Apache-2.0
"""The device's clock and the transfers, on a CUDA that is made up: events pass when the test says so."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.hook.feedrate_hook.record import training
from feedrate.doctor.hook.feedrate_hook.record.training import Device
from feedrate.doctor.hook.feedrate_hook.session import session


class FakeEvent:
    """Is passed at `time_ms`, once the device's clock has reached it."""

    made = 0
    now_ms = 0.0
    device_ms = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        FakeEvent.made += 1
        self.time_ms = 0.0

    def record(self) -> None:
        # Work that is queued before the event keeps it from being passed at once.
        self.time_ms = max(FakeEvent.now_ms, FakeEvent.device_ms)

    def query(self) -> bool:
        return FakeEvent.now_ms >= self.time_ms

    def elapsed_time(self, other: FakeEvent) -> float:
        assert other.query()
        return other.time_ms - self.time_ms


class FakeRing:
    def __init__(self) -> None:
        self.phase = layout.REAL
        self.records: list[tuple[int, int, int, int, int]] = []
        self.names: list[str] = []

    def write(self, kind: int, _name: int, start: int, wall: int, *rest: int, **more: int) -> None:
        a, b = (*rest[2:4], 0, 0)[:2] if rest else (more.get("a", 0), more.get("b", 0))
        self.records.append((kind, start, wall, a, b))

    def name(self, text: str) -> int:
        self.names.append(text)
        return len(self.names)

    def append(self, lines: list[Any]) -> None: ...


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> FakeRing:
    ring = FakeRing()
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        Event=FakeEvent,
        is_current_stream_capturing=lambda: False,
        current_stream=lambda _: "the usual one",
        default_stream=lambda _: "the usual one",
    )
    monkeypatch.setattr(session, "ring", ring)
    monkeypatch.setattr(session, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(session, "probing", True)
    for name in ("steps", "calls_to_skip"):
        monkeypatch.setattr(session, name, 0)
    FakeEvent.made, FakeEvent.now_ms, FakeEvent.device_ms = 0, 0.0, 0.0
    return ring


def step(clock: Device, number: int, wait_ms: float, device_ms: float) -> None:
    """One step of a loop: wait for a batch, then queue work for the device; the host goes on at once."""
    clock.wait_begins()
    FakeEvent.now_ms += wait_ms
    clock.wait_ends(number, number + 1)
    FakeEvent.device_ms = max(FakeEvent.now_ms, FakeEvent.device_ms) + 1  # a copy
    clock.forward_begins()
    FakeEvent.device_ms += device_ms - 1
    clock.forward_ends()


def test_a_wait_is_exposed_only_as_far_as_the_device_had_nothing_to_do(ring: FakeRing) -> None:
    clock = Device()
    step(clock, 100, wait_ms=5, device_ms=20)
    step(clock, 200, wait_ms=5, device_ms=20)  # hidden: the device works for 20 ms
    step(clock, 300, wait_ms=50, device_ms=20)  # the device is done 35 ms before the batch comes
    FakeEvent.now_ms = 1000
    clock.collect()
    exposed = [(r[1], r[2]) for r in ring.records if r[0] == layout.EXPOSED]
    assert exposed == [(100, 5_000_000), (200, 0), (300, 15_000_000)]


def test_a_step_on_the_device_reaches_from_the_batch_to_the_next_wait(ring: FakeRing) -> None:
    clock = Device()
    for number in (100, 200, 300):
        step(clock, number, wait_ms=5, device_ms=20)
    FakeEvent.now_ms = 1000
    clock.collect()
    assert [r for r in ring.records if r[0] == layout.DEVICE] == [
        (layout.DEVICE, 101, 20_000_000, 1_000_000, 0),
        (layout.DEVICE, 201, 20_000_000, 1_000_000, 0),
    ]


def test_events_that_the_device_has_not_passed_are_left_for_later(ring: FakeRing) -> None:
    clock = Device()
    step(clock, 100, wait_ms=5, device_ms=500)
    step(clock, 200, wait_ms=5, device_ms=500)
    assert [r[0] for r in ring.records] == [layout.EXPOSED]


def test_events_are_used_again(ring: FakeRing) -> None:
    clock = Device()
    for number in range(200):
        step(clock, number, wait_ms=5, device_ms=1)
    assert FakeEvent.made < 12
    assert len(ring.records) > 390


def test_unprobed_steps_record_no_events_but_close_the_step_before(
    ring: FakeRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Device()
    step(clock, 100, wait_ms=5, device_ms=3)
    monkeypatch.setattr(session, "probing", False)
    step(clock, 200, wait_ms=5, device_ms=3)
    made = FakeEvent.made
    step(clock, 300, wait_ms=5, device_ms=3)
    assert FakeEvent.made == made
    clock.collect()
    assert [r[0] for r in ring.records] == [layout.EXPOSED, layout.DEVICE]


def test_an_error_of_the_driver_switches_the_clock_off(
    ring: FakeRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Device()
    monkeypatch.setattr(FakeEvent, "record", lambda _: 1 / 0)
    step(clock, 100, wait_ms=5, device_ms=3)
    monkeypatch.undo()
    step(clock, 200, wait_ms=5, device_ms=3)
    assert ring.records == []


class FakeTensor:
    """A tensor that knows where it is."""

    def __init__(self, where: str, pinned: bool = False) -> None:
        self.device = SimpleNamespace(type=where)
        self._pinned = pinned

    def numel(self) -> int:
        return 10

    def element_size(self) -> int:
        return 4

    def is_pinned(self) -> bool:
        return self._pinned

    def to(self, where: str, non_blocking: bool = False) -> FakeTensor:
        assert non_blocking in (False, True)
        return self if where == self.device.type else FakeTensor(where)

    def item(self) -> float:
        return 1.5

    def copy_(self, source: FakeTensor) -> FakeTensor:
        assert source is not self
        return self


@pytest.fixture
def tensor_class(ring: FakeRing, monkeypatch: pytest.MonkeyPatch) -> type:
    class Tensor(FakeTensor):
        pass

    assert session.ring is ring
    monkeypatch.setattr(session, "thread", threading.get_ident())
    monkeypatch.setattr(training, "is_compiling", lambda: False)
    cuda = SimpleNamespace(synchronize=lambda: None)
    training.patch_tensors(SimpleNamespace(Tensor=Tensor, cuda=cuda))
    return Tensor


def test_copies_to_the_device_say_how_and_from_where(ring: FakeRing, tensor_class: type) -> None:
    tensor_class("cpu", pinned=True).to("cuda", non_blocking=True)
    tensor_class("cpu").to("cuda")
    assert [(r[0], r[3], r[4]) for r in ring.records] == [(layout.COPY, 40, 1), (layout.COPY, 40, 0)]
    assert all(name.startswith(__file__) for name in ring.names)


def test_a_copy_on_a_stream_of_its_own_says_so(
    ring: FakeRing, tensor_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.torch.cuda, "current_stream", lambda _: "another one")
    tensor_class("cpu", pinned=True).to("cuda")
    assert ring.records[0][4] == 5


def test_of_many_waits_in_one_step_a_few_are_timed_and_stand_for_all(
    ring: FakeRing, tensor_class: type
) -> None:
    for _ in (1, 2):
        session.begin_step()
        for _ in range(1024):
            tensor_class("cuda").item()
    calls = [r[3] for r in ring.records]
    assert len(calls) < 100
    assert sum(calls) == pytest.approx(2 * 1024, rel=0.05)


def test_steps_with_few_waits_have_each_of_them_timed(ring: FakeRing, tensor_class: type) -> None:
    for _ in range(3):
        session.begin_step()
        for _ in range(8):
            tensor_class("cuda").item()
    assert [r[3] for r in ring.records] == [1] * 24


def test_a_step_that_asks_several_loaders_is_one(ring: FakeRing, monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.ring is ring
    monkeypatch.setattr(session, "_asked", set())
    monkeypatch.setattr(session, "optimizer_steps", 0)
    steps = session.steps
    for _ in range(3):  # two loaders, then an optimizer step
        session.begin_step(1)
        session.begin_step(2)
        session.optimizer_steps += 1
    assert session.steps - steps == 3
    for _ in range(4):  # validation
        session.begin_step(3)
    assert session.steps - steps == 7


def test_waits_are_named_by_their_lines(ring: FakeRing, tensor_class: type) -> None:
    session.begin_step()
    for _ in range(2):
        tensor_class("cuda").item()
        tensor_class("cuda").item()
    assert [name.rpartition(":")[0] for name in ring.names] == [f"item {__file__}"] * 4
    assert ring.names[:2] == ring.names[2:]
    assert len(set(ring.names)) == 2


def test_in_a_step_that_is_left_alone_no_wait_is_timed(
    ring: FakeRing, tensor_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "steps", 7)
    session.begin_step()
    tensor_class("cuda").item()
    assert ring.records == []


def test_what_comes_back_and_what_waits_is_told_apart(ring: FakeRing, tensor_class: type) -> None:
    tensor_class("cuda").to("cpu")
    tensor_class("cuda").item()
    tensor_class("cpu").copy_(tensor_class("cuda"))
    assert [r[0] for r in ring.records] == [layout.READBACK, layout.SYNC, layout.READBACK]
    assert [name.split()[0] for name in ring.names] == ["to", "item", "copy_"]


def test_work_on_the_host_alone_is_not_recorded(ring: FakeRing, tensor_class: type) -> None:
    assert tensor_class("cpu").to("cpu").item() == 1.5
    assert ring.records == []
