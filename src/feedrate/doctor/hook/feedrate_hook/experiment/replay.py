# SPDX-License-Identifier: Apache-2.0
"""What the user's loop is fed with: kept batches, in some layout or precision, or another loader's."""

from __future__ import annotations

import abc
import sys
import time
from typing import Any

from .. import layout
from ..record import loader_clone
from ..session import session
from ..wrapping import living

torch: Any = sys.modules.get("torch")  # the one of the user's process


class Feed(abc.ABC):
    """One phase of the user's loop: `warmup` steps, then at least `least`, for a time.

    `least_s` and `most_s` bound that time, in units of the usual time of an experiment.

    With `fixed`, exactly that many steps: ranks must make the same number.
    """

    phase = layout.REPLAY
    warmup = 3
    least = 20
    least_s = 1.0
    most_s = 2.4

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._given = 0
        self._start_ns = 0
        self._last_ns = 0

    def reason_not_to(self) -> str | None:
        """Why this phase is skipped: a sentence, or None."""
        return None

    def start(self) -> None:
        """Make ready. What it raises skips the phase, too."""
        return

    @abc.abstractmethod
    def give(self) -> Any:
        """Return the next batch for the user's loop."""

    def stop(self) -> None:
        """Leave the loop as it was."""
        return

    def detail(self) -> dict[str, Any]:
        return {}

    def next(self) -> Any:
        """The batch of the next step. The step before it is complete."""
        if self._given == self.warmup:
            synchronize()
            self._start_ns = time.perf_counter_ns()
        self._last_ns = time.perf_counter_ns()
        batch = self.give()
        self._given += 1
        return batch

    def is_over(self) -> bool:
        """Asked at the beginning of a next()."""
        steps = self._given - self.warmup
        if steps <= 0:
            return False
        if self._fixed is not None:
            return steps >= self._fixed
        elapsed = (time.perf_counter_ns() - self._start_ns) / 1e9 / session.pace_s
        return elapsed >= self.most_s or (elapsed >= self.least_s and steps >= self.least)

    def write(self, is_cut: bool = False) -> bool:
        """The fact of this phase. When the user's code has left the loop, its last step does not count.

        False: there were too few steps for one.
        """
        steps = self._given - self.warmup
        if not is_cut:
            synchronize()
            span = (self._start_ns, time.perf_counter_ns())
            session.measured(self.phase, span, steps, self.detail())
        elif steps >= 4:
            span = (self._start_ns, self._last_ns)
            session.measured(self.phase, span, steps - 1, dict(self.detail(), cut=True))
        else:
            return False
        return True


class Replay(Feed):
    """Kept batches in turn."""

    def __init__(self, kept: list[Any], fixed: int | None = None) -> None:
        super().__init__(fixed)
        self._kept = kept

    def give(self) -> Any:
        return self._kept[self._given % len(self._kept)].again()


class HalfPrecision(Replay):
    """Under autocast, switched on from outside the user's code."""

    phase = layout.REPLAY_HALF_PRECISION
    warmup = 4
    least = 15
    least_s = 0.0

    def __init__(self, kept: list[Any], fixed: int | None = None) -> None:
        super().__init__(kept, fixed)
        self._is_in_use = False
        self._original: Any = None  # what begins an autocast, while it is replaced
        self._handle: Any = torch.nn.modules.module.register_module_forward_pre_hook(self._look)

    def _look(self, module: Any, _inputs: Any) -> None:
        """In the first forward pass from now on: does it run under autocast, or with half weights?"""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()
            first = next(module.parameters(), None)
            is_half = first is not None and first.dtype in (torch.float16, torch.bfloat16)
            self._is_in_use = is_half or torch.is_autocast_enabled()

    def reason_not_to(self) -> str | None:
        is_used = torch.cuda.is_available() and torch.cuda.is_initialized()
        if not is_used or torch.cuda.memory_allocated() <= 0:
            return "no CUDA device is used"
        return "half precision is in use already" if self._is_in_use else why_compiled()

    def start(self) -> None:
        switch_autocast(True)
        original = self._original = torch.autocast.__init__

        def begin(self: Any, device_type: str, *words: Any, **named: Any) -> None:
            # `torch.autocast("cuda", enabled=args.amp)` in the user's loop is on for once.
            if device_type == "cuda":
                original(self, device_type, dtype=half_type(), enabled=True)
            else:
                original(self, device_type, *words, **named)

        torch.autocast.__init__ = begin

    def stop(self) -> None:
        if self._original is not None:
            torch.autocast.__init__ = self._original
        switch_autocast(False)

    def give(self) -> Any:
        # Outside of a `with`, nobody clears the weights that were cast for the step before.
        torch.clear_autocast_cache()
        return super().give()

    def detail(self) -> dict[str, Any]:
        return {"dtype": str(half_type()).replace("torch.", "")}


