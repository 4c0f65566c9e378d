# SPDX-License-Identifier: Apache-2.0
"""Jobs of a grid search on one node: what does one copy on scratch give, against each reading the source?

All jobs read the same pack at the same time, each in an order of its own, for some epochs: from a slow store
(a file system of this machine whose every answer is late, and which gives all of them together at most a
stated rate), and with `Loader(scratch=...)`. They are an array of jobs of a Slurm that is started for it;
where there is none, processes. Needs root.

No page of the store's shards is kept in memory, unless `--page-cache` asks for it: a network file system's
client keeps pages as long as there is room, but in a job they count towards its memory limit, and a dataset
for which one copies to scratch is larger than that. Here a small one stands for it. The index is kept. The
copy on scratch does lie in the page cache: what a disk adds is not in the figures.

    python benchmarks/grid_search.py --json benchmarks/results/grid-search.json
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from staging import BATCH, SIDE, SURROUNDINGS, say

from feedrate import Loader, PackOptions, RandomResizedCrop, pack
from feedrate.lab.photographs import make_photographs
from feedrate.machine.describe import describe_machine
from feedrate.scratch.listing import list_copies

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.slurm_cluster import ClusterFailed, slurm_cluster, submit, wait_for_end, why_not

SOURCE, COPY = "each reads the source", "one copy on scratch"
INDEX_BYTES = 1_000_000  # larger than a part of the index, smaller than a shard
MADE = 250  # different photographs; more would only take longer to make
NUMBER = "SLURM_ARRAY_TASK_ID"


def main() -> int:
    arguments = parse()
    if arguments.job:
        run_job(arguments)
        return 0
    if arguments.mounted:
        measure_all(arguments)
        return 0
    with tempfile.TemporaryDirectory(prefix="feedrate-grid-", dir=arguments.scratch) as folder:
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"  # nothing of this stays in the registry
        size_bytes = write_pack(Path(folder), arguments.images)
        late = str(arguments.latency_ms)
        slow = ["--slow", f"{folder}/store", f"{folder}/mounted", late, late, str(arguments.rate)]
        slow += [] if arguments.page_cache else ["--kept", str(INDEX_BYTES)]
        own = [sys.executable, __file__, *sys.argv[1:], "--mounted", f"{folder}/mounted", "--folder", folder]
        subprocess.run([sys.executable, str(SURROUNDINGS), *slow, "--", *own], check=True)
        found = json.loads((Path(folder) / "found.json").read_text())
    if arguments.json:
        names = ("images", "jobs", "epochs", "rounds", "latency_ms", "rate", "page_cache")
        document = {
            "question": (__doc__ or "").splitlines()[0],
            "settings": {name: getattr(arguments, name) for name in names} | {"pack_bytes": size_bytes},
            **found,
            "machine": asdict(describe_machine(["grid_search.py", *sys.argv[1:]])),
        }
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def write_pack(folder: Path, images: int) -> int:
    made = list(make_photographs(min(images, MADE)))
    for number in range(images):
        photograph = made[number % len(made)]
        path = folder / "images" / f"class{photograph.label}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photograph.jpeg)
    pack(folder / "images", folder / "store" / "pack", PackOptions(shard_bytes=8_000_000))
    return sum(path.stat().st_size for path in (folder / "store" / "pack").iterdir())


def measure_all(arguments: argparse.Namespace) -> None:
    """Run the grid both ways, in turn; write what was found."""
    folder = Path(arguments.folder)
    with start_cluster(folder / "slurm") as cluster:
        started = "processes, since " + cluster if isinstance(cluster, str) else "an array of Slurm jobs"
        say(f"{arguments.jobs} jobs are {started}")
        runs = [
            measure(how, arguments, None if isinstance(cluster, str) else cluster)
            for _ in range(arguments.rounds)
            for how in (SOURCE, COPY)
        ]
    rows = [summarise([run for run in runs if run["how"] == how]) for how in (SOURCE, COPY)]
    for row in rows:
        epochs = ", ".join(f"{rate:.0f}" for rate in row["epoch_images_per_s"])
        say(f"{row['how']}: {row['images_per_s']:.0f} images/s of all jobs together; by epoch {epochs}")
    (folder / "found.json").write_text(json.dumps({"jobs_are": started, "rows": rows, "runs": runs}))


@contextmanager
def start_cluster(base: Path) -> Iterator[dict[str, str] | str]:
    """Yield the environment of a Slurm's users, or why there is none."""
    reason = why_not()
    if reason is None:
        try:
            with slurm_cluster(base) as environment:
                yield environment
                return
        except ClusterFailed as error:
            reason = str(error)
    yield reason


