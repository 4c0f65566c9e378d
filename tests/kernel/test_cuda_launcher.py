# SPDX-License-Identifier: Apache-2.0
"""Loading and launching kernels against a driver that records its calls; tests/gpu has a real one."""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from feedrate.errors import FeedrateError, GpuError, MissingExtra, UsageError
from feedrate.kernel.cuda import launcher
from feedrate.kernel.cuda import launcher as driver_module
from feedrate.kernel.cuda.launcher import Context, Driver, Module, compile_source, why_not

torch = pytest.importorskip("torch")
ILLEGAL_ADDRESS, INVALID_IMAGE = 700, 200
TEXTS = {
    1: (b"CUDA_ERROR_INVALID_VALUE", b"invalid argument"),
    INVALID_IMAGE: (b"CUDA_ERROR_INVALID_IMAGE", b"device kernel image is invalid"),
    500: (b"CUDA_ERROR_NOT_FOUND", b"named symbol not found"),
    ILLEGAL_ADDRESS: (b"CUDA_ERROR_ILLEGAL_ADDRESS", b"an illegal memory access was encountered"),
}
# Each kernel's widths of parameters, in bytes.
KERNELS = {b"saxpy": (4, 8, 8, 8), b"sizes": (1, 2, 4, 4, 8, 8), b"nothing": ()}


