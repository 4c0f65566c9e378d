# SPDX-License-Identifier: Apache-2.0
"""What does the doctor's hook add to a step? While a script trains, the hook is taken out and put back.

By chance, every 64 steps: two processes of the same script differ by more than is to be measured. Left in are
the wrappers of the model and the optimizer, with nothing to do, and the audit hook.

    feedrate doctor --passive -- python benchmarks/hook_on_off.py FOLDER --json OUT.json

FOLDER: small pictures, such as the `thumbnails` that benchmarks/doctor.py makes.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from short_steps import Thumbnails
from torch import nn
from torch.utils.data import DataLoader, _utils, dataloader

from feedrate.probe.machine import describe_machine

BLOCK = 64
WARM_UP = 256


class Hook:
    """The hook of this process."""

    def __init__(self) -> None:
        from feedrate_hook import catalogue, session, stacks

        self._session, self._stacks = session.session, stacks
        self._start = stacks.start
        owners = [
            (dataloader._BaseDataLoaderIter, "__next__"),
            (dataloader._BaseDataLoaderIter, "_next_index"),
            (_utils.fetch._MapDatasetFetcher, "fetch"),
        ]
        for name, entries in catalogue.PARTS.items():
            for path, _ in entries:
                owner: Any = sys.modules.get(name)
                *parents, attribute = path.split(".")
                for parent in parents:
                    owner = getattr(owner, parent, None)
                owners += [(owner, attribute)] if owner is not None else []
        found = [(owner, name, vars(owner).get(name)) for owner, name in owners]
        self._wrappers = [(o, n, f) for o, n, f in found if getattr(f, "_feedrate_wrapper", False)]

    def put(self, is_in: bool) -> None:
        for owner, name, wrapper in self._wrappers:
            setattr(owner, name, wrapper if is_in else wrapper.__wrapped__)
        if is_in:
            self._stacks.start = self._start
        else:
            self._stacks.stop()
            self._stacks.start = lambda: None
            self._session.probing = False


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pictures")
    parser.add_argument("--blocks", type=int, default=120)
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    if "feedrate_hook" not in sys.modules:
        parser.error("the doctor does not watch: feedrate doctor --passive -- python ...")
    torch.set_num_threads(1)
    blocks = train(arguments.pictures, arguments.blocks)
    added = {
        name: compare([(is_in, one[i]) for is_in, *one in blocks]) for i, name in enumerate(("wall", "cpu"))
    }
    for name, (out_ms, more_ms, error_ms) in added.items():
        print(
            f"{name}: {out_ms:.2f} ms a step without the hook, {more_ms:+.3f} ms with it (+- {error_ms:.3f})"
        )
    if arguments.json:
        document = {
            "question": (__doc__ or "").splitlines()[0],
            "ms_without_added_error": added,
            "blocks": blocks,
            "machine": asdict(describe_machine(["benchmarks/hook_on_off.py"])),
        }
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def train(pictures: str, count: int) -> list[tuple[bool, float, float]]:
    """Return of each block whether the hook was in, and the milliseconds and CPU milliseconds of a step."""
    loader = DataLoader(Thumbnails(pictures), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(192, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    chance, blocks, step = random.Random(0), [], 0
    hook, is_in, start = None, True, (0.0, 0.0)
    while len(blocks) < count:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            hook = hook or Hook()  # once the first batch has put everything in its place
            if step < WARM_UP or step % BLOCK:
                continue
            now = time.perf_counter(), time.thread_time()
            if step > WARM_UP:
                wall_ms, cpu_ms = (1e3 * (b - a) / BLOCK for a, b in zip(start, now, strict=True))
                blocks.append((is_in, wall_ms, cpu_ms))
            is_in = chance.random() < 0.5
            hook.put(is_in)
            start = time.perf_counter(), time.thread_time()
    return blocks


def compare(times: list[tuple[bool, float]]) -> tuple[float, float, float]:
    """Return the lower quartile without the hook, what it is more with it, and the error of that."""
    inside = np.array([ms for is_in, ms in times if is_in])
    outside = np.array([ms for is_in, ms in times if not is_in])
    draw = np.random.default_rng(0).choice
    resampled = [
        np.quantile(draw(inside, len(inside)), 0.25) - np.quantile(draw(outside, len(outside)), 0.25)
        for _ in range(2000)
    ]
    low = float(np.quantile(outside, 0.25))
    return low, float(np.quantile(inside, 0.25)) - low, float(np.std(resampled))


if __name__ == "__main__":
    sys.exit(main())
