# SPDX-License-Identifier: Apache-2.0
"""Times what passes between host and device, and calls that wait for the device. On once CUDA is in use."""

from __future__ import annotations

import sys
from typing import Any

from . import clock, layout, training
from .session import session
from .wrapping import caller, get_ident, install, is_user

# Calls that hand a value of a device tensor to Python, so that Python waits for the device.
_READING = "item tolist __bool__ __float__ __int__ __index__ __complex__ nonzero masked_select"


# A loop that calls .item() for every sample would be slowed by the clocks: of many calls in one step, the
# first are timed, and then fewer and fewer that stand for those before them.
_FIRST_CALLS, _FURTHER_CALLS = 8, 8
_FURTHER_STAND_FOR, _LATER_STAND_FOR = 4, 64


_texts: dict[Any, str] = {}  # that name the places which wait, by call, code and line


class _Calls:
    """Waiting calls of the present step that were timed."""

    step = -1
    timed = 0


def _stands_for() -> int:
    """Return for how many calls the present one, which is timed, stands."""
    if _Calls.step != session.steps:
        _Calls.step, _Calls.timed = session.steps, 0
    timed = _Calls.timed = _Calls.timed + 1
    session.calls_to_skip = _count(timed + 1) - 1
    return _count(timed)


def _count(timed: int) -> int:
    if timed <= _FIRST_CALLS:
        return 1
    return _FURTHER_STAND_FOR if timed <= _FIRST_CALLS + _FURTHER_CALLS else _LATER_STAND_FOR


def _is_off() -> bool:
    return training.is_compiling() or not session.probing or get_ident() != session.thread


def _moved(original: Any) -> Any:
    name = original.__name__

    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_off():
            return original(self, *args, **kwargs)
        start = clock.wall_ns()
        result = original(self, *args, **kwargs)
        if result is not self:
            _record_move(name, self, result, start, args, kwargs)
        return result

    return move


def _copied(original: Any) -> Any:
    def copy_(self: Any, src: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_off() or not hasattr(src, "device") or self.device == src.device:
            return original(self, src, *args, **kwargs)
        start = clock.wall_ns()
        result = original(self, src, *args, **kwargs)
        _record_move("copy_", src, self, start, args, kwargs)
        return result

    return copy_


def _record_move(name: str, source: Any, target: Any, start: int, args: Any, kwargs: Any) -> None:
    try:
        from_host, to_host = source.device.type == "cpu", target.device.type == "cpu"
        if from_host == to_host:
            return
        wall = clock.wall_ns() - start
        size = source.numel() * source.element_size()
        place = caller(3)
        if from_host:
            is_async = kwargs.get("non_blocking", any(a is True for a in args))
            bits = int(source.is_pinned()) | 2 * bool(is_async) | 4 * _is_beside(target.device)
            number = session.ring.name(place)
            session.ring.write(layout.COPY, number, start, wall, 0, 0, size, bits, source.element_size())
        else:
            number = session.ring.name(f"{name} {place}")
            session.ring.write(layout.READBACK, number, start, wall, 0, 0, size)
    except Exception as error:
        session.trouble("transfer", error)


def _is_beside(device: Any) -> bool:
    """Say whether the copy has a stream of its own, so that it runs beside the computing."""
    cuda = session.torch.cuda
    return bool(cuda.current_stream(device) != cuda.default_stream(device))


def _waited(original: Any) -> Any:
    name = original.__name__.strip("_")

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if training.is_compiling():
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
    try:
        wall = clock.wall_ns() - start
        frame = sys._getframe(2)
        text = _texts.get((name, frame.f_code, frame.f_lineno))
        if text is None:
            text = f"{name} {caller(3)}"
            if is_user(frame.f_code.co_filename):  # of a library's line, it depends on who called it
                _texts[name, frame.f_code, frame.f_lineno] = text
        session.ring.write(layout.SYNC, session.ring.name(text), start, wall, 0, 0, calls)
    except Exception as error:
        session.trouble("sync", error)


def patch_tensors(torch: Any) -> None:
    """CUDA is in use."""
    makers = dict.fromkeys(_READING.split(), _waited)
    makers.update(dict.fromkeys(("to", "cuda", "cpu"), _moved))
    makers["copy_"] = _copied
    for name, make in makers.items():
        try:
            install(torch.Tensor, name, make)
        except Exception as error:
            session.trouble(f"patch Tensor.{name}", error)
    for owner, name in (
        (torch.cuda, "synchronize"),
        (torch.cuda, "Event.synchronize"),
        (torch.cuda, "Stream.synchronize"),
    ):
        try:
            install(owner, name, _synchronized)
        except Exception as error:
            session.trouble(f"patch torch.cuda.{name}", error)
    session.facts("patched", module="torch.Tensor")
