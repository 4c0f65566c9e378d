# SPDX-License-Identifier: Apache-2.0
"""CUDA source that is compiled where it runs, and launched on torch's tensors and streams.

    module = compile_source(source)
    module.launch("scale", grid=((n + 255) // 256, 1), block=256, args=[images, n, np.float32(0.5)])

Arguments are checked before they cross: a wrong pointer or size ends a process, or worse, does not.

The driver is called by ctypes. All happens in a device's primary context, which is also torch's. A thread in
which torch has not yet done anything has no current context, whatever device torch calls current, so each use
pushes it and pops it again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from feedrate.errors import FeedrateError, GpuError, MissingExtra, UsageError
from feedrate.kernel.cuda.nvrtc import CodeCache, Nvrtc, find_folder, load_nvrtc, make_key

# CUresult
INVALID_VALUE, NOT_FOUND = 1, 500
# The code is for another GPU, a newer driver, or PTX that this driver does not know.
BAD_CODE = frozenset((200, 209, 218, 221, 222, 223, 300))
MAX_THREADS_PER_BLOCK = 0  # CUfunction_attribute
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
    "cuDevicePrimaryCtxRetain": [_OUT_HANDLE, ctypes.c_int],
    "cuCtxPushCurrent_v2": [_HANDLE],
    "cuCtxPopCurrent_v2": [_OUT_HANDLE],
    "cuThreadExchangeStreamCaptureMode": [_OUT_INT],
    "cuModuleLoadData": [_OUT_HANDLE, ctypes.c_char_p],
    "cuModuleGetFunction": [_OUT_HANDLE, _HANDLE, ctypes.c_char_p],
    "cuFuncGetAttribute": [_OUT_INT, ctypes.c_int, _HANDLE],
    "cuLaunchKernel": [_HANDLE, *[ctypes.c_uint] * 7, _HANDLE, _OUT_HANDLE, _OUT_HANDLE],
}
# Of drivers since CUDA 12.4.
_OPTIONAL: dict[str, list[Any]] = {"cuFuncGetParamInfo": [_HANDLE, ctypes.c_size_t, _OUT_SIZE, _OUT_SIZE]}


class DriverError(GpuError):
    """The driver refused a call. `result`: its number for the reason."""

    def __init__(self, message: str, *, result: int) -> None:
        super().__init__(message)
        self.result = result


def is_out_of_memory(error: Exception) -> bool:
    """Return whether torch or the driver failed for want of the device's memory."""
    import torch

    is_drivers = isinstance(error, DriverError) and error.result == OUT_OF_MEMORY
    return is_drivers or isinstance(error, torch.cuda.OutOfMemoryError)