class Trial(Feed):
    """The same dataset through another number of workers, so that the loop runs as it would with them."""

    phase = layout.TRIAL
    least = 12
    least_s = 1.2
    most_s = 3.2

    def __init__(self, scope: Any, loader: Any, workers: int) -> None:
        super().__init__()
        self._scope = scope
        self._loader = loader
        self._workers = workers
        self._clone: Any = None
        self._source: Any = None
        self.warmup = workers * int(getattr(loader, "prefetch_factor", None) or 2) + 4

    def start(self) -> None:
        self._clone = loader_clone.copy_loader(self._loader, self._workers)
        self._source = loader_clone.Source(self._clone)

    def give(self) -> Any:
        with self._scope.own():
            try:
                return self._source.next()
            except StopIteration:
                self._source = loader_clone.Source(self._clone)
                return self._source.next()

    def stop(self) -> None:
        with self._scope.own():
            self._source.close()
        self._clone = self._source = None

    def detail(self) -> dict[str, Any]:
        return {"workers": self._workers}


def synchronize() -> None:
    """Wait for the device, so that measured steps end when its work ends."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def half_type() -> Any:
    return torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float16


def switch_autocast(on: bool) -> None:
    if hasattr(torch, "set_autocast_dtype"):
        torch.set_autocast_dtype("cuda", half_type())
        torch.set_autocast_enabled("cuda", on)
    else:
        torch.set_autocast_gpu_dtype(half_type())
        torch.set_autocast_enabled(on)
    torch.clear_autocast_cache()


def why_compiled() -> str | None:
    """A new shape or type makes torch.compile compile, which takes longer than all the steps here."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return "the model is compiled" if counters.get("stats", {}).get("unique_graphs", 0) else None


class Called:
    """The modules that are called between `begin` and `end`, by anybody."""

    def __init__(self) -> None:
        self._modules: dict[int, Any] = {}
        self._handle: Any = None
        self.has_images = False  # a convolution was given a batch of them

    def begin(self) -> None:
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

    def __init__(self, kept: list[Any], fixed: int | None = None) -> None:
        super().__init__(kept, fixed)
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
    """Kept batches through a model whose images, weights and optimizer states are channels-last.

    A few steps so, a few as before, in turn: the gain is often smaller than what the machine's other users
    change from one second to the next.
    """

    phase = layout.REPLAY_CHANNELS_LAST
    warmup = 4
    least = 20
    least_s = 0.4

    def __init__(self, kept: list[Any], called: Called) -> None:
        super().__init__(kept)
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
        elif self._given > self.warmup:
            step, start_s, _ = self._block
            is_long = time.perf_counter() - start_s >= BLOCK_S * session.pace_s
            if is_long or self._given - step >= BLOCK_STEPS:
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
        return {
            "last_s": last.wall_s / last.steps,
            "last_cpu_s": last.cpu_s / last.steps,
            "plain_s": plain.wall_s / plain.steps,
            "plain_cpu_s": plain.cpu_s / plain.steps,
        }

    def _begin_block(self) -> None:
        synchronize()
        self._block = (self._given, time.perf_counter(), time.process_time())

    def _end_block(self) -> None:
        synchronize()
        step, start_s, start_cpu_s = self._block
        spent = self._spent[self._is_last]
        spent.steps += self._given - step
        spent.wall_s += time.perf_counter() - start_s
        spent.cpu_s += time.process_time() - start_cpu_s

    def _turn(self, is_last: bool) -> None:
        """In place, so that whoever holds a tensor goes on with it."""
        for handle in self._handles:
            handle.remove()
        self._handles = [turn_images_of(model) for model in self._called.outermost()] if is_last else []
        grads = [t.grad for t in self._tensors if t.is_leaf and t.grad is not None]
        for tensor in unique(self._tensors + grads):
            relay(tensor, torch.channels_last if is_last else torch.contiguous_format)
        self._is_last = is_last


class LoaderLayout(Replay):
    """Kept batches that are as feedrate.Loader hands them over; the model stays as it is."""

    phase = layout.REPLAY_LOADER_LAYOUT
    least_s = 0.5

    def reason_not_to(self) -> str | None:
        return why_compiled()

    def start(self) -> None:
        self._kept = [kept.as_loaded() for kept in self._kept]


def why_no_channels_last(called: Called) -> str | None:
    """A sentence, or None when the layout can be tried."""
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
    return isinstance(thing, torch.Tensor) and thing.dim() == 4 and thing.is_floating_point()


def relay(tensor: Any, memory_format: Any) -> None:
    with torch.inference_mode(False), torch.no_grad():
        tensor.data = tensor.data.contiguous(memory_format=memory_format)


def unique(tensors: list[Any]) -> list[Any]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def states_of(weights: list[Any]) -> list[Any]:
    """What optimizers keep for these weights: with states that are otherwise, their steps take longer."""
    optimizers = living(getattr(sys.modules.get("torch.optim"), "Optimizer", None))
    states = [optimizer.state.get(weight, {}) for optimizer in optimizers for weight in weights]
    return [value for state in states for value in state.values()]


def turn_images_of(model: Any) -> Any:
    """Lay out what the loop gives to the model, as `images.to(memory_format=...)` in the script would."""

    def turn(thing: Any) -> Any:
        is_turned = is_image_batch(thing) and thing.shape[1] > 1
        return thing.contiguous(memory_format=torch.channels_last) if is_turned else thing

    def turn_all(_model: Any, inputs: Any, *named: Any) -> Any:
        turned = tuple(turn(one) for one in inputs)
        return (turned, {name: turn(one) for name, one in named[0].items()}) if named else turned

    try:
        return model.register_forward_pre_hook(turn_all, with_kwargs=True)
    except TypeError:  # torch before 2.0
        return model.register_forward_pre_hook(turn_all)
