# SPDX-License-Identifier: Apache-2.0
"""Times forward, backward and optimizer in the thread that trains, what passes between host and device, and
calls that wait for the device; says what is trained.

The device's own clock: an event that is recorded when a wait begins is passed when the work queued before it
is done; one that is recorded when the wait ends is passed at that moment or later. Between the two the device
had nothing to do. All that is on once CUDA is in use.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from .. import clock, layout
from ..session import Noted, session
from ..wrapping import caller, get_ident, hide_from_compiler, install, is_user, name_of, unseen
from .describe import describe_autocast, describe_module

_MOST_PENDING = 64


class Device(Noted):
    """Events of this process's current device. Off until CUDA is in use, and again after any error in it."""

    def __init__(self) -> None:
        super().__init__("device events")
        self._is_off = False
        self._of_parents: Any = None
        self._pool: list[Any] = []
        self._pending: deque[tuple[Any, ...]] = deque()
        self._entry: Any = None
        # The last probed batch's event; then the time its wait ended, its phase, its first forward.
        self.arrival: Any = None
        self._arrival_ns = 0
        self._arrival_phase = 0
        self._forward: Any = None
        self._forward_end: Any = None

    def after_fork(self) -> None:
        """Begin anew in a child, and keep the parent's events: to free one there would end the child."""
        events = (self._entry, self.arrival, self._forward, self._forward_end)
        kept = (self._pool, self._pending, events, self._of_parents)
        self.__init__()  # type: ignore[misc]
        self._of_parents = kept

    def is_used(self) -> bool:
        torch = session.torch
        return not self._is_off and torch is not None and torch.cuda.is_initialized()

    def wait_begins(self) -> None:
        self._entry = None
        if not self.is_used() or (not session.probing and self.arrival is None):
            return
        with self:
            entry = self._record()
            if self.arrival is not None:
                events = self.arrival, entry, self._forward, self._forward_end
                self._pending.append((layout.DEVICE, self._arrival_phase, self._arrival_ns, *events))
                self.arrival = self._forward = self._forward_end = None
            self._entry = entry

    def wait_ends(self, start_ns: int, end_ns: int) -> None:
        if self._entry is None or not session.probing:
            return
        with self:
            self.arrival = self._record()
            self._arrival_ns = end_ns
            self._arrival_phase = session.phase
            events = self._entry, self.arrival, None, None
            self._pending.append((layout.EXPOSED, session.phase, start_ns, *events))
            self._collect()

    def forward_begins(self) -> None:
        if self.arrival is not None and self._forward is None:
            with self:
                self._forward = self._record_in_model()

    def forward_ends(self) -> None:
        if self._forward is not None and self._forward_end is None:
            with self:
                self._forward_end = self._record_in_model()

    def _record_in_model(self) -> Any:
        return None if session.torch.cuda.is_current_stream_capturing() else self._record()

    def _record(self) -> Any:
        event = self._pool.pop() if self._pool else session.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def collect(self) -> None:
        """Read the events that the device has passed."""
        if self.is_used():
            with self:
                self._collect()

    def _collect(self) -> None:
        pending = self._pending
        while pending and pending[0][4].query():
            kind, phase, start_ns, first, last, forward, forward_end = pending.popleft()
            wall = round(first.elapsed_time(last) * 1e6)
            before = round(first.elapsed_time(forward) * 1e6) if forward is not None else 0
            inside = round(forward.elapsed_time(forward_end) * 1e6) if forward_end is not None else 0
            session.ring.write(kind, 0, start_ns, wall, a=before, c=inside, phase=phase)
            # In this order nobody needs `first` any more: a wait's entry was the end of the step before it.
            self._pool += [event for event in (first, forward, forward_end) if event is not None]
        while len(pending) > _MOST_PENDING:
            pending.popleft()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        is_noted = super().__exit__(kind, error, trace)
        if is_noted:
            self._is_off = True
            self._pending.clear()
        return is_noted


device = Device()


# Calls that hand a value of a device tensor to Python, so that Python waits for the device.
_READING = "item tolist __bool__ __float__ __int__ __index__ __complex__ nonzero masked_select"
# A loop that calls .item() for every sample would be slowed by the clocks: of many calls in one step, the
# first are timed, and then fewer and fewer that stand for those before them.
_STAND_FOR = (*[1] * 8, *[4] * 8, 64)

_texts: dict[Any, str] = {}  # that name the places which wait, by call, code and line


class _Calls:
    """Waiting calls of the present step that were timed."""

    step = -1
    timed = 0


def _stands_for() -> int:
    """Return for how many calls the present one, which is timed, stands."""
    if _Calls.step != session.steps:
        _Calls.step, _Calls.timed = session.steps, 0
    timed = _Calls.timed
    _Calls.timed = timed + 1
    session.calls_to_skip = _STAND_FOR[min(timed + 1, len(_STAND_FOR) - 1)] - 1
    return _STAND_FOR[min(timed, len(_STAND_FOR) - 1)]


