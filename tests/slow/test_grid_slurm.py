# SPDX-License-Identifier: Apache-2.0
"""A grid search as an array of Slurm jobs on one node: all train from one copy, the store is read once."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from doctor_corpus.slowfs import SlowFolder, Slowness, mount
from feedrate.format.fields import Field, Kind
from feedrate.scratch.listing import list_copies
from support.images import read_tree
from support.packs import LABEL, encode_image, write_pack
from support.slurm_cluster import cluster_or_skip, submit, wait_for_end

pytestmark = pytest.mark.slow

COUNT, SIDE = 600, 96
EPOCHS, JOBS = 2, 4

# An array's jobs differ by their number: another seed, as another learning rate would be.
JOB = """
import json, os, sys
import feedrate
seed = int(os.environ["SLURM_ARRAY_TASK_ID"])
epochs = []
with feedrate.Loader(
    {source!r}, 16, image=feedrate.RandomResizedCrop(64), fields=("image", "number"), output="numpy",
    seed=seed, threads=1, scratch={scratch!r},
) as loader:
    for epoch in range({epochs}):
        epochs.append([n for _, numbers in loader for n in numbers.tolist()])
about = {{"node": os.environ["SLURMD_NODENAME"], "epochs": epochs}}
with open(os.path.join({results!r}, f"{{seed}}.json"), "w") as file:
    json.dump(about, file)
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    with cluster_or_skip() as environment:
        yield environment


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A pack of 5 MB: what every job reads for itself, its first batch and the index, is little of it."""
    rng = np.random.default_rng(0)
    noise = [encode_image(rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8), quality=90) for _ in range(COUNT)]
    samples = [{"image": data, "label": number % 3} for number, data in enumerate(noise)]
    fields = (Field("image", Kind.IMAGE, shape=(SIDE, SIDE)), LABEL)
    return write_pack(tmp_path / "store" / "pack", fields, samples, shards=6)


@pytest.fixture
def store(source: Path, tmp_path: Path) -> Iterator[SlowFolder]:
    """The pack's folder as a slow server shows it, in `tmp_path`/mounted; what is read of it is counted."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    try:
        store = mount(source.parent, mounted, Slowness(0.005, 0.005, 20e6, kept_bytes=0))
    except OSError as error:
        pytest.skip(str(error))
    yield store
    subprocess.run(["umount", "--lazy", mounted], check=True)


def test_four_array_jobs_on_a_node_train_from_one_copy_and_read_the_store_once(
    source: Path, store: SlowFolder, tmp_path: Path, slurm: dict[str, str]
) -> None:
    scratch, results = tmp_path / "scratch", tmp_path / "results"
    scratch.mkdir()
    results.mkdir()
    (tmp_path / "job.py").write_text(
        JOB.format(
            source=str(tmp_path / "mounted" / "pack"), scratch=str(scratch),
            results=str(results), epochs=EPOCHS,
        )
    )  # fmt: skip
    command = shlex.join([sys.executable, str(tmp_path / "job.py")])
    environment = {**slurm, "XDG_STATE_HOME": str(tmp_path / "state")}
    array = [f"--array=0-{JOBS - 1}", "--nodelist=n1", f"--output={tmp_path}/job-%a.log"]
    states = wait_for_end(environment, submit(environment, *array, f"--wrap={command}"))
    said = [path.read_text() for path in sorted(tmp_path.glob("job-*.log"))]
    assert states == ["COMPLETED"] * JOBS, said

    jobs = [json.loads(path.read_text()) for path in sorted(results.iterdir())]
    assert [job["node"] for job in jobs] == ["n1"] * JOBS
    for job in jobs:
        assert [sorted(epoch) for epoch in job["epochs"]] == [list(range(COUNT))] * EPOCHS
    assert len({tuple(job["epochs"][1]) for job in jobs}) == JOBS  # each in an order of its own

    (copy,) = list_copies(scratch)
    assert read_tree(Path(copy.path)) == read_tree(source)
    size_bytes = sum(path.stat().st_size for path in source.iterdir())
    # Four jobs that each read two epochs would have read it eight times.
    assert size_bytes <= store.bytes_read < 1.5 * size_bytes
