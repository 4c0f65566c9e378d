# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver by ctypes: as much of it as loading code and launching kernels takes.

All happens in a device's primary context, which is also torch's. A thread in which torch has not yet done
anything has no current context, whatever device torch calls current, so each use pushes it and pops it again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterator
from typing import Any

from feedrate.errors import GpuError

# CUresult
INVALID_VALUE, NOT_FOUND = 1, 500
# The code is for another GPU, a newer driver, or PTX that this driver does not know.
BAD_CODE = frozenset((200, 209, 218, 221, 222, 223, 300))
# CUdevice_attribute and CUfunction_attribute
_SHARED_PER_BLOCK, _SHARED_PER_BLOCK_OPT_IN = 8, 97
MAX_THREADS_PER_BLOCK, STATIC_SHARED_BYTES, MAX_DYNAMIC_SHARED_BYTES = 0, 1, 8
OUT_OF_MEMORY = 2
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_HANDLE, _OUT_HANDLE = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
_OUT_INT, _OUT_SIZE = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_size_t)
_OUT_TEXT = ctypes.POINTER(ctypes.c_char_p)
_SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [ctypes.c_uint],
    "cuDriverGetVersion": [_OUT_INT],
    "cuGetErrorName": [ctypes.c_int, _OUT_TEXT],
    "cuGetErrorString": [ctypes.c_int, _OUT_TEXT],
    "cuDeviceGet": [_OUT_INT, ctypes.c_int],
    "cuDeviceGetAttribute": [_OUT_INT, ctypes.c_int, ctypes.c_int],
    "cuDevicePrimaryCtxRetain": [_OUT_HANDLE, ctypes.c_int],
    "cuCtxPushCurrent_v2": [_HANDLE],
    "cuCtxPopCurrent_v2": [_OUT_HANDLE],
    "cuThreadExchangeStreamCaptureMode": [_OUT_INT],
    "cuModuleLoadData": [_OUT_HANDLE, ctypes.c_char_p],
    "cuModuleGetFunction": [_OUT_HANDLE, _HANDLE, ctypes.c_char_p],
    "cuFuncGetAttribute": [_OUT_INT, ctypes.c_int, _HANDLE],
    "cuFuncSetAttribute": [_HANDLE, ctypes.c_int, ctypes.c_int],
    "cuLaunchKernel": [_HANDLE, *[ctypes.c_uint] * 7, _HANDLE, _OUT_HANDLE, _OUT_HANDLE],
}
# Of drivers since CUDA 12.4.
_OPTIONAL: dict[str, list[Any]] = {
    "cuFuncGetParamInfo": [_HANDLE, ctypes.c_size_t, _OUT_SIZE, _OUT_SIZE],
}


class DriverError(GpuError):
    """The driver refused a call. `result`: its number for the reason."""

    def __init__(self, message: str, *, result: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.result = result


class Driver:
    """The functions of the driver's library; what they refuse becomes an error in its own words."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the library.

        Raises:
            DriverError: it failed, or the GPU reports now what an earlier kernel did wrong.
        """
        result = getattr(self._library, function)(*arguments)
        if result:
            raise DriverError(f"{function} failed: {self._name_error(result)}", result=result)

    def has(self, function: str) -> bool:
        """Return whether this driver is new enough to have a function."""
        return getattr(self._library, function, None) is not None

    @property
    def version(self) -> str:
        """Return the newest CUDA version whose code it loads."""
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def _name_error(self, result: int) -> str:
        texts = []
        for function in ("cuGetErrorString", "cuGetErrorName"):
            text = ctypes.c_char_p()
            getattr(self._library, function)(result, ctypes.byref(text))
            texts.append((text.value or b"unknown").decode(errors="replace"))
        return f"{texts[0]} ({texts[1]}, {result})"


class Context:
    """The primary context of one device; what torch uses too. Any number of threads may use it at once.

    Attributes:
        device: the device's number.
        shared_bytes: of shared memory that a block gets without asking, and that it can ask for.
    """

    def __init__(self, driver: Driver, device: int) -> None:
        self.driver, self.device = driver, device
        driver.call("cuInit", 0)
        ordinal = ctypes.c_int()
        driver.call("cuDeviceGet", ctypes.byref(ordinal), device)
        self._handle = ctypes.c_void_p()
        # Never released: torch keeps it until the process ends, and so do the modules in it.
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._handle), ordinal)
        self.shared_bytes = (
            self._attribute(_SHARED_PER_BLOCK, ordinal),
            self._attribute(_SHARED_PER_BLOCK_OPT_IN, ordinal),
        )

    def _attribute(self, attribute: int, ordinal: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self.driver.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, ordinal)
        return value.value

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make it this thread's context for a while."""
        self.driver.call("cuCtxPushCurrent_v2", self._handle)
        try:
            yield
        finally:
            self.driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Make it current for what may allocate: that must not spoil a graph that is being captured.

        What is loaded belongs to no capture, neither this thread's nor another one's.
        """
        with self.current():
            mode = ctypes.c_int(_RELAXED)
            self.driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            try:
                yield
            finally:
                self.driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))


_lock = threading.Lock()
_contexts: dict[int, Context] = {}


def open_context(device: int) -> Context:
    """Return the context of a device of this process.

    Raises:
        GpuError: there is no driver, or it does not give one.
    """
    with _lock:
        if device not in _contexts:
            _contexts[device] = Context(load_driver(), device)
        return _contexts[device]


@functools.cache
def load_driver() -> Driver:
    """Return the machine's driver.

    Raises:
        GpuError: there is none, or one that is older than anything torch runs with.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
        for name, types in _SIGNATURES.items():
            getattr(library, name).argtypes = types
    except (OSError, AttributeError) as error:
        raise GpuError(
            f"NVIDIA's driver cannot be used: {error}", hint="nvidia-smi shows whether it works"
        ) from error
    for name, types in _OPTIONAL.items():
        with contextlib.suppress(AttributeError):
            getattr(library, name).argtypes = types
    return Driver(library)
