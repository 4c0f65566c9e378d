# SPDX-License-Identifier: Apache-2.0
"""How many images per second does this device take of the standard models, forward and in training?

Synthetic batches that are on the device already, so that no loader is measured. Forward rates also as the
time for one pass over ImageNet's 1,281,167 training images.

    python benchmarks/model_rates.py --json benchmarks/results/model-rates.json
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from feedrate.lab.device import BATCH_SIZE, MODELS, SIDE, measure_model
from feedrate.machine.describe import describe_machine
from feedrate.units import format_seconds

IMAGENET_IMAGES = 1_281_167


def main() -> int:
    arguments = parse()
    results = []
    for name in arguments.model or MODELS:
        for training in (False, True):
            rate = measure_model(
                name, arguments.device, training=training,
                batch_size=arguments.batch_size, seconds=arguments.seconds, side=arguments.size,
            )  # fmt: skip
            imagenet_s = IMAGENET_IMAGES / rate.images_per_s
            results.append({**asdict(rate), "imagenet_s": imagenet_s})
            what = "training" if training else "forward"
            print(
                f"{name:12} {what:8} {rate.images_per_s:9,.1f} images/s ({rate.low:,.1f}-{rate.high:,.1f}), "
                f"batches of {rate.batch_size}, {rate.dtype}, ImageNet in {format_seconds(imagenet_s)}",
                flush=True,
            )
    document = {
        "question": (__doc__ or "").splitlines()[0],
        "imagenet_images": IMAGENET_IMAGES,
        "torch": torch.__version__,
        "results": results,
        "machine": asdict(describe_machine(["model_rates.py", *sys.argv[1:]])),
    }
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--model", choices=MODELS, action="append", help="may be given again (default: all)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--batch-size", type=int, default=BATCH_SIZE)
    add("--size", type=int, default=SIDE, help="side of the images in pixels")
    add("--seconds", type=float, default=6.0, help="of each of the measurements")
    add("--json", metavar="PATH")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
