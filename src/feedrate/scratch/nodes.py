# SPDX-License-Identifier: Apache-2.0
"""`feedrate stage --nodes`: one copy on every node of a Slurm job, by one `feedrate stage` on each."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from feedrate.errors import FeedrateError, UsageError
from feedrate.remote.addresses import is_url
from feedrate.scratch.results import NodesResult, StageFailure, StageResult

_LABELLED = re.compile(r"\s*(\d+): ?(.*)")


def stage_on_nodes(
    source: str,
    options: Sequence[str] = (),
    *,
    say: Callable[[str], None] = lambda _: None,
    environ: Mapping[str, str] = os.environ,
) -> NodesResult:
    """Run `feedrate stage SOURCE *options` once on every node of this Slurm job.

    Raises:
        UsageError: this is no Slurm job.
        FeedrateError: srun does not start.
    """
    begin = time.monotonic()
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES")
    if not nodes or "SLURM_JOB_ID" not in environ:
        raise UsageError(
            "--nodes works inside a Slurm job, and there is none here ($SLURM_JOB_ID is not set)",
            hint="put the command into the sbatch script, or leave out --nodes to stage on this machine",
        )
    if shutil.which("srun") is None:
        raise FeedrateError(
            "--nodes needs srun, which is not on the PATH", hint="module load slurm, or the like"
        )
    address = source if is_url(source) else os.path.abspath(source)
    words = [*srun_words(nodes), sys.executable, "-m", "feedrate", "stage", address, *options, "--json", "-"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        complaints: dict[int, list[str]] = defaultdict(list)
        listener = threading.Thread(target=_listen, args=(process.stderr, complaints, say), daemon=True)
        listener.start()
        documents = _collect(process.stdout)
        process.wait()
        listener.join()
    return _summarise(
        address, documents, complaints, _list_nodes(environ, int(nodes)), time.monotonic() - begin
    )


def srun_words(nodes: str) -> list[str]:
    """Return srun and its options: one task on each node, beside whatever else the job runs there."""
    return [
        "srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--overlap",
        "--cpu-bind=none", "--kill-on-bad-exit=0", "--input=none", "--label",
    ]  # fmt: skip


def _listen(stream: IO[str], complaints: dict[int, list[str]], say: Callable[[str], None]) -> None:
    for line in stream:
        match = _LABELLED.match(line)
        if match is not None and match[2].startswith("error: "):
            complaints[int(match[1])].append(match[2].removeprefix("error: ").strip())
        elif match is None and line.startswith("srun: error:"):
            complaints[-1].append(line.removeprefix("srun: error:").strip())
        if line.strip():
            say(line.rstrip())


def _collect(stream: IO[str]) -> dict[int, Any]:
    """Return what each task wrote, parsed; a task without a whole document is not in it."""
    lines: dict[int, list[str]] = defaultdict(list)
    for line in stream:
        match = _LABELLED.match(line.rstrip("\n"))
        if match is not None:
            lines[int(match[1])].append(match[2])
    documents = {}
    for task, text in lines.items():
        try:
            documents[task] = json.loads("\n".join(text))
        except ValueError:
            continue
    return documents


def _list_nodes(environ: Mapping[str, str], count: int) -> list[str]:
    """Return the names of the job's nodes, in the order of the tasks."""
    words = ["scontrol", "show", "hostnames", environ.get("SLURM_JOB_NODELIST", "")]
    try:
        names = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        names = []
    return names if len(names) == count else [f"node {number}" for number in range(count)]


def _summarise(
    source: str,
    documents: Mapping[int, Any],
    complaints: Mapping[int, Sequence[str]],
    names: Sequence[str],
    seconds: float,
) -> NodesResult:
    results, failures = [], []
    fields = StageResult.__dataclass_fields__
    for task, name in enumerate(names):
        document = documents.get(task)
        if document is not None:
            results.append(StageResult(**{field: document[field] for field in fields}))
        else:
            said = complaints.get(task) or complaints.get(-1) or ["it ended without a word"]
            failures.append(StageFailure(name, said[-1]))
    paths = {result.path for result in results}
    path = paths.pop() if len(paths) == 1 and not failures else ""
    return NodesResult(source, path, tuple(results), tuple(failures), seconds)
