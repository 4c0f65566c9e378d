# SPDX-License-Identifier: Apache-2.0
"""Damaged JPEGs and forged entry points through the planner and the kernels, on a GPU, without torch.

    python tests/slow/gpu_mutants.py --mutants 10000
    for tool in memcheck initcheck racecheck; do compute-sanitizer --tool $tool --report-api-errors no \\
        --error-exitcode 9 python tests/slow/gpu_mutants.py --sanitizer; done

Pixels that the GPU calls good must be those of the CPU's decoder, which must call them good too; every other
sample must have been left out by the planner, or have a status and black pixels. Sound files stand between
the mutants and must come out. `--cpu` runs the CUDA source on the CPU instead.

The launcher asks the driver for parameters of a kernel until there is none: such a refusal is no error.

Memory is taken from the driver, buffer by buffer: torch's allocator would hide from the sanitizer where a
buffer ends. Without `--sanitizer` buffers are filled with a pattern before use and have more of it behind
them, which must be there afterwards.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from fuzz_corpus import make_jpegs
from jpeg_mutations import make_corpus, make_mutant, scan_range

from cuda_on_cpu import Case, Emulator, build, look
from cuda_on_cpu import decode as decode_on_cpu
from cuda_on_cpu.forged import draw_points, forge, tie
from feedrate import kernel
from feedrate.kernel.binding import Status, as_bytes, native
from feedrate.kernel.cuda import batch as contract
from feedrate.kernel.cuda.launcher import Module, open_context
from feedrate.kernel.cuda.nvrtc import CodeCache, find_folder, load_nvrtc
from feedrate.kernel.decoding import is_pillow_older

MOST_MEMORY = 256 << 20
BATCH = 480
SOUND_EVERY = 8
UNSURE = 16  # as in layout.h
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
PATTERN, GUARD = 0xA5, 4096
Decode = Callable[[Sequence[Case], tuple[int, int], int], tuple[Any, Any, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, help="default: 10,000; with --sanitizer 300")
    parser.add_argument(
        "--sanitizer", action="store_true",
        help="the fuzzers' corpus, in buffers that end where they end and that nothing was written to",
    )  # fmt: skip
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    began = time.perf_counter()
    corpus = make_jpegs() if arguments.sanitizer else make_corpus()
    mutants = arguments.mutants or (300 if arguments.sanitizer else 10_000)
    if arguments.cpu:
        with tempfile.TemporaryDirectory() as folder:
            emulator = Emulator(build(Path(folder)))

        def decode(cases: Sequence[Case], size: tuple[int, int], channels: int) -> tuple[Any, Any, Any]:
            return decode_on_cpu(emulator, cases, size, channels, most_memory=MOST_MEMORY)

        counts = run(decode, corpus, mutants)
    else:
        gpu = Gpu(is_watched=arguments.sanitizer)
        before = gpu.used_bytes()
        run(gpu.decode, corpus, 8)
        first = gpu.used_bytes()
        counts = run(gpu.decode, corpus, mutants)
        used = ", ".join(f"{n / 1e6:,.0f} MB" for n in (before, first, gpu.used_bytes()))
        print(f"memory of the GPU in use before, after the first batch, at the end: {used}")
    for what, count in sorted(counts.items()):
        print(f"{count:7,} {what}")
    print(f"nothing differs; {time.perf_counter() - began:.1f} s")
    return 0


class Gpu:
    """The first GPU, by the driver alone."""

    def __init__(self, *, is_watched: bool) -> None:
        self.is_watched = is_watched
        self.context = open_context(0)
        driver = self.context.driver
        nvrtc = load_nvrtc(int(driver.version.partition(".")[0]))
        capability = (self.attribute(MAJOR), self.attribute(MINOR))
        code = CodeCache(find_folder()).compile(
            nvrtc,
            contract.source(),
            nvrtc.choose_architecture(capability),
            (*contract.COMPILE_OPTIONS, "--generate-line-info"),
        )
        self.module = Module(self.context, code)
        self.stream = SimpleNamespace(device=SimpleNamespace(index=0), cuda_stream=0)
        self.plan = contract.BatchPlan()

    def call(self, function: str, *arguments: Any) -> None:
        with self.context.current():
            self.context.driver.call(function, *arguments)

    def attribute(self, which: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), which, ctypes.c_int(0))
        return value.value

    def used_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    def launch(self, name: str, grid: tuple[int, int], block: int, args: Sequence[Any]) -> None:
        values = [arg.address if isinstance(arg, DeviceBytes) else arg for arg in args]
        self.module.launch(name, grid, block, values, stream=self.stream)

    def decode(self, cases: Sequence[Case], size: tuple[int, int], channels: int) -> tuple[Any, Any, Any]:
        """Decode a batch; return pixels, statuses, and which samples were taken."""
        taken = look(self.plan, cases, size, most_memory=MOST_MEMORY)
        staged = np.empty(self.plan.sizes.staged, np.uint8)
        self.plan.fill(staged)
        buffers = {name: DeviceBytes(self, count) for name, count in self.plan.buffer_bytes().items()}
        out = np.full((len(cases), *size, channels), 77, np.uint8)
        statuses = np.full(len(cases), -1, np.int32)
        there = [DeviceBytes(self, array.nbytes) for array in (out, statuses)]
        given = [buffers["staged"], buffers["words"], *there]
        for array, copy in zip((staged, self.plan.words, out, statuses), given, strict=True):
            copy.write(array)
        contract.run(self.plan, self.launch, buffers, *there, channels)
        for array, copy in zip((out, statuses), there, strict=True):
            copy.read(array)
        for one in (*buffers.values(), *there):
            one.free()
        return out, statuses, taken


class DeviceBytes:
    """Memory of the GPU; a slice of it is another address."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self.gpu, self.size = gpu, size
        self.guard = 0 if gpu.is_watched else GUARD
        address = ctypes.c_uint64()
        gpu.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size + self.guard))
        self.address = address.value
        if self.guard:
            gpu.call(
                "cuMemsetD8_v2", address, ctypes.c_ubyte(PATTERN), ctypes.c_size_t(size + self.guard)
            )  # fmt: skip

    def __getitem__(self, part: slice) -> DeviceBytes:
        view = object.__new__(DeviceBytes)
        view.gpu, view.address = self.gpu, self.address + part.start
        return view

    def write(self, array: Any) -> None:
        source = ctypes.c_void_p(array.ctypes.data)
        self.gpu.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address), source, ctypes.c_size_t(array.nbytes))

    def read(self, array: Any, at: int = 0) -> None:
        target = ctypes.c_void_p(array.ctypes.data)
        self.gpu.call(
            "cuMemcpyDtoH_v2", target, ctypes.c_uint64(self.address + at), ctypes.c_size_t(array.nbytes)
        )

    def free(self) -> None:
        if self.guard:
            behind = np.empty(self.guard, np.uint8)
            self.read(behind, self.size)
            assert (behind == PATTERN).all(), "a kernel wrote behind the end of a buffer"
        self.gpu.call("cuMemFree_v2", ctypes.c_uint64(self.address))


