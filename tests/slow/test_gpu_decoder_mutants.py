# SPDX-License-Identifier: Apache-2.0
"""Damaged files and forged entry points through the GPU's planner and kernels, under the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fuzz_corpus import NATIVE, make_jpegs

from cuda_on_cpu import HERE
from feedrate.kernel.cuda import batch

pytestmark = pytest.mark.slow

COMPILER = shutil.which("g++") or shutil.which("clang++")


def run(command: list[str | Path], **options: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return str(result.stdout)


def test_no_mutant_reads_or_writes_outside_or_comes_out_otherwise_than_on_the_cpu(tmp_path: Path) -> None:
    if COMPILER is None:
        pytest.skip("needs g++ or clang++")
    decoder = tmp_path / "decoder.cu"
    decoder.write_text(batch.source())
    command: list[str | Path] = [
        COMPILER, "-std=c++17", "-O1", "-g", "-Wno-psabi", "-Wno-unknown-pragmas", "-ffp-contract=off",
        "-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
        f'-DDECODER="{decoder}"', "-I", NATIVE,
    ]  # fmt: skip
    sources = [path for path in sorted(NATIVE.glob("*.cpp")) if path.name != "module.cpp"]
    sources += [HERE / "emulator.cpp", HERE / "run_mutants.cpp"]
    objects = [tmp_path / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, [[*command, "-c", s, "-o", o] for s, o in zip(sources, objects, strict=True)]))
    run([*command, *objects, "-o", tmp_path / "run_mutants"])
    paths = []
    for number, jpeg in enumerate(make_jpegs()):
        paths.append(tmp_path / f"{number}.jpg")
        paths[-1].write_bytes(jpeg)
    said = run([tmp_path / "run_mutants", "120"], input="\n".join(map(str, paths)))
    sound, alike, refused = (int(part.split()[0]) for part in said.split(","))
    assert sound > 9_000
    assert min(alike, refused) > 900
