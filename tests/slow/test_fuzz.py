# SPDX-License-Identifier: Apache-2.0
"""A minute of fuzzing each: of JPEGs, shared by the levels of vector code, and of the index of a pack."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_corpus import build, write_corpus

from feedrate import kernel

CLANG = shutil.which("clang++")
INDEX_FUZZ = Path(__file__).with_name("index_fuzz.py")


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory by Linux's RLIMIT_DATA")
def test_a_minute_of_lies_in_the_index_ends_in_words_or_good_samples(tmp_path: Path) -> None:
    command = [sys.executable, INDEX_FUZZ, tmp_path, "0", "60"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    ended = json.loads(ran.stdout)
    print(f"{ended['runs']} packs were entered by every door: {ended['ended']}")
    assert ended["runs"] > 100
    assert ended["ended"]["good"]
    assert ended["ended"]["BadSample"]
