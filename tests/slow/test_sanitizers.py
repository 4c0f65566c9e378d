# SPDX-License-Identifier: Apache-2.0
"""The kernel under the address, undefined-behaviour and thread sanitizers, without Python inside."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fuzz_corpus import NATIVE, build, write_corpus

from feedrate import kernel

pytestmark = pytest.mark.slow

COMPILER = shutil.which("g++") or shutil.which("clang++")
SANITIZERS = "-fsanitize=address,undefined"


LEVELS = kernel.simd_levels()


def run_corpus(program: Path, paths: list[Path], level: str) -> str:
    result = subprocess.run(
        [program],
        input="\n".join(map(str, paths)),
        capture_output=True,
        text=True,
        env={**os.environ, "FEEDRATE_SIMD": level},
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each level of vector code says of good, cut and changed files, with the sanitizers watching."""
    if COMPILER is None:
        pytest.skip("needs g++ or clang++")
    folder = tmp_path_factory.mktemp("sanitizers")
    (folder / "corpus").mkdir()
    paths = write_corpus(folder / "corpus", spoilt_per_file=60)
    build(folder / "run_corpus", COMPILER, SANITIZERS, driver=True)
    said = {level: run_corpus(folder / "run_corpus", paths, level) for level in LEVELS}
    assert all(words.startswith(f"{level}: {len(paths)} files") for level, words in said.items())
    return said


def test_the_sanitizers_find_nothing_in_good_cut_and_changed_files(said: dict[str, str]) -> None:
    assert said.keys() == set(LEVELS)


def test_every_level_of_vector_code_gives_the_same_pixels(said: dict[str, str]) -> None:
    assert len({words.partition(": ")[2] for words in said.values()}) == 1


def test_the_thread_sanitizer_finds_nothing_in_a_pool_whose_limit_changes(tmp_path: Path) -> None:
    if COMPILER is None:
        pytest.skip("needs g++ or clang++")
    program = tmp_path / "run_pool"
    sources = [NATIVE / "pool.cpp", NATIVE / "fuzz" / "run_pool.cpp"]
    options = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread"]
    subprocess.run([COMPILER, *options, *sources, "-o", program], check=True)
    # The limit is for a wake-up that was lost: it would hang.
    ran = subprocess.run([program], capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout) == (0, "fine\n"), ran.stderr[-4000:]