def run(decode: Decode, corpus: Sequence[bytes], mutants: int) -> Counter[str]:
    """Decode so many mutants, with sound files between them; return what became of them.

    Raises:
        AssertionError: a sample is neither as on the CPU nor reported.
    """
    counts: Counter[str] = Counter()
    drawn = draw_cases(list(corpus), mutants)
    rng = np.random.default_rng(3)
    while cases := list(itertools.islice(drawn, BATCH)):
        size, channels = (int(rng.integers(1, 64)), int(rng.integers(1, 64))), int(rng.choice([3, 3, 3, 1]))
        out, statuses, taken = decode([case for _, case in cases], size, channels)
        for i, (kind, case) in enumerate(cases):
            became = judge(case, out[i], int(statuses[i]), bool(taken[i]))
            assert kind != "sound file" or became in ("decoded alike", "unsure of a weight"), became
            counts[f"{kind}: {became}"] += 1
    return counts


def judge(case: Case, pixels: Any, status: int, is_taken: bool) -> str:
    """Return what became of a sample."""
    if not is_taken:
        assert status == -1, "a sample that was not taken has a status"
        assert (pixels == 77).all(), "a sample that was not taken has pixels"
        return "not taken by the plan"
    if status:
        assert status > 0, "a sample that was taken has no status"
        assert not pixels.any(), "a sample with a status has pixels"
        return "unsure of a weight" if status == UNSURE else "found bad by the GPU"
    wanted = np.empty_like(pixels)
    found, words = native.decode_one(
        as_bytes(case.data), as_bytes(case.entries), case.box, wanted.reshape(-1), wanted.shape, case.flip,
        case.filter, is_pillow_older(np.array([case.filter])),
    )  # fmt: skip
    assert found == Status.OK, f"good on the GPU, and on the CPU: {words}"
    assert np.array_equal(pixels, wanted), "the GPU's pixels are not the CPU's"
    return "decoded alike"


