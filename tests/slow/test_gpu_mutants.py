# SPDX-License-Identifier: Apache-2.0
"""Ten thousand damaged JPEGs on a GPU (`make test-gpu`), and some of them with its source on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_mutants import MOST_MEMORY, Gpu, run
from jpeg_mutations import make_corpus

from cuda_on_cpu import Emulator, build, decode


@pytest.mark.slow
def test_mutants_are_decoded_as_on_the_cpu_or_reported_by_the_source_on_the_cpu(tmp_path: Path) -> None:
    emulator = Emulator(build(tmp_path))
    counts = run(
        lambda *arguments: decode(emulator, *arguments, most_memory=MOST_MEMORY), make_corpus(), 3000
    )
    assert sum(counts.values()) == 3000 + 375
    for kind in ("damaged file", "damaged scan", "damaged entry points"):
        for became in ("decoded alike", "found bad by the GPU", "not taken by the plan"):
            assert counts[f"{kind}: {became}"] > 10
    assert counts["forged entry points: found bad by the GPU"] > 10


@pytest.mark.gpu
def test_ten_thousand_mutants_are_decoded_as_on_the_cpu_or_reported_and_leave_no_memory_taken() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
    gpu = Gpu(is_watched=False)
    run(gpu.decode, make_corpus(), 100)
    before = gpu.used_bytes()
    assert sum(run(gpu.decode, make_corpus(), 10_000).values()) == 10_000 + 1250
    assert gpu.used_bytes() <= before + (64 << 20)