def measure(how: str, arguments: argparse.Namespace, cluster: dict[str, str] | None) -> dict[str, Any]:
    folder = Path(arguments.folder) / "run"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "scratch").mkdir(parents=True)
    words = [sys.executable, __file__, "--job", str(folder), "--mounted", arguments.mounted]
    words += ["--epochs", str(arguments.epochs)] + (["--folder", str(folder / "scratch")] * (how is COPY))
    if cluster is not None:
        array = [f"--array=0-{arguments.jobs - 1}", "--nodelist=n1", f"--output={folder}/log-%a"]
        states = wait_for_end(cluster, submit(cluster, *array, f"--wrap={shlex.join(words)}"), 600)
        failed = set(states) != {"COMPLETED"}
    else:
        environments = [{**os.environ, NUMBER: str(number)} for number in range(arguments.jobs)]
        jobs = [subprocess.Popen(words, env=environment) for environment in environments]
        failed = {job.wait() for job in jobs} != {0}
    if failed:
        said = "".join(path.read_text() for path in folder.glob("log-*"))
        raise SystemExit(f"a job failed: {said}")
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    copies = list_copies(folder / "scratch")
    images = sum(sum(job["epoch_images"]) for job in found)
    rates = [[n / s for n, s in zip(job["epoch_images"], job["epoch_seconds"], strict=True)] for job in found]
    return {
        "how": how, "copies": len(copies), "copied_bytes": sum(copy.landed_bytes for copy in copies),
        "images_per_s": images / (max(job["end"] for job in found) - min(job["begin"] for job in found)),
        "epoch_images_per_s": [sum(of_all) for of_all in zip(*rates, strict=True)],
        "cpu_us_per_image": 1e6 * sum(job["cpu_seconds"] for job in found) / images, "jobs": found,
    }  # fmt: skip


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of the rounds."""
    epochs = zip(*(run["epoch_images_per_s"] for run in runs), strict=True)
    medians = {
        key: statistics.median(run[key] for run in runs) for key in ("images_per_s", "cpu_us_per_image")
    }
    return {"how": runs[0]["how"], "copies": runs[0]["copies"], **medians,
            "epoch_images_per_s": [statistics.median(epoch) for epoch in epochs]}  # fmt: skip


def run_job(arguments: argparse.Namespace) -> None:
    """Read the pack as a job with a seed of its own would; note what each epoch took."""
    seconds, images = [], []
    number = int(os.environ[NUMBER])
    begin, cpu = time.time(), time.process_time()
    with Loader(
        Path(arguments.mounted) / "pack", batch_size=BATCH, image=RandomResizedCrop(SIDE), output="numpy",
        seed=number, threads=1, scratch=arguments.folder,
    ) as loader:  # fmt: skip
        for _ in range(arguments.epochs):
            epoch = time.perf_counter()
            images.append(sum(len(batch[0]) for batch in loader))
            seconds.append(time.perf_counter() - epoch)
        fetch = loader.stats().fetch
    found = {"begin": begin, "end": time.time(), "cpu_seconds": time.process_time() - cpu}
    found |= {"epoch_images": images, "epoch_seconds": seconds}
    found |= {"fetched_bytes": None if fetch is None else fetch.bytes_fetched}
    (Path(arguments.job) / f"{number}.json").write_text(json.dumps(found))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--latency-ms", type=float, default=5.0, help="of every answer of the store")
    parser.add_argument("--rate", type=float, default=25.0, help="of the store, for all jobs together, MB/s")
    parser.add_argument("--page-cache", action="store_true", help="keep what was read of the store in memory")
    parser.add_argument("--scratch", help="where to put all of it while it runs")
    parser.add_argument("--json", metavar="FILE")
    for hidden in ("--mounted", "--folder", "--job"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
