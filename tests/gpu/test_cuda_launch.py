# SPDX-License-Identifier: Apache-2.0
"""Kernels compiled by torch's own NVRTC and launched on a GPU: `make test-gpu`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from feedrate.errors import GpuError, UsageError
from feedrate.kernel.cuda import Module, compile_source, why_not
from feedrate.kernel.cuda.launcher import load_driver, open_context
from feedrate.kernel.cuda.nvrtc import load_nvrtc
from support.cuda_sources import SAXPY
from support.paths import TESTS

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
    pytest.mark.filterwarnings("default"),  # of torch: not ours to mend
]
COUNT = 1_000_003  # no multiple of a block
# Scripts for processes of their own.
ANOTHER_PROCESS = """
from support.cuda_sources import SAXPY
from feedrate.kernel.cuda import compile_source
from feedrate.kernel.cuda.nvrtc import Nvrtc
def refuse(*_): raise AssertionError("compiled again")
Nvrtc.compile = refuse
compile_source(SAXPY)
print("from the cache")
"""
ILLEGAL = """
import contextlib, os, torch
from feedrate.errors import GpuError
from feedrate.kernel.cuda import compile_source
module = compile_source('extern "C" __global__ void poke(int* p) { *p = 1; }')
module.launch("poke", (1, 1), 1, [64])
with contextlib.suppress(RuntimeError):
    torch.cuda.synchronize()
try:
    module.launch("poke", (1, 1), 1, [64])
except GpuError as error:
    print(error, flush=True)
