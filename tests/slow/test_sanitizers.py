# SPDX-License-Identifier: Apache-2.0
"""The kernel under the address and undefined-behaviour sanitizers, without Python inside."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fuzz_corpus import build, write_corpus

from feedrate import kernel

pytestmark = pytest.mark.slow

COMPILER = shutil.which("g++") or shutil.which("clang++")
SANITIZERS = "-fsanitize=address,undefined"


LEVELS = kernel.simd_levels()


def build_driver(folder: Path, *options: str) -> Path:
    assert COMPILER is not None
    program = folder / "run_corpus"
    build(program, COMPILER, *options, driver=True)
    return program


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


@pytest.mark.skipif(COMPILER is None, reason="needs g++ or clang++")
def test_the_sanitizers_find_nothing_in_good_cut_and_changed_files(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    paths = write_corpus(corpus, spoilt_per_file=60)
    program = build_driver(tmp_path, SANITIZERS)
    for level in LEVELS:
        assert run_corpus(program, paths, level).startswith(f"{level}: {len(paths)} files")


@pytest.mark.skipif(COMPILER is None, reason="needs g++ or clang++")
def test_every_level_of_vector_code_gives_the_same_pixels(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    paths = write_corpus(corpus, spoilt_per_file=30)
    program = build_driver(tmp_path)
    assert len({run_corpus(program, paths, level).partition(": ")[2] for level in LEVELS}) == 1
