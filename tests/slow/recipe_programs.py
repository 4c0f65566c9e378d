# SPDX-License-Identifier: Apache-2.0
"""Runs made-up programs with the Pillow that Python finds first, bare and with images that stay recipes.

Prints as JSON: Pillow's version, how many programs saw the same, the seeds of those that did not, and how
many images were taken.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import PIL

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(TESTS))

from feedrate.run.inside import counters  # noqa: E402
from support.lazy_images import MemoryCache, lazy_pillow  # noqa: E402
from support.lazy_programs import run_program  # noqa: E402


def main(first: int, count: int) -> None:
    agreed, differed = 0, list[int]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            cache, bare = MemoryCache(), run_program(seed, Path(folder))
            seen = []
            for _ in ("scanned", "found"):
                with lazy_pillow(cache):
                    seen.append(run_program(seed, Path(folder)))
            agreed += seen == [bare, bare]
            differed += [] if seen == [bare, bare] else [seed]
    taken = counters.here.current.get("taken")
    print(json.dumps({"version": PIL.__version__, "agreed": agreed, "differed": differed, "taken": taken}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