def draw_cases(corpus: list[bytes], mutants: int) -> Iterator[tuple[str, Case]]:
    """Yield mutants, and what kind each is, with sound files between them; the same ones every time."""
    sound = [data for data in corpus if kernel.find_entry_points(data, 1000)]
    for number in range(mutants):
        rng = np.random.default_rng([5, number])
        distance = int(rng.choice([1, 40, 200, 100_000]))
        data = sound[int(rng.integers(len(sound)))]
        entries = kernel.find_entry_points(data, distance)
        if number % SOUND_EVERY == 0:
            yield "sound file", draw_case(rng, data, entries)
        if number % 16 == 8:
            kind, (data, entries) = "forged entry points", draw_forgery(rng, data)
        elif number % 4 == 0:
            kind, entries = "damaged entry points", spoil(rng, entries, 0, len(entries))
        elif number % 4 == 1:
            kind, data = "damaged scan", spoil(rng, data, *scan_range(data))
        else:
            mutant = make_mutant(corpus, number)
            kind, data = "damaged file", mutant.data
            # Its own, where a scan finds any; else those of the sound file.
            found = kernel.find_entry_points(data, distance) if data and number % 4 == 2 else b""
            entries = found or kernel.find_entry_points(corpus[mutant.base], distance)
        yield kind, draw_case(rng, data, entries if rng.random() < 0.03 else tie(data, entries))


def draw_forgery(rng: np.random.Generator, data: bytes) -> tuple[bytes, bytes]:
    """Return a file, in half of all cases with restart markers due where none stand, and entry points."""
    if rng.integers(2):
        at = data.index(b"\xff\xda")
        data = data[:at] + b"\xff\xdd\0\4\0" + bytes([int(rng.integers(1, 5))]) + data[at:]
    start, stop = scan_range(data)
    frame = data.index(b"\xff\xc0")
    (height, width), components = struct.unpack_from(">HH", data, frame + 5), data[frame + 9]
    sampling = data[frame + 11] if components == 3 else 0x11
    across, down = -(-width // (8 * (sampling >> 4))), -(-height // (8 * (sampling & 15)))
    step = int(rng.integers(1, across + 1))
    points = draw_points(rng, data[start:stop], -(-across // step) * down)
    return data, forge(data, points, step=step, components=components)


def draw_case(rng: np.random.Generator, data: bytes, entries: bytes) -> Case:
    width, height = native.probe(as_bytes(data))[2:] if data else (0, 0)
    sides = []
    for side in (width, height):
        first = int(rng.integers(max(side, 1)))
        sides.append((first, int(rng.integers(first, max(side, first + 1))) + 1))
    (left, right), (top, bottom) = sides
    return Case(data, entries, (left, top, right, bottom), bool(rng.integers(2)), int(rng.integers(6)))


def spoil(rng: np.random.Generator, data: bytes, start: int, stop: int) -> bytes:
    changed = bytearray(data)
    for at in rng.integers(start, max(stop, start + 1), int(rng.integers(1, 5))) if data else ():
        value = [0xFF, changed[at] ^ 1 << int(rng.integers(8)), int(rng.integers(256))]
        changed[at] = value[int(rng.integers(3))]
    return bytes(changed)


if __name__ == "__main__":
    sys.exit(main())