def _is_off() -> bool:
    return is_compiling() or not session.probing or get_ident() != session.thread


def _moved(original: Any) -> Any:
    name = original.__name__

    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_off():
            return original(self, *args, **kwargs)
        start = clock.wall_ns()
        result = original(self, *args, **kwargs)
        if result is not self:
            _record_move(name, self, result, start)
        return result

    return move


def _copied(original: Any) -> Any:
    def copy_(self: Any, src: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_off() or not hasattr(src, "device") or self.device == src.device:
            return original(self, src, *args, **kwargs)
        start = clock.wall_ns()
        result = original(self, src, *args, **kwargs)
        _record_move("copy_", src, self, start)
        return result

    return copy_


def _record_move(name: str, source: Any, target: Any, start: int) -> None:
    with Noted("transfer"):
        from_host, to_host = source.device.type == "cpu", target.device.type == "cpu"
        if from_host == to_host:
            return
        wall = clock.wall_ns() - start
        place = caller(3)
        if not from_host:
            session.ring.write(layout.READBACK, session.ring.name(f"{name} {place}"), start, wall)
            return
        cuda = session.torch.cuda  # a copy with a stream of its own runs beside the computing
        is_beside = cuda.current_stream(target.device) != cuda.default_stream(target.device)
        bits = int(source.is_pinned()) | 4 * bool(is_beside)
        each = source.element_size()
        number = session.ring.name(place)
        session.ring.write(layout.COPY, number, start, wall, a=source.numel() * each, b=bits, c=each)


def _waited(original: Any) -> Any:
    name = original.__name__.strip("_")

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        if session.calls_to_skip:  # before all that takes longer: there may be thousands in a step
            session.calls_to_skip -= 1
            return original(self, *args, **kwargs)
        if _is_off() or self.device.type == "cpu":
            return original(self, *args, **kwargs)
        calls = _stands_for()
        start = clock.wall_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            _record_sync(name, start, calls)

    return wait


def _synchronized(original: Any) -> Any:
    name = original.__name__

    def synchronize(*args: Any, **kwargs: Any) -> Any:
        if _is_off():
            return original(*args, **kwargs)
        start = clock.wall_ns()
        try:
            return original(*args, **kwargs)
        finally:
            _record_sync(name, start)

    return synchronize


def _record_sync(name: str, start: int, calls: int = 1) -> None:
    with Noted("sync"):
        wall = clock.wall_ns() - start
        frame = sys._getframe(2)
        text = _texts.get((name, frame.f_code, frame.f_lineno))
        if text is None:
            text = f"{name} {caller(3)}"
            if is_user(frame.f_code.co_filename):  # of a library's line, it depends on who called it
                _texts[name, frame.f_code, frame.f_lineno] = text
        session.ring.write(layout.SYNC, session.ring.name(text), start, wall, 0, 0, calls)


def patch_tensors(torch: Any) -> None:
    """CUDA is in use."""
    makers = dict.fromkeys(_READING.split(), _waited)
    makers.update(dict.fromkeys(("to", "cuda", "cpu"), _moved))
    makers["copy_"] = _copied
    for name, make in makers.items():
        install(torch.Tensor, name, make)
    for name in ("synchronize", "Event.synchronize", "Stream.synchronize"):
        install(torch.cuda, name, _synchronized)


# Probed steps in which every module's call is looked at, to find the classes that are called from outside.
_SEARCH_STEPS = 3
_MOST_CLASSES = 8
_MOST_MODULE_FACTS = 16
# Optimizer steps without a loader: after so many it is said, and so many are timed.
_ALONE = 5
_MOST_ALONE = 200


class Training:
    """What is known about the training of this process."""

    def __init__(self) -> None:
        self.steps_seen = 0
        self.is_busy = False  # inside a forward or backward pass that is being timed
        self.classes: dict[type, int] = {}  # called from outside -> their name's number, 0: not known yet
        self.modules: set[int] = set()
        self.autocast: Any = None
        self.optimizer_starts: dict[int, clock.Beginning] = {}
        self.is_on_device = False
        self.original_call: Any = None  # nn.Module.__call__, while the search has replaced it
        self.alone_ns = 0  # when the first optimizer step without a loader was over


training = Training()


def is_compiling() -> bool:
    """Replaced by torch's own once it is imported."""
    return False


def after_fork() -> None:
    device.after_fork()
    if training.original_call is not None:
        _stop_search()
    training.__init__()  # type: ignore[misc]


def batch_arrived() -> None:
    """Called after each wait: goes through what is set up once training is under way."""
    if not session.probing or session.torch is None:
        return
    if not training.is_on_device and session.torch.cuda.is_initialized():
        training.is_on_device = True
        patch_tensors(session.torch)
    seen = training.steps_seen
    training.steps_seen = seen + 1
    if seen == 0:
        module = session.torch.nn.Module
        training.original_call = module.__call__
        module.__call__ = _find_outermost(module.__call__)
    elif seen == _SEARCH_STEPS:
        _stop_search()
        for kind in list(training.classes)[:_MOST_CLASSES]:
            install(kind, "__call__", _called)


def _stop_search() -> None:
    module = session.torch.nn.Module
    # Somebody may have replaced it after us (torch.fx does for a moment): then it is theirs to put back.
    if getattr(module.__call__, "_feedrate_search", False):
        module.__call__ = training.original_call
    training.original_call = None


def _find_outermost(original: Any) -> Any:
    timed = unseen(_called(original))

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        if not training.is_busy and get_ident() == session.thread and not session.fetching:
            training.classes.setdefault(type(self), 0)
        return timed(self, *args, **kwargs)

    __call__._feedrate_search = True  # type: ignore[attr-defined]
    return unseen(__call__)


def _called(original: Any) -> Any:
    """Time a module's call that comes from the training loop, not from another module."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        # First, so that nothing else of this wrapper is seen by a compiler that follows the call.
        if is_compiling() or not session.probing or training.is_busy:
            return original(self, *args, **kwargs)
        if get_ident() != session.thread or session.fetching:
            return original(self, *args, **kwargs)
        training.is_busy = True
        start = (0, 0)
        with Noted("forward"):
            _before_forward(self)
            start = clock.begin()
            device.forward_begins()
        try:
            return original(self, *args, **kwargs)
        finally:
            training.is_busy = False
            device.forward_ends()
            number = training.classes.get(type(self))
            if not number:
                number = training.classes[type(self)] = session.ring.name(name_of(type(self)))
            _record(layout.FORWARD, number, start)

    return __call__


def _record(kind: int, number: int, start: clock.Beginning) -> None:
    with Noted("training"):
        session.ring.write(kind, number, start[0], *clock.spent(start))


def _before_forward(module: Any) -> None:
    if id(module) not in training.modules and len(training.modules) < _MOST_MODULE_FACTS:
        training.modules.add(id(module))
        fact = describe_module(module)
        if fact["parameters"]:
            session.facts("module", **fact)
    if training.steps_seen <= 2 * _SEARCH_STEPS:
        autocast = describe_autocast("cuda" if training.is_on_device else "cpu")
        if autocast != training.autocast:
            training.autocast = autocast
            session.facts("autocast", enabled=autocast[0], dtype=autocast[1])


def _backward(original: Any) -> Any:
    def backward(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not session.probing or training.is_busy or get_ident() != session.thread:
            return original(*args, **kwargs)
        training.is_busy = True
        start = clock.begin()
        try:
            return original(*args, **kwargs)
        finally:
            training.is_busy = False
            _record(layout.BACKWARD, 0, start)

    return backward


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
    if is_compiling():
        return
    try:
        if session.probing and get_ident() == session.thread:
            training.optimizer_starts[id(optimizer)] = clock.begin()
    except Exception as error:
        session.note_error("optimizer", error)


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
    if is_compiling():
        return
    try:
        session.optimizer_steps += 1
        starts = training.optimizer_starts
        start = starts.pop(id(optimizer), None) if starts else None
        if start is not None:
            _record(layout.OPTIMIZER, session.ring.name(type(optimizer).__name__), start)
        if session.role == "other":
            _watch_alone()
    except Exception as error:
        session.note_error("optimizer", error)


def _watch_alone() -> None:
    """No loader that we know was asked for a batch: optimizer steps are all there is to count steps by."""
    done = session.optimizer_steps
    if done > _MOST_ALONE:
        session.probing = False
        return
    if done == 1:
        training.alone_ns = clock.wall_ns()
        session.follow_thread()
        session.probing = True
        from . import stacks  # which looks at the training

        stacks.start(is_unasked=True)
    elif done == _ALONE:
        note_alone()
    batch_arrived()


def note_alone() -> None:
    """Say how many optimizer steps there were without a loader, and how long one took."""
    done = session.optimizer_steps
    if session.role == "other" and done >= _ALONE:
        seconds = (clock.wall_ns() - training.alone_ns) / 1e9 / (done - 1)
        session.facts("no-loader", optimizer_steps=done, step_s=seconds)


def patch_optimizer(module: Any) -> None:
    module.register_optimizer_step_pre_hook(_before_step)
    module.register_optimizer_step_post_hook(_after_step)


def patch_torch(module: Any) -> None:
    """torch has been imported."""
    global is_compiling
    session.torch = module
    session.load_settings()
    found = getattr(getattr(module, "compiler", None), "is_compiling", None)
    if found is not None:
        is_compiling = found
    with Noted("hide from the compiler"):
        hide_from_compiler(module)


PATCHES: dict[str, Any] = {
    "torch": patch_torch,
    "torch.autograd": [("backward", _backward)],  # which Tensor.backward calls
    "torch.optim.optimizer": patch_optimizer,
}
