# SPDX-License-Identifier: Apache-2.0
"""The kernel under the address and undefined-behaviour sanitizers, without Python inside."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from fuzz_corpus import build, write_corpus

pytestmark = pytest.mark.slow

COMPILER = shutil.which("g++") or shutil.which("clang++")
SANITIZERS = "-fsanitize=address,undefined"


def run_corpus(folder: Path, paths: list[Path], *options: str) -> str:
    assert COMPILER is not None
    program = folder / "run_corpus"
    build(program, COMPILER, *options, driver=True)
    result = subprocess.run([program], input="\n".join(map(str, paths)), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


@pytest.mark.skipif(COMPILER is None, reason="needs g++ or clang++")
@pytest.mark.parametrize("variant", [(), ("-DFEEDRATE_PLAIN",)], ids=["best", "plain"])
def test_the_sanitizers_find_nothing_in_good_cut_and_changed_files(
    tmp_path: Path, variant: tuple[str, ...]
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    paths = write_corpus(corpus, spoilt_per_file=60)
    assert run_corpus(tmp_path, paths, SANITIZERS, *variant).startswith(f"{len(paths)} files")


@pytest.mark.skipif(COMPILER is None, reason="needs g++ or clang++")
def test_vector_code_and_plain_code_give_the_same_pixels(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    paths = write_corpus(corpus, spoilt_per_file=30)
    assert run_corpus(tmp_path, paths) == run_corpus(tmp_path, paths, "-DFEEDRATE_PLAIN")
