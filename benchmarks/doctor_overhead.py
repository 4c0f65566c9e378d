# SPDX-License-Identifier: Apache-2.0
"""What does watching cost: `feedrate doctor --passive`, torch.profiler and TraceML against the bare script?

All run the same scripts, in turn, round after round. Times of a step are taken from outside, from the moments
at which the script's lines of progress arrive: the lower quartile of a run's, which a disturbed moment does
not move. So is the CPU time that all processes of the run took in between, the doctor's own among them.
Two scripts have steps so short that what a watcher adds to each can be told from the machine's moods.
torch.profiler is used as its documentation has it for training loops: a schedule (wait 1, warm-up 1,
active 3, repeat 2), `prof.step()` at each step, a trace handler; and once more with all steps active. TraceML
runs with the three lines that it asks for.

    python benchmarks/doctor_overhead.py --env traceml=envs/traceml/bin/python --json OUT.json
    python benchmarks/doctor_overhead.py --draw OUT.json

An existing JSON file is added to: cases that are run again are replaced.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))

from peers import environment, say  # noqa: E402
from traceml_run import find_step_loop, make_traceml_command  # noqa: E402

from doctor_corpus.cases import Case, Run  # noqa: E402
from doctor_corpus.run_case import (  # noqa: E402
    HERE,
    PROGRESS,
    Place,
    die_with_parent,
    end,
    find_case,
    make_command,
    make_environ,
    prepare,
    tree_cpu_s,
)
from feedrate.machine.describe import describe_machine  # noqa: E402

OWN_CASES = {
    "short-steps": Case(
        "short-steps", "device-bound", "steps of a millisecond", "short_steps.py", Run(""), warm_up=300
    ),
    "small-pictures": Case(
        "small-pictures", "workers-starved", "pictures of a few kilobytes", "short_steps.py",
        Run("--pictures {thumbnails}"), warm_up=60,
    ),
}  # fmt: skip
DEFAULT_CASES = (*OWN_CASES, "healthy-gpt", "python-metric")
BARE, PASSIVE, SCHEDULE, ALL_STEPS, TRACEML = (
    "bare", "doctor --passive", "torch.profiler, schedule", "torch.profiler, all steps", "TraceML"
)  # fmt: skip
SCHEDULES = {SCHEDULE: "wait=1, warmup=1, active=3, repeat=2", ALL_STEPS: "wait=0, warmup=0, active=1000"}


def main() -> int:
    arguments = parse()
    if arguments.draw:
        print(draw(json.loads(Path(arguments.draw).read_text())["rows"]))
        return 0
    traceml = dict(arguments.env).get("traceml")
    tools = [BARE, PASSIVE, SCHEDULE, ALL_STEPS, *([TRACEML] if traceml else [])]
    target = Path(arguments.json) if arguments.json else None
    rows = json.loads(target.read_text())["rows"] if target and target.exists() else []
    for name in arguments.cases or DEFAULT_CASES:
        row = compare_tools(OWN_CASES.get(name) or find_case(name), tools, arguments, traceml)
        rows = [known for known in rows if known["case"] != name] + [row]
        if target:
            document = {"question": (__doc__ or "").splitlines()[0], "rows": rows}
            target.write_text(json.dumps(document, indent=1) + "\n")
    print(draw(rows))
    return 0


def compare_tools(
    case: Case, tools: Sequence[str], arguments: argparse.Namespace, traceml: str | None
) -> dict[str, Any]:
    """Return the times of a step under each tool, of all rounds."""
    step_ms: dict[str, list[float]] = {tool: [] for tool in tools}
    cpu_ms: dict[str, list[float]] = {tool: [] for tool in tools}
    for number in range(arguments.rounds):
        say(f"{case.name}, round {number + 1} of {arguments.rounds}")
        for tool in tools:
            with tempfile.TemporaryDirectory(prefix="feedrate-overhead-") as scratch:
                place = Place(Path(arguments.data), Path(scratch))
                wall_s, cpu_s = measure_under(tool, case, place, arguments.seconds, traceml)
            step_ms[tool].append(1e3 * wall_s)
            cpu_ms[tool].append(1e3 * cpu_s)
    return {
        "case": case.name,
        "step_ms": step_ms,
        "cpu_ms": cpu_ms,
        "more_ms": compare(step_ms),
        "more_cpu_ms": compare(cpu_ms),
        "settings": {"rounds": arguments.rounds, "seconds": arguments.seconds},
        "machine": asdict(describe_machine(["benchmarks/doctor_overhead.py"])),
    }


def measure_under(
    tool: str, case: Case, place: Place, seconds: float, traceml: str | None
) -> tuple[float, float]:
    """Return what a step of the script takes under a tool: seconds, and CPU seconds of all its processes."""
    prepare(case, case.before, place)
    process = subprocess.Popen(
        make_tool_command(tool, case, place, traceml),
        env=make_environ(case.before, place), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True, preexec_fn=die_with_parent,
    )  # fmt: skip
    moments: list[tuple[int, float]] = []
    cpu_before_s = 0.0
    for line in process.stdout or ():
        found = PROGRESS.search(line)
        if not found or int(found[1]) < case.warm_up:
            continue
        moments.append((int(found[1]), time.perf_counter()))
        if len(moments) == 1:
            cpu_before_s = tree_cpu_s(process.pid)
        elif moments[-1][1] - moments[0][1] >= seconds:
            break
    cpu_s = tree_cpu_s(process.pid) - cpu_before_s
    end(process)
    if len(moments) < 5:
        raise RuntimeError(f"{case.name} under {tool} printed too little progress")
    walls = [(b - a) / (n - m) for (m, a), (n, b) in itertools.pairwise(moments)]
    return quantiles(walls, n=4)[0], cpu_s / (moments[-1][0] - moments[0][0])


def script_of(case: Case) -> Path:
    return (HERE / "scripts" if case.name not in OWN_CASES else REPOSITORY / "benchmarks") / case.script


def make_tool_command(tool: str, case: Case, place: Place, traceml: str | None) -> list[str]:
    run = case.before
    if tool == PASSIVE:
        report = str(place.scratch / "doctor.json")
        doctor = [sys.executable, "-m", "feedrate", "doctor", "--passive", "--json", report, "--"]
        return make_command(case, run, place, tool=doctor, script=script_of(case))
    if tool == TRACEML:
        assert traceml
        return make_traceml_command(case, run, place, traceml, source=script_of(case))
    if tool in SCHEDULES:
        script = place.scratch / case.script
        source = script_of(case).read_text()
        script.write_text(add_profiler(source, case.model, SCHEDULES[tool], str(place.scratch / "trace")))
        return make_command(case, run, place, script=script)
    return make_command(case, run, place, script=script_of(case))


def add_profiler(source: str, model: str, schedule: str, folder: str) -> str:
    """Return a script whose training loop runs under torch.profiler and tells it of each step."""
    tree = ast.parse(source)
    loop = find_step_loop(tree, model)
    parent, field, at = find_place(tree, loop)
    around = ast.parse(
        "from torch import profiler\n"  # not `import torch.profiler`: that would make `torch` a local name
        f"with profiler.profile(schedule=profiler.schedule({schedule}),"
        f" on_trace_ready=profiler.tensorboard_trace_handler({folder!r})) as prof:\n    pass"
    ).body
    profile = around[1]
    assert isinstance(profile, ast.With)
    loop.body.insert(0, ast.parse("prof.step()").body[0])
    profile.body = [loop]
    getattr(parent, field)[at : at + 1] = around
    return ast.unparse(ast.fix_missing_locations(tree))


def find_place(tree: ast.AST, wanted: ast.AST) -> tuple[ast.AST, str, int]:
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and wanted in value:
                return node, field, value.index(wanted)
    raise ValueError("the loop is not in the tree")


def compare(times_ms: dict[str, list[float]]) -> dict[str, float]:
    """Return what each tool adds to the bare step: the median of the rounds' differences."""
    return {
        tool: median(mine - bare for mine, bare in zip(times, times_ms[BARE], strict=True))
        for tool, times in times_ms.items()
    }


def draw(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the Markdown table."""
    tools = list(rows[0]["step_ms"])
    lines = [
        "A step of the bare script, and what each tool adds to it; in brackets: CPU time of all processes.",
        "",
        f"| script | {' | '.join(tools)} |",
        "|---" * (len(tools) + 1) + "|",
    ]
    for row in rows:
        bare, bare_cpu = (median(row[times][BARE]) for times in ("step_ms", "cpu_ms"))
        cells = [row["case"], f"{bare:.2f} ms ({bare_cpu:.2f})"]
        for tool in tools[1:]:
            more, cpu = row["more_ms"].get(tool), row["more_cpu_ms"].get(tool)
            cells.append("" if more is None else f"{more:+.2f} ms, {more / bare:+.1%} ({cpu:+.2f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--env", action="append", default=[], type=environment, metavar="NAME=PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "feedrate-corpus"))
    parser.add_argument("--json")
    parser.add_argument("--draw", metavar="JSON", help="draw the table of a finished run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
