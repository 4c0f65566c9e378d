# SPDX-License-Identifier: Apache-2.0
"""The kernel for 64-bit Arm, cross-compiled and run by an emulator, against the build for this machine."""

from __future__ import annotations

import os
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
def test_neon_and_plain_code_give_the_same_pixels_on_arm(tmp_path: Path) -> None:
    assert NATIVE_COMPILER is not None
    assert CROSS_COMPILER is not None
    assert EMULATOR is not None
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    paths = "\n".join(map(str, write_corpus(corpus, spoilt_per_file=20)))
    here, arm = tmp_path / "here", tmp_path / "arm"
    build(here, NATIVE_COMPILER, "-ffp-contract=off", "-O3", driver=True)
    build(arm, CROSS_COMPILER, "-ffp-contract=off", "-O3", "-static", driver=True)
    _, expected = run([here], paths, "")
    assert run([EMULATOR, arm], paths, "") == ("neon", expected)  # the best is chosen
    assert run([EMULATOR, arm], paths, "plain") == ("plain", expected)


def run(command: list[str | Path], paths: str, level: str) -> tuple[str, str]:
    """Return the level that was used and what it says of the files."""
    result = subprocess.run(
        command, input=paths, capture_output=True, text=True, env={**os.environ, "FEEDRATE_SIMD": level}
    )
    assert result.returncode == 0, result.stderr[-4000:]
    name, _, said = result.stdout.partition(": ")
    return name, said
