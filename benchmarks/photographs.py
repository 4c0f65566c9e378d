# SPDX-License-Identifier: Apache-2.0
"""Are the photographs that feedrate makes as hard to decode as real ones?

    python benchmarks/photographs.py FOLDER --json benchmarks/results/photographs.json

FOLDER holds real JPEG photographs. As many are made, and both sets are described side by side.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from feedrate.lab.loader import list_images
from feedrate.lab.photographs import make_photographs
from feedrate.machine.describe import describe_machine
from feedrate.stats import median

SAMPLINGS = {(1, 1): "4:4:4", (2, 1): "4:2:2", (2, 2): "4:2:0"}
_K = np.arange(8)
_DCT = (
    np.sqrt(2 / 8)
    * np.cos(np.pi * (2 * _K[None] + 1) * _K[:, None] / 16)
    * np.where(_K == 0, 0.5**0.5, 1)[:, None]
)


def describe(files: Sequence[bytes]) -> dict[str, Any]:
    images = [Image.open(io.BytesIO(file)) for file in files]
    pixels = sum(w * h for w, h in (image.size for image in images))
    samplings = Counter(read_sampling(image) for image in images)
    return {
        "images": len(files),
        "mean_bytes": sum(map(len, files)) / len(files),
        "mean_pixels": pixels / len(files),
        "bits_per_pixel": 8 * sum(map(len, files)) / pixels,
        "mean_ac_symbols": float(np.mean([count_ac_symbols(file) for file in files])),
        "samplings": {name: count / len(files) for name, count in samplings.most_common()},
        "pillow_decode_ms": 1000 * median(time_decoding(files) for _ in range(5)) / len(files),
    }


def read_sampling(image: Image.Image) -> str:
    return "gray" if image.mode == "L" else SAMPLINGS.get(image.layer[0][1:3], "other")


def time_decoding(files: Sequence[bytes]) -> float:
    """Return CPU seconds: other work on the machine disturbs them less than the clock on the wall."""
    started = time.process_time()
    for file in files:
        Image.open(io.BytesIO(file)).convert("RGB")
    return time.process_time() - started


def count_ac_symbols(file: bytes) -> int:
    """Estimate the AC symbols of a file from its pixels: non-zero coefficients, and one end per block."""
    image = Image.open(io.BytesIO(file))
    layers, tables = image.layer, image.quantization
    image.draft("L" if image.mode == "L" else "YCbCr", None)
    planes = image.split() if image.mode in ("L", "YCbCr") else image.convert("YCbCr").split()
    across, down = layers[0][1:3] if len(planes) > 1 else (1, 1)
    symbols = 0
    for number, plane in enumerate(planes):
        thinned = plane if number == 0 else plane.reduce((across, down))
        levels = np.asarray(thinned, np.float32) - 128
        height, width = levels.shape
        levels = np.pad(levels, ((0, -height % 8), (0, -width % 8)), "edge")
        blocks = levels.reshape(levels.shape[0] // 8, 8, -1, 8).transpose(0, 2, 1, 3)
        steps = np.array(tables[layers[number][3]], np.float32).reshape(8, 8)
        quantised = np.rint(_DCT @ blocks @ _DCT.T / steps).reshape(-1, 64)
        symbols += int(np.count_nonzero(quantised[:, 1:])) + len(quantised)
    return symbols


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    real = [Path(path).read_bytes() for path, _ in list_images(arguments.folder)]
    made = [photograph.jpeg for photograph in make_photographs(len(real), seed=arguments.seed)]
    result = {"real": describe(real), "made": describe(made)}
    print(json.dumps(result, indent=1))
    if arguments.json:
        machine = asdict(describe_machine(["photographs.py", "FOLDER", "--seed", str(arguments.seed)]))
        document = {"question": (__doc__ or "").splitlines()[0], **result, "machine": machine}
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
