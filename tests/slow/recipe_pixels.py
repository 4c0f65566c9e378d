# SPDX-License-Identifier: Apache-2.0
"""Compares recipes with the Pillow that Python finds first, in a process of its own.

Prints as JSON: Pillow's version, how many recipes agreed, those that differed, and the self-test's result.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import numpy as np
import PIL

TESTS = Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(TESTS), str(TESTS / "native")]

from kernel_images import SAMPLINGS, make_jpeg  # noqa: E402

from feedrate.kernel import draw, draw_from, scan_clean  # noqa: E402
from feedrate.run.inside import selftest  # noqa: E402
from support.recipes import HORIZONTAL_FIRST, decode, follow, is_narrow, make_recipe  # noqa: E402


def main(seed: int, images: int) -> None:
    found = selftest.run()
    random, agreed, differed = Random(seed), 0, list[str]()
    for number in range(images):
        size = random.choice([
            (random.randint(1, 40), random.randint(1, 40)),
            (random.randint(40, 300), random.randint(40, 300)),
            (random.randint(1, 8), random.randint(100, 700)),
        ])  # fmt: skip
        data = make_jpeg(*size, random.choice(SAMPLINGS), seed=number)
        scan = scan_clean(data)
        assert scan is not None
        for recipe in [make_recipe(random, *size) for _ in range(10)]:
            if is_narrow(recipe):
                continue
            wanted = follow(data, recipe)
            made = [
                draw(data, b"", recipe, horizontal_first=HORIZONTAL_FIRST),
                draw(data, scan.entries, recipe, horizontal_first=HORIZONTAL_FIRST),
                draw_from(decode(data, recipe.mode), recipe, horizontal_first=HORIZONTAL_FIRST),
            ]
            agreed += all(np.array_equal(one, wanted) for one in made)
            differed += [] if all(np.array_equal(one, wanted) for one in made) else [f"{size}: {recipe}"]
    lists = {name: sorted(getattr(found, name)) for name in ("subsamplings", "modes", "filters")}
    print(json.dumps({"version": PIL.__version__, "agreed": agreed, "differed": differed, **lists}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
