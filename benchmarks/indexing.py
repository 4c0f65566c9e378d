# SPDX-License-Identifier: Apache-2.0
"""What does 'feedrate index' cost per sample, and does its memory grow with their number?

Writes WebDataset shards of small JPEGs (32 x 32 pixels, a label each; 10,000 samples per shard) and indexes
them with one worker, in a process of its own for each number of samples.

    python benchmarks/indexing.py --samples 10000 1000000 --json benchmarks/results/indexing.json
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from feedrate.format.containers import Content, Output
from feedrate.format.containers.tar import Tar
from feedrate.format.fields import Field, Kind
from feedrate.machine.describe import describe_machine

PER_SHARD = 10_000
IMAGE, LABEL = Field("image", Kind.IMAGE), Field("label", Kind.NUMBER, dtype="int64")
RUN = """
import json, resource, sys, time
from feedrate import index
if __name__ == "__main__":
    begin = time.process_time()
    result = index(sys.argv[1], sys.argv[2], workers=1)
    facts = {
        "samples": result.samples, "seconds": result.seconds, "cpu_s": time.process_time() - begin,
        "source_bytes": result.source_bytes, "index_bytes": result.index_bytes, "parts": result.parts,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(facts))
"""


def main() -> int:
    arguments = parse()
    rows = []
    for samples in arguments.samples:
        with tempfile.TemporaryDirectory(prefix="feedrate-indexing-", dir=arguments.scratch) as folder:
            write_shards(Path(folder) / "shards", samples)
            words = [sys.executable, "-c", RUN, f"{folder}/shards", f"{folder}/index"]
            rows.append(json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout))
        print(json.dumps(rows[-1]))
    if arguments.json:
        machine = asdict(describe_machine(["indexing.py", *map(str, arguments.samples)]))
        document = {"question": (__doc__ or "").splitlines()[0], "rows": rows, "machine": machine}
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def write_shards(folder: Path, samples: int) -> None:
    folder.mkdir()
    images = [make_jpeg(seed) for seed in range(64)]
    for shard in range(-(-samples // PER_SHARD)):
        with open(folder / f"train-{shard:05d}.tar", "wb", buffering=2**20) as out:
            writer = Tar().write(Output(out))
            for n in range(shard * PER_SHARD, min((shard + 1) * PER_SHARD, samples)):
                label = Content(LABEL, b"%d" % (n % 1000), b"", n % 1000)
                writer.add(f"{n:08d}", [Content(IMAGE, images[n % 64], b"x.jpg"), label])
            writer.end()


def make_jpeg(seed: int) -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    with io.BytesIO() as file:
        Image.fromarray(coarse).resize((32, 32)).save(file, "JPEG", quality=80)
        return file.getvalue()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--scratch", default=os.environ.get("TMPDIR"), help="where the shards are made")
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
