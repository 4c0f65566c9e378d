# SPDX-License-Identifier: Apache-2.0
"""Inputs for the fuzzer's entry (native/fuzz/decode_fuzzer.cpp), and how it is built."""

from __future__ import annotations

import io
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from support.paths import ROOT

NATIVE = ROOT / "native"


def make_jpegs() -> list[bytes]:
    rng = np.random.default_rng(0)
    jpegs = []
    kinds: list[dict[str, Any]] = [
        {"subsampling": 0},
        {"subsampling": 1},
        {"subsampling": 2},
        {"subsampling": 2, "restart_marker_blocks": 3},
        {"subsampling": 0, "optimize": True, "quality": 98},
        {"subsampling": 2, "quality": 8},
        {"progressive": True},
    ]
    for size in [(1, 1), (17, 9), (50, 43), (130, 37)]:
        for options in kinds:
            noise = rng.integers(0, 60, (size[1], size[0], 3))
            ramp = np.add.outer(np.arange(size[1]), np.arange(size[0]))[:, :, None] * 2 % 190
            pixels = (noise + ramp).astype(np.uint8)
            jpegs += [
                _encode(Image.fromarray(pixels), options),
                _encode(Image.fromarray(pixels[:, :, 0]), options),
            ]
    return jpegs


def _encode(image: Image.Image, options: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def write_corpus(folder: Path, *, spoilt_per_file: int) -> list[Path]:
    """Write every JPEG whole, then cut short and with changed bytes.

    Of the first two bytes the entry makes forged entry points, so that every seed of them is another forgery.
    """
    rng = np.random.default_rng(1)
    inputs = []
    for number, jpeg in enumerate(make_jpegs()):
        filter_ = number % 6  # counted from bilinear on, as the entry reads it
        sizes = bytes([0x1F | filter_ % 4 << 5, 0x1F | filter_ // 4 << 5])
        # An excerpt of a resize, every other one of a reach.
        part = bytes([1 | number % 2 << 1 | number % 4 // 2 << 3, 40, 30, 90, 200, 60, 20, 180, 240, 0])
        inputs.append(b"\x00\x00\x00\x00\xff\xff" + sizes + part + jpeg)
        for i in range(spoilt_per_file):
            data = bytearray(jpeg)
            if i % 3 == 0:
                data = data[: int(rng.integers(0, len(data)))]
            elif i % 3 == 1:
                for at in rng.integers(2, len(data), int(rng.integers(1, 6))):
                    data[at] = int(rng.integers(0, 256))
            inputs.append(rng.integers(0, 256, 18, np.uint8).tobytes() + bytes(data))
    paths = [folder / f"{i:05}" for i in range(len(inputs))]
    for path, data in zip(paths, inputs, strict=True):
        path.write_bytes(data)
    return paths


def build(program: Path, compiler: str, *options: str, driver: bool) -> None:
    """Compile the kernel's decoders and the fuzzer's entry; `driver` adds a main()."""
    # What needs Python or folders is not part of it.
    others = {"module.cpp", "batch.cpp", "members.cpp", "folder.cpp"}
    sources = [path for path in sorted(NATIVE.glob("*.cpp")) if path.name not in others]
    sources += [NATIVE / "fuzz" / "decode_fuzzer.cpp"]
    sources += [NATIVE / "fuzz" / "run_corpus.cpp"] if driver else []
    command = [
        compiler,
        "-std=c++17",
        "-O1",
        "-g",
        "-Wno-psabi",
        "-fno-sanitize-recover=all",
        "-pthread",
        *options,
    ]
    objects = [program.with_name(f"{program.name}-{source.stem}.o") for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_run, [[*command, "-c", s, "-o", o] for s, o in zip(sources, objects, strict=True)]))
    _run([*command, *objects, "-o", program])


def _run(command: list[str | Path]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
