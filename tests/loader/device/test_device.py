# SPDX-License-Identifier: Apache-2.0
"""`Loader(device=...)` where there is no GPU: what is refused, and the logic of streams with fakes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate import Loader, RandomResizedCrop
from feedrate.errors import UsageError
from feedrate.loader.batch import Batch
from feedrate.loader.device import transfer
from support.packs import write_images

torch = pytest.importorskip("torch")


def test_on_the_cpu_batches_are_those_of_a_loader_without_a_device(tmp_path: Path) -> None:
    pack = write_images(tmp_path / "pack")
    options: dict[str, Any] = {"batch_size": 8, "image": RandomResizedCrop(8), "flip": True}
    for there, here in zip(Loader(pack, device="cpu", **options), Loader(pack, **options), strict=True):
        assert there[0].device.type == "cpu"
        assert torch.equal(there[0], here[0])
        assert torch.equal(there[1], here[1])


@pytest.mark.parametrize("device", ["gpu", "tpu:0", "meta", True, 1.5, -1, object()])
def test_what_is_no_device_is_named(tmp_path: Path, device: Any) -> None:
    with pytest.raises(UsageError, match='device must be "cuda", "cuda:1"'):
        Loader(write_images(tmp_path / "pack"), device=device)


def test_numpy_arrays_cannot_be_moved_to_a_device(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='output="numpy" gives arrays'):
        Loader(write_images(tmp_path / "pack"), device="cpu", output="numpy")


def pretend(
    monkeypatch: pytest.MonkeyPatch, *, version: str | None, count: int, forked: bool = False
) -> None:
    """Let torch say that it is such a build, on a machine with so many GPUs."""
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: forked)


@pytest.mark.parametrize(
    ("facts", "device", "words"),
    [
        ({"version": None, "count": 0}, "cuda", r"this torch \(.*\) is built without CUDA"),
        ({"version": "13.0", "count": 0}, "cuda", "torch finds no GPU"),
        ({"version": "13.0", "count": 1}, "cuda:9", "there is no cuda:9, torch finds 1 GPU"),
        ({"version": "13.0", "count": 4}, 9, "there is no cuda:9, torch finds 4 GPUs"),
        ({"version": "13.0", "count": 1, "forked": True}, "cuda", "a fork of one that had used CUDA"),
    ],
)
def test_a_gpu_that_is_not_there_is_said_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], device: Any, words: str
) -> None:
    pretend(monkeypatch, **facts)
    with pytest.raises(UsageError, match=words):
        Loader(write_images(tmp_path / "pack"), device=device)


class FakeStream:
    """Notes what happens on it, in order; copies are over when somebody waits for their event."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def record_event(self, event: str = "event") -> str:
        self.log.append(f"{event} on {self.name}")
        return event

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fake streams; 'meta' stands for the GPU, since torch copies there without one."""
    log: list[str] = []

    @contextlib.contextmanager
    def stream(used: FakeStream) -> Iterator[None]:
        log.append(f"on {used.name}")
        yield
        log.append(f"off {used.name}")

    monkeypatch.setattr(transfer, "_streams", {})
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: FakeStream(log, "side"))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: FakeStream(log, "current"))
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda t, s: log.append(f"{tuple(t.shape)} used by {s.name}")
    )
    monkeypatch.setattr(torch.cuda, "Event", lambda blocking: f"sleeping event ({blocking})")
    monkeypatch.setattr(transfer, "pin", lambda tensor: tensor)
    return log


def send(data: Any, *, is_plain: bool = True) -> Any:
    there = transfer.Transfer(torch.device("meta"), prefetch=2, is_plain=is_plain)
    return there.finish(Batch(data, 2), 0).data


def test_a_copy_goes_by_a_stream_of_its_own_and_the_loops_stream_waits_for_it(log: list[str]) -> None:
    sent = send((torch.zeros(2, 3), torch.zeros(2)))
    assert log == ["on side", "event on side", "off side"]
    log.clear()
    images, labels = sent.receive()
    assert log == [
        "sleeping event (True) on current",
        "current waits for event",
        "(2, 3) used by current",
        "(2,) used by current",
    ]
    assert (images.device.type, labels.device.type) == ("meta", "meta")


class FakeEvent:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def synchronize(self) -> None:
        self.log.append(self.name)


def test_a_batch_is_sent_only_when_the_gpu_is_through_with_one_some_steps_before(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter(f"waited for what stood at batch {n}" for n in range(9))
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: FakeEvent(log, next(names)))
    there = transfer.Transfer(torch.device("meta"), prefetch=2, is_plain=True)
    for step in range(6):
        there.wait(step)
        there.finish(Batch((torch.zeros(1),), 1), step).data.receive()
    assert [line for line in log if line.startswith("waited")] == [
        "waited for what stood at batch 0",
        "waited for what stood at batch 1",
    ]


def test_texts_keys_and_boxes_stay_on_the_host(log: list[str]) -> None:
    boxes = [torch.zeros(3, 4), torch.zeros(1, 4)]
    images, keys, where = send((torch.zeros(2, 3), ["a", "b"], boxes)).receive()
    assert images.device.type == "meta"
    assert keys == ["a", "b"]
    assert where is boxes
    assert len(log) == 6


@pytest.mark.usefixtures("log")
def test_tensors_that_a_function_made_are_moved_wherever_they_stand() -> None:
    made = {"x": [torch.zeros(1), {"y": (torch.zeros(2), "text")}], "n": 3}
    moved = send(made, is_plain=False).receive()
    assert moved["x"][0].device.type == moved["x"][1]["y"][0].device.type == "meta"
    assert (moved["x"][1]["y"][1], moved["n"]) == ("text", 3)


@pytest.mark.usefixtures("log")
def test_a_gpu_without_memory_is_told_with_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more lines")

    monkeypatch.setattr(torch.Tensor, "to", fail)
    with pytest.raises(Exception, match=r"no memory left .* 2 batches of 24 B are made ahead") as caught:
        send((torch.zeros(2, 3),))
    assert "lower prefetch (now 2" in caught.value.hint


def test_pinned_memory_is_the_hosts_whatever_the_default_device_is(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(torch, "empty", lambda *_, **how: made.append(how))  # without a GPU none is pinned
    transfer.make_pinned((3,), torch.uint8)
    assert made == [{"dtype": torch.uint8, "device": "cpu", "pin_memory": True}]


def test_a_view_of_lent_memory_is_found_as_a_view_of_the_tensor_behind_it() -> None:
    tensor = torch.arange(24, dtype=torch.uint8).reshape(4, 3, 2)
    array = tensor.numpy()[1:3][..., 1]
    found = transfer.find_pinned(array)
    assert found.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    assert np.array_equal(found.numpy(), array)
    assert transfer.find_pinned(np.zeros(3)) is None
