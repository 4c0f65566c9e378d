# SPDX-License-Identifier: Apache-2.0
"""Made-up programs see the same with a bare Pillow and with one whose images stay recipes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from support.lazy_images import MemoryCache, lazy_pillow
from support.lazy_programs import run_program


@settings(max_examples=examples(1500), deadline=None)
@given(st.integers(0, 2**40))
def test_a_program_sees_what_it_sees_with_a_bare_pillow(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bare = run_program(seed, Path(folder))
        cache = MemoryCache()
        for _ in ("scanned", "found"):
            with lazy_pillow(cache):
                assert run_program(seed, Path(folder)) == bare