os._exit(0)  # nothing works any more, cleaning up neither
"""


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep compiled code out of the user's own folder; one for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "compiled"))
        yield


def launch_saxpy(module: Module, x: Any, y: Any, **options: Any) -> None:
    module.launch("saxpy", (-(-x.numel() // 256), 1), 256, [np.float32(2), x, y, x.numel()], **options)


def make_vectors(seed: int = 0, device: str = "cuda") -> tuple[Any, Any]:
    generator = torch.Generator(device).manual_seed(seed)
    return tuple(torch.randint(0, 1000, (COUNT,), device=device, generator=generator).float() for _ in "xy")  # type: ignore[return-value]


def run(script: str) -> str:
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), *sys.path])),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_speaks_against_this_gpu() -> None:
    assert why_not(0, SAXPY) is None


def test_the_nvrtc_is_of_torchs_own_cuda_version() -> None:
    major = int(torch.version.cuda.partition(".")[0])
    assert load_nvrtc(major).version[0] == major


def test_a_kernel_on_the_current_stream_computes_what_torch_does() -> None:
    x, y = make_vectors()
    want = 2 * x + y
    launch_saxpy(compile_source(SAXPY), x, y)
    assert torch.equal(y, want)


@pytest.mark.parametrize("is_named", [False, True], ids=["current", "named"])
def test_a_kernel_on_a_side_stream_runs_in_that_streams_order(is_named: bool) -> None:
    x, y = make_vectors()
    want = 4 * (2 * x + y)
    module, stream = compile_source(SAXPY), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # a launch on the wrong stream would come too early
        x.mul_(2)
        y.mul_(2)
        if not is_named:
            launch_saxpy(module, x, y)
    if is_named:
        launch_saxpy(module, x, y, stream=stream)
    with torch.cuda.stream(stream):
        y.mul_(2)
    stream.synchronize()
    assert torch.equal(y, want)


def test_tensors_may_be_dropped_as_soon_as_the_kernel_is_launched() -> None:
    module, sums, wanted = compile_source(SAXPY), [], []
    for seed in range(20):
        x, y = make_vectors(seed)
        wanted.append((2 * x + y).double().sum())
        torch.cuda._sleep(1_000_000)
        launch_saxpy(module, x, y)
        sums.append(y.double().sum())
        del x, y
    assert torch.equal(torch.stack(sums), torch.stack(wanted))


def test_the_same_source_gives_the_same_module() -> None:
    assert compile_source(SAXPY) is compile_source(SAXPY, device=0)


def test_threads_that_have_not_used_cuda_before_launch_at_the_same_time() -> None:
    vectors = [make_vectors(seed) for seed in range(4)]
    want = [16 * x + y for x, y in vectors]  # eight launches each
    torch.cuda.synchronize()
    start, troubles = threading.Barrier(4), []

    def work(number: int) -> None:
        try:
            start.wait()
            # Nothing has made a context current in this thread before.
            module = compile_source(f"// of these threads\n{SAXPY}")
            for _ in range(8):
                launch_saxpy(module, *vectors[number])
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert troubles == []
    assert all(torch.equal(y, one) for (_, y), one in zip(vectors, want, strict=True))


def test_a_launch_is_captured_in_a_graph_and_replayed() -> None:
    x, y = make_vectors()
    want = 6 * x + y
    module = compile_source(SAXPY)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch_saxpy(module, x, y)
    for _ in range(3):
        graph.replay()
    assert torch.equal(y, want)


def test_a_source_is_compiled_loaded_and_first_launched_in_the_middle_of_a_capture() -> None:
    x, y = make_vectors()
    want = 2 * x + y
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch_saxpy(compile_source(f"// in a capture\n{SAXPY}"), x, y)
    graph.replay()
    assert torch.equal(y, want)


def test_a_thread_loads_and_launches_while_another_one_captures() -> None:
    x, y = make_vectors()
    other = make_vectors(1)
    want = [2 * x + y, 2 * other[0] + other[1]]
    module, stream = compile_source(SAXPY), torch.cuda.Stream()
    torch.cuda.synchronize()
    graph, troubles = torch.cuda.CUDAGraph(), []

    def work() -> None:
        try:
            launch_saxpy(compile_source(f"// beside a capture\n{SAXPY}"), *other, stream=stream)
        except BaseException as error:
            troubles.append(error)

    with torch.cuda.graph(graph):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        launch_saxpy(module, x, y)
    graph.replay()
    torch.cuda.synchronize()
    assert troubles == []
    assert torch.equal(y, want[0])
    assert torch.equal(other[1], want[1])


def test_text_for_the_driver_runs_as_machine_code_does() -> None:
    nvrtc = load_nvrtc(int(torch.version.cuda.partition(".")[0]))
    driver = load_driver().version
    if tuple(map(int, driver.split("."))) < nvrtc.version:
        pytest.skip(f"the driver is for CUDA {driver}, and takes no text of {nvrtc}")
    x, y = make_vectors()
    want = 2 * x + y
    launch_saxpy(Module(open_context(0), nvrtc.compile(SAXPY, "compute_80")), x, y)
    assert torch.equal(y, want)


def test_a_channels_last_batch_and_numbers_of_all_widths_arrive() -> None:
    source = """
    extern "C" __global__ void show(const unsigned char* batch, double* out, signed char a, short b, int c,
                                    unsigned d, long long e, float f, double g)
    {
        out[0] = batch[1]; out[1] = a; out[2] = b; out[3] = c;
        out[4] = d; out[5] = e; out[6] = f; out[7] = g;
    }
    """
    batch = torch.zeros(2, 3, 4, 5, dtype=torch.uint8, device="cuda").contiguous(
        memory_format=torch.channels_last
    )
    batch[0, 1, 0, 0] = 7
    out = torch.zeros(8, dtype=torch.float64, device="cuda")
    numbers = [
        np.int8(-1),
        np.int16(-2),
        np.int32(-3),
        np.uint32(2**32 - 1),
        -(2**40),
        np.float32(0.5),
        np.float64(0.1),
    ]
    compile_source(source).launch("show", (1, 1), 1, [batch, out, *numbers])
    assert out.tolist() == [7, *map(float, numbers)]


def test_a_grid_out_of_range_gives_a_sentence() -> None:
    with pytest.raises(
        UsageError, match=r"grid must be .* at most 2147483647, 65535, 65535, got \(1, 65536\)"
    ):
        compile_source(SAXPY).launch("saxpy", (1, 65536), 256, [])


def test_a_kernel_that_is_not_there_gives_a_sentence() -> None:
    with pytest.raises(UsageError, match="no kernel 'missing'"):
        compile_source(SAXPY).launch("missing", (1, 1), 1, [])


@pytest.mark.parametrize(
    ("args", "words"),
    [([1], "has 4 parameters, got 1 arguments"), ([1, 2, 3, 4], "argument 0 .* 8 bytes wide, .* has 4")],
    ids=["too few", "too wide"],
)
def test_arguments_that_do_not_fit_the_kernel_give_a_sentence(args: list[int], words: str) -> None:
    if not load_driver().has("cuFuncGetParamInfo"):
        pytest.skip("this driver does not say what parameters a kernel has: CUDA 12.4 and newer do")
    with pytest.raises(UsageError, match=words):
        compile_source(SAXPY).launch("saxpy", (1, 1), 1, args)


def test_a_source_that_does_not_compile_gives_the_compilers_words() -> None:
    with pytest.raises(GpuError, match=r'for sm_\d+: feedrate\.cu\(\d+\): error: identifier "lng"'):
        compile_source(SAXPY.replace("long long n", "lng n"))


def test_another_process_takes_the_code_from_the_cache() -> None:
    compile_source(SAXPY)
    assert run(ANOTHER_PROCESS) == "from the cache\n"


def test_an_illegal_access_of_an_earlier_kernel_is_said_in_the_drivers_words() -> None:
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in run(ILLEGAL)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has one GPU")
def test_a_kernel_runs_on_another_device_than_the_current_one() -> None:
    x, y = make_vectors(device="cuda:1")
    want = 2 * x + y
    launch_saxpy(compile_source(SAXPY, device=1), x, y)
    assert torch.equal(y, want)
    assert torch.cuda.current_device() == 0
