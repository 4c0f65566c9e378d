# SPDX-License-Identifier: Apache-2.0
"""HDF5 in chunks of many samples: how they are stored is named, and one sample a chunk is a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.results import Diagnosis, Remedy
from support.doctor_runs import FakeLoop
from support.hooked import PREAMBLE, run_script
from support.judged_runs import judge

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

TILES = {
    "file": "/data/cells.h5", "array": "/train/tiles", "shape": [6400, 224, 224, 3], "itemsize": 1,
    "chunks": [64, 224, 224, 3], "filter": "gzip", "rows": 1,
}  # fmt: skip
LABELS = {**TILES, "array": "/train/labels", "shape": [6400], "itemsize": 8, "chunks": [6400], "filter": None}


def judge_reads(folder: Path, *facts: dict[str, Any]) -> Diagnosis:
    """Reads of h5py are 80 of the 100 ms of CPU that a batch of eight samples takes a worker."""
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=40)
    worker = loop.fetches(200, 20, cpu=100, parts={"read:h5py": (80, 0), "collate:": (10, 0)})
    for fact in facts:
        worker.fact("chunked", **fact)
    worker.write(folder)
    loop.main.write(folder)
    return judge(folder, MachineSummary(cores=2.0))[1]


def rechunk(diagnosis: Diagnosis) -> Remedy:
    return next(remedy for remedy in diagnosis.findings[0].remedies if remedy.name == "rechunk")


def test_the_chunks_that_samples_are_read_from_are_named_with_their_filter(tmp_path: Path) -> None:
    first = judge_reads(tmp_path, LABELS, TILES).findings[0]
    assert first.code == "unpack-bound"
    assert first.evidence[1] == (
        "/train/tiles of /data/cells.h5 has chunks of (64, 224, 224, 3), gzip: 9.63 MB are unpacked for the "
        "151 KB of a sample"
    )


def test_the_line_that_reads_the_chunks_is_named_with_them(tmp_path: Path) -> None:
    first = judge_reads(tmp_path, {**TILES, "place": "/home/ada/d_h5.py:9"}).findings[0]
    assert first.evidence[1].startswith("/train/tiles of cells.h5, read at d_h5.py:9, has chunks of (64, ")


def test_one_sample_a_chunk_leaves_its_part_of_the_reading(tmp_path: Path) -> None:
    remedy = rechunk(judge_reads(tmp_path, TILES))
    # 80 of 100 ms of CPU go, but for a 64th: on two cores with 10 ms of computing, 55 ms a step become 15 ms.
    assert remedy.predicted_speedup > 2.5
    assert remedy.change == 'create_dataset("/train/tiles", ..., chunks=(1, 224, 224, 3), compression="gzip")'


def test_samples_that_have_their_chunks_are_stored_without_the_filter(tmp_path: Path) -> None:
    remedy = rechunk(judge_reads(tmp_path, {**TILES, "chunks": [1, 224, 224, 3]}))
    assert "without gzip" in remedy.title
    assert remedy.change == 'create_dataset("/train/tiles", ..., chunks=(1, 224, 224, 3), compression=None)'
    assert "151 KB a sample" in remedy.note


def test_a_clip_of_many_rows_keeps_them_in_one_chunk(tmp_path: Path) -> None:
    remedy = rechunk(judge_reads(tmp_path, {**TILES, "rows": 8}))
    assert "chunks=(8, 224, 224, 3)" in (remedy.change or "")


@pytest.mark.parametrize(
    "fact", [{"chunks": None, "filter": None}, {"chunks": [1, 224, 224, 3], "filter": None}]
)
def test_arrays_that_are_stored_sample_by_sample_are_left_as_they_are(
    fact: dict[str, Any], tmp_path: Path
) -> None:
    remedies = judge_reads(tmp_path, {**TILES, **fact}).remedies
    assert "rechunk" not in {remedy.name for remedy in remedies}


def test_the_code_writes_a_file_with_a_sample_in_each_chunk(tmp_path: Path) -> None:
    source = tmp_path / "cells.h5"
    tiles = np.random.default_rng(1).integers(0, 256, (20, 6, 6, 3), dtype=np.uint8)
    with h5py.File(source, "w") as file:
        stored = file.create_dataset("train/tiles", data=tiles, chunks=(8, 6, 6, 3), compression="gzip")
        stored.attrs["stain"] = "H&E"
        file["train/labels"] = np.arange(20)
        file.attrs["version"] = 3
    fact = {**TILES, "file": str(source), "shape": [20, 6, 6, 3], "chunks": [8, 6, 6, 3]}
    remedy = rechunk(judge_reads(tmp_path, fact))
    assert remedy.code is not None
    exec(remedy.code, {})
    with h5py.File(tmp_path / "cells-rechunked.h5") as file:
        assert (file["train/tiles"].chunks, file["train/tiles"].compression) == ((1, 6, 6, 3), "gzip")
        np.testing.assert_array_equal(file["train/tiles"][:], tiles)
        np.testing.assert_array_equal(file["train/labels"][:], np.arange(20))
        assert (file["train/tiles"].attrs["stain"], file.attrs["version"]) == ("H&E", 3)


def test_what_samples_are_read_from_is_noted_once_for_each_array(tmp_path: Path) -> None:
    body = (
        PREAMBLE
        + """
import h5py
with h5py.File("cells.h5", "w") as file:
    shape = (32, 6, 6)
    file.create_dataset("tiles", shape, "f4", chunks=(8, 6, 6), compression="lzf", shuffle=True)
    file["labels"] = np.arange(32)

class Cells(Dataset):
    file = None
    def __len__(self): return 32
    def __getitem__(self, index):
        self.file = self.file or h5py.File("cells.h5")
        return self.file["tiles"][index:index + 1], self.file["labels"][index]

for _ in range(2):
    for _ in DataLoader(Cells(), batch_size=4, num_workers=1): pass
"""
    )
    run = run_script(tmp_path, body)
    assert run.code == 0, run.stderr
    (worker, *_) = run.workers
    assert {Path(fact["place"]).parent for fact in worker.facts_of("chunked")} == {tmp_path}
    noted = [{name: fact[name] for name in TILES} for fact in worker.facts_of("chunked")]
    path = str(tmp_path / "cells.h5")
    assert noted == [
        {
            "file": path, "array": "/tiles", "shape": [32, 6, 6], "itemsize": 4, "chunks": [8, 6, 6],
            "filter": "lzf", "rows": 1,
        },
        {
            "file": path, "array": "/labels", "shape": [32], "itemsize": 8, "chunks": None, "filter": None,
            "rows": 1,
        },
    ]  # fmt: skip
