# SPDX-License-Identifier: Apache-2.0
"""The replay in channels-last layout: of the model that the loop calls, or of its batches alone."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

from .. import layout
from .replay import Replay, synchronize, why_compiled


class Called:
    """The modules that are called between `begin` and `end`, by anybody."""

    def __init__(self) -> None:
        self._modules: dict[int, Any] = {}
        self._handle: Any = None
        self.has_images = False  # a convolution was given a batch of them

    def begin(self) -> None:
        torch = sys.modules["torch"]
        convolutions = torch.nn.Conv2d, torch.nn.ConvTranspose2d

        def look(module: Any, inputs: Any) -> None:
            self._modules[id(module)] = module
            if isinstance(module, convolutions) and inputs and is_image_batch(inputs[0]):
                self.has_images = True

        self._handle = torch.nn.modules.module.register_module_forward_pre_hook(look)

    def end(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def outermost(self) -> list[Any]:
        """Those that no other one holds: the model, or its parts where the loop calls them one by one."""
        inner = {id(child) for module in self._modules.values() for child in list(module.modules())[1:]}
        return [module for number, module in self._modules.items() if number not in inner]


class NotingReplay(Replay):
    """The first replay; in its first step it is noted which modules are called."""

    def __init__(self, book: Any, kept: list[Any], fixed: int | None = None) -> None:
        super().__init__(book, kept, fixed)
        self.called = Called()

    def start(self) -> None:
        self.called.begin()

    def next(self) -> Any:
        if self._given == 1:
            self.called.end()
        return super().next()

    def stop(self) -> None:
        self.called.end()


class Spent:
    """What the steps in one layout took."""

    def __init__(self) -> None:
        self.steps = 0
        self.wall_s = 0.0
        self.cpu_s = 0.0  # of the whole process, whoever else used the cores meanwhile


class ChannelsLast(Replay):
    """Kept batches through a model whose images, weights and optimizer states lie channels-last.

    A few steps so, a few as before, in turn: the gain is often smaller than what the machine's other users
    change from one second to the next.
    """

    phase = layout.REPLAY_CHANNELS_LAST
    warmup = 4
    least = 20
    least_s = 0.4

    def __init__(self, book: Any, kept: list[Any], called: Called) -> None:
        super().__init__(book, kept)
        self._called = called
        self._tensors: list[Any] = []
        self._handles: list[Any] = []
        self._is_last = False
        self._spent = {True: Spent(), False: Spent()}
        self._block = (0, 0.0, 0.0)  # began at this step, at these times

    def reason_not_to(self) -> str | None:
        return why_compiled() or why_no_channels_last(self._called)

    def start(self) -> None:
        models = self._called.outermost()
        weights = unique([t for model in models for t in (*model.parameters(), *model.buffers())])
        self._tensors = [t for t in weights + states_of(weights) if is_image_batch(t) and t.is_contiguous()]
        try:
            self._turn(True)
        except BaseException:
            self.stop()
            raise

    def next(self) -> Any:
        if self._given == self.warmup:
            self._begin_block()
        elif self._given > self.warmup and self._is_block_over():
            self._end_block()
            self._turn(not self._is_last)
            self._begin_block()
        return super().next()

    def is_over(self) -> bool:
        is_measured = all(spent.steps for spent in self._spent.values())
        return is_measured and super().is_over()

    def stop(self) -> None:
        self._turn(False)

    def write(self, is_cut: bool = False) -> bool:
        if not is_cut:
            self._end_block()
        if not all(spent.steps for spent in self._spent.values()):
            return False
        return super().write(is_cut)

    def detail(self) -> dict[str, Any]:
        last, plain = self._spent[True], self._spent[False]
        return dict(
            super().detail(),
            last_s=last.wall_s / last.steps,
            last_cpu_s=last.cpu_s / last.steps,
            plain_s=plain.wall_s / plain.steps,
            plain_cpu_s=plain.cpu_s / plain.steps,
        )

    def _begin_block(self) -> None:
        synchronize()
        self._block = (self._given, time.perf_counter(), time.process_time())

    def _is_block_over(self) -> bool:
        step, start_s, _ = self._block
        is_long = time.perf_counter() - start_s >= BLOCK_S * self._book.pace_s
        return is_long or self._given - step >= BLOCK_STEPS

    def _end_block(self) -> None:
        synchronize()
        step, start_s, start_cpu_s = self._block
        spent = self._spent[self._is_last]
        spent.steps += self._given - step
        spent.wall_s += time.perf_counter() - start_s
        spent.cpu_s += time.process_time() - start_cpu_s

    def _turn(self, is_last: bool) -> None:
        """In place, so that whoever holds a tensor goes on with it."""
        torch = sys.modules["torch"]
        for handle in self._handles:
            handle.remove()
        self._handles = [turn_images_of(model) for model in self._called.outermost()] if is_last else []
        grads = [t.grad for t in self._tensors if t.is_leaf and t.grad is not None]
        for tensor in unique(self._tensors + grads):
            relay(tensor, torch.channels_last if is_last else torch.contiguous_format)
        self._is_last = is_last


class LoaderLayout(Replay):
    """Kept batches that lie as feedrate.Loader hands them over; the model stays as it is."""

    phase = layout.REPLAY_LOADER_LAYOUT
    least_s = 0.5

    def reason_not_to(self) -> str | None:
        return why_compiled()

    def start(self) -> None:
        self._kept = [kept.as_loaded() for kept in self._kept]


def why_no_channels_last(called: Called) -> str | None:
    """A sentence, or None when the layout can be tried."""
    torch = sys.modules["torch"]
    models = called.outermost()
    weights = [tensor for model in models for tensor in model.parameters()]
    if not called.has_images:
        return "no convolution of the model is given batches of images"
    if any(type(model).__name__ in WRAPPED for model in models):
        return "the model is wrapped for several ranks"
    if any(tensor.dim() == 5 for tensor in weights):
        return "the model has three-dimensional convolutions too, which this layout is not for"
    images = [tensor for tensor in weights if is_image_batch(tensor)]
    if any(t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in images):
        return "channels-last is in use already"
    return None


BLOCK_STEPS, BLOCK_S = 5, 0.1  # in one layout, the latter in units of an experiment's usual time
WRAPPED = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")


def is_image_batch(thing: Any) -> bool:
    """Whether it is a floating tensor of four dimensions, for which the layout makes a difference."""
    torch = sys.modules["torch"]
    return isinstance(thing, torch.Tensor) and thing.dim() == 4 and thing.is_floating_point()


def relay(tensor: Any, memory_format: Any) -> None:
    torch = sys.modules["torch"]
    with torch.inference_mode(False), torch.no_grad():
        tensor.data = tensor.data.contiguous(memory_format=memory_format)


def unique(tensors: list[Any]) -> list[Any]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def states_of(weights: list[Any]) -> list[Any]:
    """What optimizers keep for these weights: with states that lie otherwise, their steps take longer."""
    base = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
    if base is None:
        return []
    # type(), not isinstance(): lazy proxies answer __class__ by running code.
    optimizers = [thing for thing in gc.get_objects() if issubclass(type(thing), base)]
    states = [optimizer.state.get(weight, {}) for optimizer in optimizers for weight in weights]
    return [value for state in states for value in state.values()]


def turn_images_of(model: Any) -> Any:
    """Lay out what the loop gives to the model, as `images.to(memory_format=...)` in the script would."""
    torch = sys.modules["torch"]

    def turn(thing: Any) -> Any:
        is_turned = is_image_batch(thing) and thing.shape[1] > 1
        return thing.contiguous(memory_format=torch.channels_last) if is_turned else thing

    def turn_all(_model: Any, inputs: Any, named: Any) -> Any:
        return tuple(turn(one) for one in inputs), {name: turn(one) for name, one in named.items()}

    def turn_inputs(_model: Any, inputs: Any) -> Any:
        return tuple(turn(one) for one in inputs)

    try:
        return model.register_forward_pre_hook(turn_all, with_kwargs=True)
    except TypeError:  # torch before 2.0
        return model.register_forward_pre_hook(turn_inputs)
