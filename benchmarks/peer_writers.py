# SPDX-License-Identifier: Apache-2.0
"""Other tools pack the same folder, each as its documentation has it: what packing.py compares with.

Runs in environments that know nothing of feedrate: `python peer_writers.py NAME FOLDER TARGET CORES`.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def list_samples(folder: str) -> list[tuple[str, int]]:
    """Return paths and labels of class folders, sorted."""
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    return [
        (os.path.join(folder, name, file), label)
        for label, name in enumerate(classes)
        for file in sorted(os.listdir(os.path.join(folder, name)))
    ]


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def read_sample(sample: tuple[str, int]) -> dict[str, Any]:
    return {"image": read(sample[0]), "label": sample[1]}


def webdataset(folder: str, target: str, cores: int) -> None:
    import webdataset as wds

    del cores  # one process, as its documentation has it
    with wds.ShardWriter(
        os.path.join(target, "shard-%05d.tar"), maxsize=256e6, maxcount=10**9, verbose=0
    ) as sink:
        for number, (path, label) in enumerate(list_samples(folder)):
            suffix = path.rpartition(".")[2]
            sink.write({"__key__": f"{number:08d}", suffix: read(path), "cls": label})


def mds(folder: str, target: str, cores: int) -> None:
    from streaming import MDSWriter

    del cores
    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=target, columns=columns, size_limit=256_000_000) as sink:
        for sample in list_samples(folder):
            sink.write(read_sample(sample))


def litdata(folder: str, target: str, cores: int) -> None:
    from litdata import optimize

    optimize(
        fn=read_sample, inputs=list_samples(folder), output_dir=target, chunk_bytes="64MB", num_workers=cores
    )


class Files:
    """What FFCV's writer takes: it decodes and encodes images anew."""

    def __init__(self, folder: str) -> None:
        self.samples = list_samples(folder)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        from PIL import Image

        path, label = self.samples[number]
        with Image.open(path) as image:
            return image.convert("RGB"), label


def ffcv(folder: str, target: str, cores: int) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
    DatasetWriter(os.path.join(target, "data.beton"), fields, num_workers=cores).from_indexed_dataset(
        Files(folder)
    )


WRITERS = {"webdataset": webdataset, "mds": mds, "litdata": litdata, "ffcv": ffcv}

if __name__ == "__main__":
    writer, folder, target, cores = sys.argv[1:5]
    WRITERS[writer](folder, target, int(cores))