class Driver:
    """The functions of the driver's library; a refusal becomes an error in the driver's own words."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the library.

        Raises:
            DriverError: it failed, or the GPU reports an earlier kernel's fault.
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
    """The primary context of one device, torch's too. Any number of threads may use it at once.

    Attributes:
        device: the device's number.
    """

    def __init__(self, driver: Driver, device: int) -> None:
        self.driver, self.device = driver, device
        driver.call("cuInit", 0)
        ordinal = ctypes.c_int()
        driver.call("cuDeviceGet", ctypes.byref(ordinal), device)
        self._handle = ctypes.c_void_p()
        # Never released: torch keeps it until the process ends, and so do the modules in it.
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._handle), ordinal)

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
        """Make it current for allocations, which must not spoil a graph that is being captured.

        They belong to no capture, neither this thread's nor another one's.
        """
        with self.current():
            mode = ctypes.c_int(_RELAXED)
            self.driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            try:
                yield
            finally:
                self.driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))


_contexts_lock = threading.Lock()
_contexts: dict[int, Context] = {}


def open_context(device: int) -> Context:
    """Return the context of a device of this process.

    Raises:
        GpuError: there is no driver, or it does not give one.
    """
    with _contexts_lock:
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


# The same for every GPU since compute capability 3.0.
_GRID_LIMITS = (2**31 - 1, 2**16 - 1)


class _Kernel(NamedTuple):
    function: ctypes.c_void_p
    max_threads: int
    parameter_bytes: tuple[int, ...] | None  # None: this driver does not say


class Module:
    """Compiled source on one device; `compile_source` gives one. It lives as long as the process.

    Threads may launch from it at the same time.
    """

    def __init__(self, context: Context, code: bytes) -> None:
        self._context, self._driver = context, context.driver
        self._kernels: dict[str, _Kernel] = {}
        self._lock = threading.Lock()
        self._handle = ctypes.c_void_p()
        with context.loading():
            self._driver.call("cuModuleLoadData", ctypes.byref(self._handle), code)

    @property
    def device(self) -> int:
        return self._context.device

    def launch(
        self, name: str, grid: tuple[int, int], block: int, args: Sequence[Any], *, stream: Any = None
    ) -> None:
        """Start a kernel; it runs after all earlier work of the stream. The host does not wait.

        Tensors must live until the kernel is through. Those that were made on the stream it runs on may be
        dropped at once: torch uses their memory again in the order of that stream. Keep others until the
        stream is through, or call `tensor.record_stream(stream)`.

        Args:
            name: of a function that is declared `extern "C" __global__`.
            grid: the blocks, in two dimensions.
            block: the threads of a block.
            args: one per parameter. A CUDA tensor gives its address; it must be contiguous, plainly or
                channels-last. An int is 64 bits wide (`long long`, or an address: `tensor.data_ptr()` of any
                other tensor); numpy's numbers are as wide as their type.
            stream: a `torch.cuda.Stream`; None: torch's current one on this device.

        Raises:
            UsageError: something of it does not fit the kernel or the device.
            GpuError: the driver refuses, or the GPU reports an earlier kernel's fault.
        """
        kernel = self._find(name)
        if len(grid) != 2 or not all(1 <= one <= most for one, most in zip(grid, _GRID_LIMITS, strict=True)):
            raise UsageError(
                f"grid must be two whole numbers, each at least 1 and at most {_GRID_LIMITS[0]}, "
                f"{_GRID_LIMITS[1]}, got {grid!r}"
            )
        if not 1 <= block <= kernel.max_threads:
            raise UsageError(
                f"block={block!r}, and a block of kernel '{name}' has 1 to {kernel.max_threads} threads"
            )
        values = [_to_value(number, value, self.device) for number, value in enumerate(args)]
        _check_parameters(name, kernel, args, values)
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        with self._context.current():
            on = ctypes.c_void_p(_find_stream(stream, self.device))
            self._driver.call("cuLaunchKernel", kernel.function, *grid, 1, block, 1, 1, 0, on, pointers, None)

    def _find(self, name: str) -> _Kernel:
        with self._lock:
            if name not in self._kernels:
                with self._context.loading():
                    self._kernels[name] = self._look_up(name)
            return self._kernels[name]

    def _look_up(self, name: str) -> _Kernel:
        function = ctypes.c_void_p()
        try:
            self._driver.call("cuModuleGetFunction", ctypes.byref(function), self._handle, name.encode())
        except DriverError as error:
            if error.result != NOT_FOUND:
                raise
            raise UsageError(
                f"the compiled source has no kernel '{name}'",
                hint='it must be declared extern "C" __global__: other names are mangled',
            ) from error
        threads = self._attribute(function, MAX_THREADS_PER_BLOCK)
        return _Kernel(function, threads, self._measure_parameters(function))

    def _attribute(self, function: ctypes.c_void_p, attribute: int) -> int:
        value = ctypes.c_int()
        self._driver.call("cuFuncGetAttribute", ctypes.byref(value), attribute, function)
        return value.value

    def _measure_parameters(self, function: ctypes.c_void_p) -> tuple[int, ...] | None:
        if not self._driver.has("cuFuncGetParamInfo"):
            return None
        sizes: list[int] = []
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        while True:
            try:
                self._driver.call(
                    "cuFuncGetParamInfo", function, len(sizes), ctypes.byref(offset), ctypes.byref(size)
                )
            except DriverError as error:
                if error.result != INVALID_VALUE:
                    raise
                return tuple(sizes)  # there is no parameter of this number
            sizes.append(size.value)


def _to_value(number: int, value: Any, device: int) -> Any:
    """Return a kernel's argument as the driver takes it, in memory of its own."""
    if hasattr(value, "data_ptr"):
        return ctypes.c_void_p(_check_tensor(number, value, device).data_ptr())
    if isinstance(value, np.generic) and value.dtype.kind in "iuf" and value.nbytes <= 8:
        return (ctypes.c_char * value.nbytes).from_buffer_copy(value.tobytes())
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**63:
            raise UsageError(
                f"argument {number} is {value}, which an int64 does not hold",
                hint="np.uint64(n) holds numbers below 2**64",
            )
        return ctypes.c_int64(value)
    raise UsageError(
        f"argument {number} is {value!r}: a kernel takes CUDA tensors, ints and numpy's numbers",
        hint="say how wide it is: np.float32(x), np.int32(n), np.uint8(flag)",
    )


def _check_tensor(number: int, tensor: Any, device: int) -> Any:
    if not tensor.is_cuda or tensor.device.index != device:
        raise UsageError(
            f"argument {number} is a tensor on {tensor.device}, and the kernel runs on cuda:{device}",
            hint=f"tensor.to('cuda:{device}')",
        )
    if not tensor.is_contiguous():
        import torch

        if tensor.dim() != 4 or not tensor.is_contiguous(memory_format=torch.channels_last):
            raise UsageError(
                f"argument {number} is a tensor of shape {tuple(tensor.shape)} that is not contiguous "
                f"(strides {tensor.stride()})",
                hint="tensor.contiguous(), or tensor.data_ptr() for a kernel that knows the strides",
            )
    return tensor


