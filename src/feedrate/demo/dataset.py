# SPDX-License-Identifier: Apache-2.0
"""Write the demo's images in class folders, as people keep them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from feedrate.bench.photographs import CLASSES, make_photograph
from feedrate.machine.cpu import count_usable_cores


def write_photographs(folder: Path, count: int, *, seed: int) -> int:
    """Write `count` photographs to `folder`/CLASS/NUMBER.jpg; return their bytes.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)

    def write(number: int) -> int:
        photograph = make_photograph(number, seed=seed)
        path = folder / CLASSES[photograph.label] / f"{number:06d}.jpg"
        return path.write_bytes(photograph.jpeg)

    with ThreadPoolExecutor(count_usable_cores()) as pool:
        try:
            return sum(pool.map(write, range(count)))
        except BaseException:
            # Ctrl-C: what is queued must not be made first.
            pool.shutdown(wait=True, cancel_futures=True)
            raise