class FakeLibrary:
    """What libcuda.so.1 is to the launcher: it keeps what it was called with, and what parameters held."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.launches: list[dict[str, Any]] = []
        self.contexts: list[int] = []
        self.failing: dict[str, int] = {}
        self.lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            with self.lock:
                self.calls.append(name)
                answer = getattr(self, f"do_{name}", lambda *_: 0)
                return self.failing.get(name) or answer(*arguments)

        return call

    def do_cuGetErrorName(self, result: int, text: Any) -> int:
        text._obj.value = TEXTS[result][0]
        return 0

    def do_cuGetErrorString(self, result: int, text: Any) -> int:
        text._obj.value = TEXTS[result][1]
        return 0

    def do_cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = 12040
        return 0

    def do_cuDevicePrimaryCtxRetain(self, context: Any, ordinal: Any) -> int:
        context._obj.value = 1000 + ordinal.value
        return 0

    def do_cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.contexts.append(context.value)
        return 0

    def do_cuCtxPopCurrent_v2(self, _: Any) -> int:
        self.contexts.pop()
        return 0

    def do_cuModuleGetFunction(self, function: Any, _: Any, name: bytes) -> int:
        if name not in KERNELS:
            return 500
        function._obj.value = 1 + list(KERNELS).index(name)
        return 0

    def do_cuFuncGetAttribute(self, value: Any, attribute: int, _: Any) -> int:
        value._obj.value = {0: 768}[attribute]
        return 0

    def do_cuFuncGetParamInfo(self, function: Any, number: int, _: Any, size: Any) -> int:
        sizes = list(KERNELS.values())[function.value - 1]
        if number >= len(sizes):
            return 1
        size._obj.value = sizes[number]
        return 0

    def do_cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        shape, shared_bytes, stream, pointers = rest[:6], rest[6], rest[7], rest[8]
        sizes = list(KERNELS.values())[function.value - 1]
        held = [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes, strict=True)]
        where = self.contexts[-1]
        self.launches.append(
            {"shape": shape, "shared": shared_bytes, "stream": stream.value, "held": held, "context": where}
        )
        return 0


class OldLibrary(FakeLibrary):
    """A driver from before CUDA 12.4."""

    cuFuncGetParamInfo = None


class FakeTensor:
    """A tensor on a GPU, as far as the launcher looks at it; its layout is that of a real one on the CPU."""

    is_cuda = True

    def __init__(self, address: int, device: int = 0, like: Any = None) -> None:
        self.address, self.device = address, torch.device("cuda", device)
        self.like = torch.zeros(4) if like is None else like

    def data_ptr(self) -> int:
        return self.address

    def __getattr__(self, name: str) -> Any:
        return getattr(self.like, name)


STREAM = SimpleNamespace(device=torch.device("cuda", 0), cuda_stream=0x77)
X, Y = FakeTensor(0x7F00_0000_0000), FakeTensor(0x7F00_0000_1000)
ARGS = [np.float32(1.5), X, Y, 5]


@pytest.fixture
def library() -> FakeLibrary:
    return FakeLibrary()


@pytest.fixture
def module(library: FakeLibrary) -> Module:
    return Module(Context(Driver(library), 0), b"code")


def launch(module: Module, name: str = "saxpy", args: Any = ARGS, **changed: Any) -> None:
    module.launch(name, **{"grid": (2, 1), "block": 256, "args": args, "stream": STREAM, **changed})


def test_arguments_arrive_as_wide_as_they_are(module: Module, library: FakeLibrary) -> None:
    launch(module)
    numbers = [np.uint8(255), np.int16(-2), np.int32(-3), np.float32(0.5), np.float64(0.1), -(2**63)]
    launch(module, "sizes", numbers)
    first, second = (one["held"] for one in library.launches)
    assert b"".join(first) == struct.pack("<f", 1.5) + struct.pack("<QQq", X.address, Y.address, 5)
    assert b"".join(second) == struct.pack("<Bhifdq", 255, -2, -3, 0.5, 0.1, -(2**63))


def test_grid_block_and_stream_arrive(module: Module, library: FakeLibrary) -> None:
    launch(module, grid=(7, 65535), block=32)
    (one,) = library.launches
    assert (one["shape"], one["shared"], one["stream"]) == ((7, 65535, 1, 32, 1, 1), 0, 0x77)


def test_a_kernel_without_parameters_is_launched(module: Module, library: FakeLibrary) -> None:
    launch(module, "nothing", [])
    assert library.launches[0]["held"] == []


def test_without_a_stream_torchs_current_one_of_the_device_is_taken(
    module: Module, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=40 + device))
    launch(module, stream=None)
    assert library.launches[0]["stream"] == 40


def test_a_launch_happens_in_the_devices_context_and_leaves_the_threads_own(library: FakeLibrary) -> None:
    tensors = [FakeTensor(8, device=3), FakeTensor(16, device=3)]
    stream = SimpleNamespace(device=torch.device("cuda", 3), cuda_stream=1)
    library.do_cuDeviceGet = lambda out, number: setattr(out._obj, "value", number) or 0  # type: ignore[attr-defined]
    launch(Module(Context(Driver(library), 3), b""), args=[np.float32(0), *tensors, 1], stream=stream)
    assert library.launches[0]["context"] == 1003
    assert library.contexts == []


def test_a_kernel_is_looked_up_once(module: Module, library: FakeLibrary) -> None:
    threads = [threading.Thread(target=launch, args=(module,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(library.launches) == 8
    assert library.calls.count("cuModuleGetFunction") == 1


@pytest.mark.parametrize("grid", [(0, 1), (-1, 1), (2**31, 1), (1, 65536), (), (1, 1, 1)], ids=str)
def test_a_grid_out_of_range_is_refused_with_the_limits(module: Module, grid: Any) -> None:
    with pytest.raises(UsageError, match=r"grid must be .* at most 2147483647, 65535, got"):
        launch(module, grid=grid)


@pytest.mark.parametrize("block", [0, 769, 1024])
def test_more_threads_than_the_kernels_registers_allow_are_refused(module: Module, block: int) -> None:
    with pytest.raises(UsageError, match=rf"block={block}, and a block of kernel 'saxpy' has 1 to 768"):
        launch(module, block=block)


def test_a_tensor_on_another_device_is_refused(module: Module) -> None:
    with pytest.raises(UsageError, match="argument 1 is a tensor on cpu, and the kernel runs on cuda:0"):
        launch(module, args=[np.float32(1), torch.zeros(4), Y, 5])
    with pytest.raises(UsageError, match="argument 2 is a tensor on cuda:1, and"):
        launch(module, args=[np.float32(1), X, FakeTensor(8, device=1), 5])


def test_a_tensor_that_is_not_contiguous_is_refused(module: Module) -> None:
    gaps = FakeTensor(8, like=torch.zeros(4, 6)[:, ::2])
    with pytest.raises(UsageError, match=r"shape \(4, 3\) that is not contiguous \(strides \(6, 2\)\)"):
        launch(module, args=[np.float32(1), gaps, Y, 5])


def test_a_channels_last_batch_is_contiguous(module: Module, library: FakeLibrary) -> None:
    batch = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    launch(module, args=[np.float32(1), FakeTensor(8, like=batch), Y, 5])
    assert len(library.launches) == 1


def test_a_stream_of_another_device_is_refused(module: Module) -> None:
    stream = SimpleNamespace(device=torch.device("cuda", 1), cuda_stream=1)
    with pytest.raises(UsageError, match="the stream belongs to cuda:1, and the kernel runs on cuda:0"):
        launch(module, stream=stream)


@pytest.mark.parametrize(
    "value", [1.5, True, None, "x", np.bool_(True), np.zeros(()), np.longdouble(1)], ids=repr
)
def test_a_value_of_unknown_width_is_refused(module: Module, value: Any) -> None:
    with pytest.raises(UsageError, match=r"argument 0 is .*: a kernel takes CUDA tensors, ints and numpy's"):
        launch(module, args=[value, X, Y, 5])


def test_an_int_that_is_too_large_is_refused(module: Module) -> None:
    with pytest.raises(UsageError, match="argument 3 is 9223372036854775808, which an int64 does not hold"):
        launch(module, args=[*ARGS[:3], 2**63])


def test_an_argument_of_another_width_than_its_parameter_is_refused(module: Module) -> None:
    with pytest.raises(UsageError, match=r"argument 0 of kernel 'saxpy' is int, 8 bytes wide, .* has 4"):
        launch(module, args=[1, X, Y, 5])


def test_too_few_and_too_many_arguments_are_refused(module: Module) -> None:
    for args in (ARGS[:3], [*ARGS, 1]):
        with pytest.raises(UsageError, match=f"'saxpy' has 4 parameters, got {len(args)} arguments"):
            launch(module, args=args)


def test_a_driver_that_does_not_know_parameters_launches_all_the_same() -> None:
    library = OldLibrary()
    launch(Module(Context(Driver(library), 0), b"code"))
    assert len(library.launches) == 1


def test_nothing_crosses_to_the_driver_when_an_argument_is_refused(
    module: Module, library: FakeLibrary
) -> None:
    with pytest.raises(UsageError, match="argument 0"):
        launch(module, args=[1.5, X, Y, 5])
    assert "cuLaunchKernel" not in library.calls


def test_a_kernel_that_is_not_there_is_named(module: Module) -> None:
    with pytest.raises(UsageError, match="no kernel 'missing'") as caught:
        launch(module, "missing")
    assert 'extern "C"' in str(caught.value.hint)


def test_what_the_driver_refuses_is_said_in_its_words(module: Module, library: FakeLibrary) -> None:
    library.failing["cuLaunchKernel"] = ILLEGAL_ADDRESS
    words = (
        r"cuLaunchKernel failed: an illegal memory access was encountered \(CUDA_ERROR_ILLEGAL_ADDRESS, 700\)"
    )
    with pytest.raises(GpuError, match=words):
        launch(module)
    assert library.contexts == []


class FakeNvrtc:
    version = (12, 9)
    count = 0

    def __str__(self) -> str:
        return "NVRTC 12.9"

    def choose_architecture(self, capability: tuple[int, int]) -> str:
        return "sm_{}{}".format(*capability)

    def compile(self, source: str, *_: Any) -> bytes:
        self.count += 1
        if "wrong" in source:
            raise GpuError("NVRTC 12.9 cannot compile the CUDA source for sm_90: line one\nline two")
        return source.encode()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, library: FakeLibrary, tmp_path: Path) -> FakeNvrtc:
    """A machine with one GPU, as torch, NVRTC and the driver show it."""
    nvrtc = FakeNvrtc()
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(launcher, "load_nvrtc", {12: nvrtc}.__getitem__)
    monkeypatch.setattr(launcher, "_modules", {})
    monkeypatch.setattr(driver_module, "_contexts", {})
    monkeypatch.setattr(driver_module, "load_driver", lambda: Driver(library))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return nvrtc


def test_the_same_source_gives_the_same_module(gpu: FakeNvrtc, library: FakeLibrary) -> None:
    modules = [compile_source("a"), compile_source("a", device=0), compile_source("b")]
    assert modules[0] is modules[1] is not modules[2]
    assert gpu.count == library.calls.count("cuModuleLoadData") == 2


def test_threads_that_ask_at_once_compile_once(gpu: FakeNvrtc) -> None:
    threads = [threading.Thread(target=compile_source, args=("a",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gpu.count == 1


def test_code_that_the_driver_does_not_load_is_explained_by_versions(
    gpu: FakeNvrtc, library: FakeLibrary
) -> None:
    library.failing["cuModuleLoadData"] = INVALID_IMAGE
    words = r"for CUDA 12\.4, does not load what NVRTC 12\.9 made for sm_90: .*image is invalid"
    with pytest.raises(GpuError, match=words):
        compile_source("a")
    assert gpu.count == 1


@pytest.mark.usefixtures("gpu")
def test_an_earlier_kernels_fault_is_not_blamed_on_the_code(library: FakeLibrary) -> None:
    library.failing["cuModuleLoadData"] = ILLEGAL_ADDRESS
    with pytest.raises(GpuError, match=r"^cuModuleLoadData failed: an illegal memory access"):
        compile_source("a")


@pytest.mark.usefixtures("gpu")
def test_where_all_is_there_nothing_speaks_against_the_gpu() -> None:
    assert why_not() is None
    assert why_not(0, "a") is None


@pytest.mark.usefixtures("gpu")
def test_a_source_that_does_not_compile_is_a_reason_of_one_line() -> None:
    assert why_not(0, "wrong") == "NVRTC 12.9 cannot compile the CUDA source for sm_90: line one"


@pytest.mark.usefixtures("gpu")
def test_a_device_that_is_not_there_is_a_reason() -> None:
    assert why_not(1) == "there is no cuda:1, torch finds 1 GPU"


@pytest.mark.usefixtures("gpu")
def test_a_fork_of_a_process_that_used_cuda_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert str(why_not()).startswith("this process is a fork of one that had used CUDA")


@pytest.mark.usefixtures("gpu")
def test_no_gpu_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert why_not() == "torch finds no GPU: nvidia-smi shows those that the driver sees"


@pytest.mark.usefixtures("gpu")
def test_no_nvrtc_is_a_reason_with_the_line_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: int) -> None:
        raise MissingExtra("no NVRTC was found", hint="pip install nvidia-cuda-nvrtc-cu12")

    monkeypatch.setattr(launcher, "load_nvrtc", load)
    assert why_not() == "no NVRTC was found: pip install nvidia-cuda-nvrtc-cu12"


@pytest.mark.usefixtures("gpu")
def test_a_torch_without_cuda_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert why_not() == (
        f"this torch ({torch.__version__}) is built without CUDA: install a CUDA build of torch"
    )


def test_no_torch_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    reason = why_not()
    assert reason is not None
    assert reason.startswith("the GPU is used by way of torch, which cannot be imported: ")
    assert reason.endswith(": pip install torch")


def test_a_machine_without_nvidias_driver_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    driver_module.load_driver.cache_clear()
    with pytest.raises(FeedrateError, match=r"NVIDIA's driver cannot be used: libcuda\.so\.1: cannot open"):
        driver_module.load_driver()