def _check_parameters(name: str, kernel: _Kernel, args: Sequence[Any], values: Sequence[Any]) -> None:
    wanted = kernel.parameter_bytes
    if wanted is None:
        return
    if len(wanted) != len(values):
        raise UsageError(f"kernel '{name}' has {len(wanted)} parameters, got {len(values)} arguments")
    for number, (size, value) in enumerate(zip(wanted, values, strict=True)):
        if size != ctypes.sizeof(value):
            raise UsageError(
                f"argument {number} of kernel '{name}' is {type(args[number]).__name__}, "
                f"{ctypes.sizeof(value)} bytes wide, and the parameter has {size}",
                hint="numpy's numbers say how wide they are: np.int32(n), np.float32(x)",
            )


def _find_stream(stream: Any, device: int) -> int:
    if stream is None:
        import torch

        stream = torch.cuda.current_stream(device)
    elif stream.device.index != device:
        raise UsageError(f"the stream belongs to {stream.device}, and the kernel runs on cuda:{device}")
    return int(stream.cuda_stream)


_lock = threading.Lock()
_modules: dict[tuple[int, str], Module] = {}


def compile_source(source: str, options: tuple[str, ...] = (), *, device: int | None = None) -> Module:
    """Return CUDA source as a module on a device, compiled the first time, then from the user's cache folder.

    The same source, options and device give the same module. Any thread may ask; while one compiles, others
    wait.

    Args:
        source: has no `#include`.
        options: of NVRTC, like "--use_fast_math".
        device: its number; None: torch's current one. CUDA is begun there.

    Raises:
        GpuError: there is no GPU for it, or the source does not compile.
        MissingExtra: torch or NVRTC is not there.
    """
    index, nvrtc, capability = _open_device(device)
    architecture = nvrtc.choose_architecture(capability)
    place = (index, make_key(source, architecture, options, nvrtc.version))
    with _lock:
        if place not in _modules:
            context = open_context(index)
            code = CodeCache(find_folder()).compile(nvrtc, source, architecture, options)
            try:
                _modules[place] = Module(context, code)
            except DriverError as error:
                if error.result not in BAD_CODE:  # the fault is not the code's
                    raise
                raise GpuError(
                    f"the driver, for CUDA {context.driver.version}, does not load what {nvrtc} made for "
                    f"{architecture}: {error}",
                    hint="update NVIDIA's driver, or use a torch of an older CUDA version",
                ) from error
        return _modules[place]


def check_torch(torch: Any, device: int | None, *, takes_amd: bool = False) -> None:
    """Check that torch can use a GPU in this process, and that it is there; None: the first one.

    Raises:
        GpuError: it cannot.
    """
    if torch.version.cuda is None and not (takes_amd and getattr(torch.version, "hip", None)):
        raise GpuError(
            f"this torch ({torch.__version__}) is built without CUDA", hint="install a CUDA build of torch"
        )
    if torch.cuda._is_in_bad_fork():
        raise GpuError(
            "this process is a fork of one that had used CUDA, where CUDA does not work",
            hint='start processes with multiprocessing.get_context("spawn")',
        )
    if not torch.cuda.is_available():
        raise GpuError("torch finds no GPU", hint="nvidia-smi shows those that the driver sees")
    count = torch.cuda.device_count()
    if device is not None and not 0 <= device < count:
        raise GpuError(f"there is no cuda:{device}, torch finds {count} GPU{'s' * (count != 1)}")


def _open_device(device: int | None) -> tuple[int, Nvrtc, tuple[int, int]]:
    """Return a device's number, the compiler for it, and its compute capability."""
    try:
        import torch
    except (ImportError, OSError) as error:  # a torch whose libraries do not load raises the latter
        raise MissingExtra(
            f"the GPU is used by way of torch, which cannot be imported: {error}", hint="pip install torch"
        ) from error
    check_torch(torch, device)
    try:
        index = torch.cuda.current_device() if device is None else device
        capability = torch.cuda.get_device_capability(index)
    except RuntimeError as error:
        raise GpuError(f"torch cannot begin CUDA: {str(error).splitlines()[0]}") from error
    return index, load_nvrtc(int(torch.version.cuda.partition(".")[0])), capability


def why_not(
    device: int | None = None, source: str | None = None, options: tuple[str, ...] = ()
) -> str | None:
    """Return in one line why kernels cannot run on a device, and a remedy; None: they can.

    With a source, that is compiled and loaded: a later `compile_source` of it costs nothing.
    """
    try:
        if source is not None:
            compile_source(source, options, device=device)
        else:
            open_context(_open_device(device)[0])
    except FeedrateError as error:
        reason = error.message.partition("\n")[0]
        return f"{reason}: {error.hint}" if error.hint else reason
    return None
