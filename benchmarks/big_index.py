# SPDX-License-Identifier: Apache-2.0
"""What does a pack of 1.3 million samples cost before its first batch, in time and in memory?

Makes a pack whose index is as large as ImageNet's while its images are few: every shard is the same tar
file, and the rows of every index part point at the images in it, again and again. Then measures in fresh
processes, in turn, what imports cost and what a loader costs: time to the first batch, and private memory
(what would be free again if the process ended) above that of the imports, at the first batch and later,
when all buffers are in use.

    python benchmarks/big_index.py --json benchmarks/results/big-index.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from feedrate import PackOptions, pack
from feedrate.demo.run import write_photographs
from feedrate.format.containers.tar import Tar
from feedrate.format.index import Part, dump_part, fill_derived, locate_columns, parse_part
from feedrate.format.manifest import IndexPart, Manifest, dump_manifest, index_name, read_manifest
from feedrate.kernel import crc32c
from feedrate.lab.child import run_in_process
from feedrate.machine.describe import describe_machine
from feedrate.stats import median

SAMPLES_PER_SHARD = 2300  # 256 MB of photographs, the default shard
IMAGES = 200  # real ones
BATCHES = 12


def make_big_pack(folder: Path, samples: int) -> Path:
    """Write a pack of `samples` samples over one small shard; return its path."""
    write_photographs(folder / "images", IMAGES, seed=0)
    pack(folder / "images", folder / "small", PackOptions())
    small = read_manifest(folder / "small")
    index = folder / "small" / small.shards[0].index.name
    part = parse_part(index.read_bytes(), small.fields, name=index.name)
    big = folder / "big"
    big.mkdir()
    shards = []
    for number, first in enumerate(range(0, samples, SAMPLES_PER_SHARD)):
        os.link(folder / "small" / small.shards[0].name, big / Tar().shard_name(number))
        count = min(SAMPLES_PER_SHARD, samples - first)
        data = dump_part(small.fields, repeat_part(part, first, count))
        (big / index_name(number)).write_bytes(data)
        index = IndexPart(
            name=index_name(number), size_bytes=len(data), crc32c=crc32c(data), columns=locate_columns(data)
        )
        shards.append(replace(small.shards[0], name=Tar().shard_name(number), samples=count, index=index))
    (big / "pack.json").write_bytes(dump_manifest(Manifest(small.fields, tuple(shards), small.settings)))
    return big


def repeat_part(part: Part, first: int, count: int) -> Part:
    chosen = np.arange(first, first + count) % len(part.rows)
    rows = part.rows[chosen]
    rows["number"] = np.arange(first, first + count)
    variable = {name: [values[i] for i in chosen] for name, values in part.variable.items()}
    variable["key"] = [b"%08d" % number for number in range(first, first + count)]
    fill_derived(rows, variable)
    return Part(rows, variable, part.metadata)


def read_private() -> int:
    """Return the bytes that only this process uses: what would be free again if it ended."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def only_import() -> dict[str, float]:
    """Runs in a fresh process: the ground on which a loader stands."""
    import numpy
    import torch

    import feedrate

    del numpy, torch
    assert feedrate.Loader
    return {"private_bytes": read_private()}


def load_first_batch(path: str, batch_size: int) -> dict[str, float]:
    """Runs in a fresh process: imports first, then the clock starts."""
    import torch

    import feedrate

    del torch
    make, crop = feedrate.Loader, feedrate.RandomResizedCrop(224)
    started = time.perf_counter()
    loader = make(path, batch_size=batch_size, shuffle=True, seed=0, image=crop, flip=True)
    batches = iter(loader)
    images = next(batches)[0]
    seconds = time.perf_counter() - started
    assert len(images) == batch_size
    after_first = read_private()
    for _ in range(BATCHES):  # until every buffer that is fetched ahead has been used
        images = next(batches)[0]
    after_more = read_private()
    return {"first_batch_s": seconds, "private_bytes": after_first, "private_bytes_later": after_more}


def main() -> int:
    arguments = parse()
    folder = Path(tempfile.mkdtemp(prefix="feedrate-big-index-", dir=arguments.folder))
    try:
        print(f"writing a pack of {arguments.samples:,} samples into {folder}", file=sys.stderr, flush=True)
        big = make_big_pack(folder, arguments.samples)
        index_bytes = sum(p.stat().st_size for p in [*big.glob("*.arrow"), big / "pack.json"])
        bare, loaded = [], []
        for number in range(arguments.rounds + 1):
            one, _ = run_in_process("big_index:only_import", {})
            other, _ = run_in_process(
                "big_index:load_first_batch", {"path": str(big), "batch_size": arguments.batch_size}
            )
            if number:  # the first pair brings files into the page cache
                bare.append(one)
                loaded.append(other)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    base = median(run["private_bytes"] for run in bare)
    batch_bytes = arguments.batch_size * 224 * 224 * 3
    result = {
        "samples": arguments.samples,
        "index_bytes": index_bytes,
        "batch_size": arguments.batch_size,
        "bytes_of_one_batch": batch_bytes,
        "first_batch_s": median(run["first_batch_s"] for run in loaded),
        "private_bytes_above_imports": median(run["private_bytes"] for run in loaded) - base,
        "private_bytes_above_imports_later": median(run["private_bytes_later"] for run in loaded) - base,
        "private_bytes_of_imports": base,
        "runs": loaded,
    }
    print(json.dumps(result, indent=1))
    if arguments.json:
        machine = asdict(describe_machine(["big_index.py", *sys.argv[1:]]))
        document = {"question": (__doc__ or "").splitlines()[0], **result, "machine": machine}
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1_300_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--folder", help="where to write the pack, about 1 GB (default: the temporary folder)"
    )
    parser.add_argument("--json", metavar="PATH")
    return parser.parse_args()


if __name__ == "__main__":
    # The fresh processes must find this file as a module.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    sys.exit(main())
