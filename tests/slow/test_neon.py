# SPDX-License-Identifier: Apache-2.0
"""The kernel for 64-bit Arm, cross-compiled and run by an emulator, against the build for this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from fuzz_corpus import build, write_corpus

pytestmark = pytest.mark.slow

NATIVE_COMPILER = shutil.which("g++") or shutil.which("clang++")
CROSS_COMPILER = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")


@pytest.mark.skipif(NATIVE_COMPILER is None, reason="needs g++ or clang++")
@pytest.mark.skipif(CROSS_COMPILER is None, reason="needs aarch64-linux-gnu-g++ (g++-aarch64-linux-gnu)")
@pytest.mark.skipif(EMULATOR is None, reason="needs qemu-aarch64 (qemu-user)")
def test_neon_gives_the_same_pixels(tmp_path: Path) -> None:
    assert NATIVE_COMPILER is not None
    assert CROSS_COMPILER is not None
    assert EMULATOR is not None
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    paths = "\n".join(map(str, write_corpus(corpus, spoilt_per_file=20)))
    said = []
    for name, compiler, options in [
        ("here", NATIVE_COMPILER, ["-O3"]),
        ("arm", CROSS_COMPILER, ["-O3", "-static"]),
    ]:
        program = tmp_path / name
        build(program, compiler, "-ffp-contract=off", *options, driver=True)
        command = [program] if name == "here" else [EMULATOR, program]
        result = subprocess.run(command, input=paths, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr[-4000:]
        said.append(result.stdout)
    here, arm = said
    assert arm.startswith("neon: ")
    assert arm.partition(": ")[2] == here.partition(": ")[2]
