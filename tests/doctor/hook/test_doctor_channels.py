# SPDX-License-Identifier: Apache-2.0
"""The experiment in channels-last layout: what it converts, what it puts back, and where it is not made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feedrate.doctor.hook.feedrate_hook import layout
from support.doctor_scripts import run_script

torch = pytest.importorskip("torch")

from feedrate.doctor.hook.feedrate_hook.experiment import batches, replay  # noqa: E402

LAST = torch.channels_last


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)
        )
        self.head = torch.nn.Linear(8, 2)
        self.layouts: list[bool] = []

    def forward(self, images: Any) -> Any:
        self.layouts.append(images.is_contiguous(memory_format=LAST))
        return self.head(self.body(images).mean((2, 3)))


def make_loop(model: Any, *, set_to_none: bool = True) -> Callable[[Any], float]:
    optimizer = torch.optim.Adam(model.parameters())

    def train(x: Any) -> float:
        loss = model(x).square().mean()
        optimizer.zero_grad(set_to_none=set_to_none)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    train.states = optimizer.state  # type: ignore[attr-defined]
    return train


@pytest.fixture(autouse=True)
def quick_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay.session, "pace_s", 0.05)


def note(model: Any, *inputs: Any) -> replay.Called:
    called = replay.Called()
    called.begin()
    try:
        model(*inputs)
    finally:
        called.end()
    return called


def make_feed(called: replay.Called, batch: Any) -> replay.ChannelsLast:
    return replay.ChannelsLast([batches.Kept(batch)], called)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_weights_gradients_and_optimizer_states_are_converted_and_put_back(set_to_none: bool) -> None:
    model = Net()
    train = make_loop(model, set_to_none=set_to_none)
    images = torch.rand(4, 3, 9, 9)
    train(images)
    filters = model.body[0].weight
    before = {name: tensor.stride() for name, tensor in model.state_dict().items()}
    feed = make_feed(note(model, images), images)
    assert feed.reason_not_to() is None
    feed.start()
    for _ in range(3):
        assert train(feed.give()) < float("inf")
    states = train.states[filters]  # type: ignore[attr-defined]
    for tensor in (filters, filters.grad, states["exp_avg"], states["exp_avg_sq"]):
        assert tensor.is_contiguous(memory_format=LAST)
        assert not tensor.is_contiguous()
    assert model.layouts[-3:] == [True] * 3
    feed.stop()
    for tensor in (filters, filters.grad, states["exp_avg"], states["exp_avg_sq"]):
        assert tensor.is_contiguous()
    assert {name: tensor.stride() for name, tensor in model.state_dict().items()} == before
    train(feed.give())
    assert model.layouts[-1] is False


def test_steps_in_both_layouts_take_turns_and_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = Net(), torch.rand(4, 3, 9, 9)
    train = make_loop(model)
    train(images)
    feed = make_feed(note(model, images), images)
    feed.start()
    model.layouts.clear()
    facts: list[Any] = []
    noting = SimpleNamespace(pace_s=1e6, measured=lambda *fact: facts.append(fact))
    monkeypatch.setattr(replay, "session", noting)
    for _ in range(feed.warmup + 4 * replay.BLOCK_STEPS):
        assert not feed.is_over()
        train(feed.next())
    last, plain = [True] * replay.BLOCK_STEPS, [False] * replay.BLOCK_STEPS
    assert model.layouts == [True] * feed.warmup + (last + plain) * 2
    assert feed.write()
    feed.stop()
    assert {is_last: spent.steps for is_last, spent in feed._spent.items()} == {True: 10, False: 10}
    assert facts[0][2] == 4 * replay.BLOCK_STEPS


def test_the_layout_changes_no_value() -> None:
    model, images = Net().eval(), torch.rand(4, 3, 9, 9)
    expected = model(images)
    feed = make_feed(note(model, images), images)
    feed.start()
    torch.testing.assert_close(model(images), expected)
    feed.stop()
    assert torch.equal(model(images), expected)


def test_images_that_a_model_takes_by_name_are_turned_too() -> None:
    model = Net()
    feed = make_feed(note(model, torch.rand(4, 3, 9, 9)), torch.rand(4, 3, 9, 9))
    feed.start()
    model(images=torch.rand(4, 3, 9, 9))
    feed.stop()
    assert model.layouts == [False, True]


def test_a_model_in_inference_mode_is_converted_and_put_back() -> None:
    model, images = Net().eval(), torch.rand(4, 3, 9, 9)
    with torch.inference_mode():
        feed = make_feed(note(model, images), images)
        feed.start()
        model(feed.give())
        feed.stop()
    assert model.layouts[-1] is True
    assert not model.body[0].weight.is_inference()
    make_loop(model)(images)


def test_models_that_a_loop_calls_one_by_one_are_all_found() -> None:
    first, second = Net(), torch.nn.Conv2d(3, 3, 3)
    called = replay.Called()
    called.begin()
    first(second(torch.rand(2, 3, 9, 9)))
    called.end()
    assert called.outermost() == [second, first]


@pytest.mark.parametrize(
    ("model", "shape", "why"),
    [
        (torch.nn.Linear(3, 2), (4, 3), "no convolution"),
        (torch.nn.Linear(3, 2), (4, 2, 2, 3), "no convolution"),
        (torch.nn.Conv1d(3, 2, 1), (4, 3, 5), "no convolution"),
        (torch.nn.Conv2d(3, 2, 3), (3, 5, 5), "no convolution"),
        (torch.nn.DataParallel(torch.nn.Conv2d(3, 2, 3)), (4, 3, 5, 5), "several ranks"),
        (torch.nn.Conv2d(3, 2, 3).to(memory_format=LAST), (4, 3, 5, 5), "in use already"),
    ],
)
def test_where_the_layout_is_not_for_it_says_why(model: Any, shape: tuple[int, ...], why: str) -> None:
    feed = make_feed(note(model, torch.rand(shape)), torch.rand(shape))
    assert why in (feed.reason_not_to() or "")


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8])
def test_batches_are_laid_out_as_a_loaders_and_the_model_stays_as_it_is(kind: Any) -> None:
    """A Loader's images lie channels-last, whatever the model's weights do."""
    model, images = Net(), torch.arange(4 * 3 * 9 * 9).reshape(4, 3, 9, 9).to(kind)
    strides = {name: tensor.stride() for name, tensor in model.state_dict().items()}
    kept = batches.Kept({"image": images, "label": torch.arange(4)})
    assert kept.has_images()
    feed = replay.LoaderLayout([kept])
    feed.start()
    batch = feed.give()
    assert batch["image"].is_contiguous(memory_format=LAST)
    assert batch["label"].is_contiguous()
    assert torch.equal(batch["image"], images)
    make_loop(model)(batch["image"].float())
    assert model.layouts == [True]
    assert {name: tensor.stride() for name, tensor in model.state_dict().items()} == strides
    batch["image"].zero_()
    assert torch.equal(feed.give()["image"], images), "what the loop changed in place is restored"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(4, 3, 9, 9).contiguous(memory_format=LAST),
        torch.rand(4, 1, 9, 9),
        torch.rand(4, 9, 9, 3),
        torch.zeros(4, 3, 9, 9, dtype=torch.int64),
        torch.rand(4, 3),
    ],
)
def test_what_a_loader_would_lay_out_alike_has_nothing_to_turn(tensor: Any) -> None:
    assert not batches.Kept([tensor]).has_images()


def test_a_convolutional_network_is_trained_in_channels_last_layout_at_the_end(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        class Images(Numbers):
            def __getitem__(self, index):
                return torch.full((3, 12, 12), index / 400), index % 2

        layers = torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(800, 2)
        model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        for x, y in DataLoader(Images(), batch_size=BATCH):
            loss = train(x, y)
            assert loss == loss
        """,
    )
    assert (run.code, run.errors, run.of("hook-error")) == (0, "", [])
    ends = [layout.REPLAY, layout.REPLAY_CHANNELS_LAST, layout.REPLAY_LOADER_LAYOUT]
    assert run.phases()[-3:] == ends
    detail = run.detail(layout.REPLAY_CHANNELS_LAST)
    assert sorted(detail) == ["last_cpu_s", "last_s", "plain_cpu_s", "plain_s"]
    assert min(detail.values()) > 0
    assert run.of("end")[-1]["error"] is None
