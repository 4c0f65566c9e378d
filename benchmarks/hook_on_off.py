# SPDX-License-Identifier: Apache-2.0
"""What does the doctor's hook add to a step? While a script trains, the hook is taken out and put back.

Ten times a second, in pairs of blocks, by chance which of the two comes first: two processes of the same
script differ by more than is to be measured, and so do two minutes of one. Left in are the wrappers of
the model and the optimizer, with nothing to do, and the audit hook.

    feedrate doctor --passive -- python benchmarks/hook_on_off.py [FOLDER] --json OUT.json

FOLDER: small pictures, as the `thumbnails` that benchmarks/doctor.py makes; without it: numbers in memory.
An existing JSON file is added to.
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
from short_steps import make_dataset, make_model
from torch.utils.data import DataLoader, _utils, dataloader

from feedrate.machine.describe import describe_machine

BLOCK, BLOCK_OF_PICTURES = 128, 16
WARM_UP = 256
LONGEST = 1.5  # a step that takes so many times the usual was disturbed: it counts as this long


class Hook:
    """The hook of this process."""

    def __init__(self) -> None:
        from feedrate_hook import session
        from feedrate_hook.record import catalogue, parts, stacks

        self._session, self._stacks, self._parts = session.session, stacks, parts
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
        # Methods are the hook's to take out, while it times nothing, and to put back.
        methods = {(owner, name) for owner, name, _, _ in parts._Methods.found}
        self._is_in = self._has_methods = True
        self._wrappers = [
            (owner, name, wrapper)
            for owner, name, wrapper in found
            if getattr(wrapper, "_feedrate_wrapper", False) and (owner, name) not in methods
        ]

    def put(self, is_in: bool) -> None:
        if self._is_in:
            self._has_methods = self._parts._Methods.are_wrapped
        self._is_in = is_in
        self._parts.wrap_methods(is_in and self._has_methods)
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
    parser.add_argument("pictures", nargs="?")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    if "feedrate_hook" not in sys.modules:
        parser.error("the doctor does not watch: feedrate doctor --passive -- python ...")
    torch.set_num_threads(1)
    pairs = train(arguments.pictures, arguments.pairs)
    added = {name: compare([(a[i], b[i]) for a, b in pairs]) for i, name in enumerate(("wall", "cpu"))}
    for name, (out_ms, more_ms, error_ms) in added.items():
        print(
            f"{name}: {out_ms:.2f} ms a step without the hook, {more_ms:+.3f} ms with it (+- {error_ms:.3f})"
        )
    if arguments.json:
        what = "small pictures" if arguments.pictures else "numbers in memory"
        add_run(Path(arguments.json), {"what": what, "ms_without_added_error": added, "pairs": pairs})
    return 0


def add_run(path: Path, run: dict[str, Any]) -> None:
    """Processes differ: a file that is there keeps its runs."""
    runs = json.loads(path.read_text())["runs"] if path.is_file() else []
    document = {
        "question": (__doc__ or "").splitlines()[0],
        "runs": [*runs, run],
        "machine": asdict(describe_machine(["benchmarks/hook_on_off.py"])),
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def train(pictures: str | None, count: int) -> list[tuple[list[float], list[float]]]:
    """Return pairs of blocks, without the hook and with it: milliseconds and CPU milliseconds of a step."""
    block = BLOCK_OF_PICTURES if pictures else BLOCK
    loader = DataLoader(make_dataset(pictures), batch_size=16, shuffle=True)
    model, optimizer = make_model()
    chance, step = random.Random(0), 0
    hook, is_in = None, True
    blocks: dict[bool, list[list[float]]] = {False: [], True: []}
    times: list[tuple[int, int]] = []
    while min(map(len, blocks.values())) < count:
        start = None  # an epoch's first step is not counted
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter_ns(), time.thread_time_ns()
            if start is not None:
                times.append((now[0] - start[0], now[1] - start[1]))
            step += 1
            hook = hook or Hook()  # once the first batch has put everything in its place
            if step % block == 0:
                if step > WARM_UP:
                    blocks[is_in].append([usual(ns[1:]) * 1e-6 for ns in np.transpose(times)])
                is_in = not is_in if step // block % 2 else chance.random() < 0.5
                hook.put(is_in)
                times = []
            start = time.perf_counter_ns(), time.thread_time_ns()
    return list(zip(blocks[False], blocks[True], strict=False))[:count]


def usual(times: np.ndarray) -> float:
    return float(np.minimum(times, LONGEST * np.median(times)).mean())


def compare(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the median without the hook, what is added with it (the median of the pairs), and its error."""
    outside, inside = np.transpose(pairs)
    draw = np.random.default_rng(0).choice
    resampled = [np.median(draw(inside - outside, len(pairs))) for _ in range(2000)]
    return float(np.median(outside)), float(np.median(inside - outside)), float(np.std(resampled))


if __name__ == "__main__":
    sys.exit(main())
