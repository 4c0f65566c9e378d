# SPDX-License-Identifier: Apache-2.0
"""Train on the batches of a DALI pipeline (its look-alike, which needs no GPU)."""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "lookalikes"))
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, Pipeline


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    torch.set_num_threads(1)
    paths = sorted(Path(args.folder).rglob("*.jpg"))

    def make(number):
        image = np.array(Image.open(paths[number % len(paths)]).convert("RGB").resize((64, 64)))
        return torch.from_numpy(image).permute(2, 0, 1).float() / 255, torch.tensor(number % 4)

    pipeline = Pipeline(make, batch_size=8, num_threads=args.threads, batches=args.steps)
    loader = DALIClassificationIterator([pipeline], reader_name="Reader")
    net = nn.Sequential(
        nn.Conv2d(3, 8, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 4)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step, (batch,) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(net(batch["data"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
