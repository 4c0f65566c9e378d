# SPDX-License-Identifier: Apache-2.0
"""A minute of coverage-guided fuzzing, shared by the levels of vector code that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fuzz_corpus import build, write_corpus

from feedrate import kernel

CLANG = shutil.which("clang++")


@pytest.mark.slow
@pytest.mark.skipif(CLANG is None, reason="needs clang++ with libFuzzer")
def test_a_minute_of_fuzzing_finds_no_crash(tmp_path: Path) -> None:
    assert CLANG is not None
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_corpus(corpus, spoilt_per_file=0)
    program = tmp_path / "decode_fuzzer"
    build(program, CLANG, "-fsanitize=fuzzer,address,undefined", driver=False)
    levels = kernel.simd_levels()
    seconds = 60 // len(levels)
    limits = [f"-max_total_time={seconds}", "-max_len=20000", "-timeout=120", "-rss_limit_mb=2048"]
    for level in levels:
        result = subprocess.run(
            [program, *limits, corpus],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "FEEDRATE_SIMD": level},
        )
        assert result.returncode == 0, f"{level}: {result.stderr[-4000:]}"
