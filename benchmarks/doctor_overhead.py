# SPDX-License-Identifier: Apache-2.0
"""What does watching cost: `feedrate doctor --passive`, torch.profiler and TraceML against the bare script?

All run the same scripts, in turn, round after round. Times of a step are taken from outside, from the moments
at which the script's lines of progress arrive, and so is the CPU time that all processes of the run took in
between, the doctor's own among them: on a machine that others use too, the wall clock says little.
torch.profiler is used as its documentation has it for training loops: a schedule (wait 1, warm-up 1,
active 3, repeat 2), `prof.step()` at each step, a trace handler; and once more with all steps active. TraceML
runs with the three lines that it asks for.

    python benchmarks/doctor_overhead.py --env traceml=envs/traceml/bin/python --json OUT.json
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))

from peers import environment, say  # noqa: E402
from traceml_run import find_step_loop, make_traceml_command  # noqa: E402

from doctor_corpus.cases import Case  # noqa: E402
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
from feedrate.probe.machine import describe_machine  # noqa: E402

# A step of the network alone, many short steps, and one in which workers do the work.
DEFAULT_CASES = ("healthy-gpt", "python-metric", "no-workers", "camera-photos")
BARE, PASSIVE, SCHEDULE, ALL_STEPS, TRACEML = (
    "bare", "doctor --passive", "torch.profiler, schedule", "torch.profiler, all steps", "TraceML"
)  # fmt: skip
SCHEDULES = {SCHEDULE: "wait=1, warmup=1, active=3, repeat=2", ALL_STEPS: "wait=0, warmup=0, active=1000"}


def main() -> int:
    arguments = parse()
    traceml = dict(arguments.env).get("traceml")
    tools = [BARE, PASSIVE, SCHEDULE, ALL_STEPS, *([TRACEML] if traceml else [])]
    rows = []
    for case in map(find_case, arguments.cases or DEFAULT_CASES):
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
        ratios, cpu_ratios = compare(step_ms), compare(cpu_ms)
        rows.append(
            {
                "case": case.name,
                "step_ms": step_ms,
                "cpu_ms": cpu_ms,
                "ratios": ratios,
                "cpu_ratios": cpu_ratios,
            }
        )
        if arguments.json:
            write(rows, arguments)
    print(draw(rows, tools))
    return 0


def write(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    document = {
        "question": (__doc__ or "").splitlines()[0],
        "rows": rows,
        "settings": {"rounds": arguments.rounds, "seconds": arguments.seconds},
        "machine": asdict(describe_machine(["benchmarks/doctor_overhead.py"])),
    }
    Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")


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
    first: tuple[int, float, float] | None = None
    step, moment = 0, 0.0
    for line in process.stdout or ():
        found = PROGRESS.search(line)
        if not found or int(found[1]) < case.warm_up:
            continue
        step, moment = int(found[1]), time.perf_counter()
        if first is None:
            first = step, moment, tree_cpu_s(process.pid)
        elif moment - first[1] >= seconds and (step - first[0]) % case.period == 0:
            break
    cpu_s = tree_cpu_s(process.pid)
    end(process)
    if first is None or step == first[0]:
        raise RuntimeError(f"{case.name} under {tool} printed no progress")
    steps = step - first[0]
    return (moment - first[1]) / steps, (cpu_s - first[2]) / steps


def make_tool_command(tool: str, case: Case, place: Place, traceml: str | None) -> list[str]:
    run = case.before
    if tool == PASSIVE:
        report = str(place.scratch / "doctor.json")
        doctor = [sys.executable, "-m", "feedrate", "doctor", "--passive", "--json", report, "--"]
        return make_command(case, run, place, tool=doctor)
    if tool == TRACEML:
        assert traceml
        return make_traceml_command(case, run, place, traceml)
    if tool in SCHEDULES:
        script = place.scratch / case.script
        source = (HERE / "scripts" / case.script).read_text()
        script.write_text(add_profiler(source, case.model, SCHEDULES[tool], str(place.scratch / "trace")))
        return make_command(case, run, place, script=script)
    return make_command(case, run, place)


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


def compare(step_ms: dict[str, list[float]]) -> dict[str, float]:
    """Return each tool's step time over the bare one's: the median of the rounds' ratios."""
    return {
        tool: median(mine / bare for mine, bare in zip(times, step_ms[BARE], strict=True))
        for tool, times in step_ms.items()
    }


def draw(rows: list[dict[str, Any]], tools: list[str]) -> str:
    lines = [
        "CPU time of a step (wall clock): of the bare script, and how much more under each tool.",
        "",
        f"| script | {' | '.join(tools)} |",
        "|---" * (len(tools) + 1) + "|",
    ]
    for row in rows:
        bare = f"{median(row['cpu_ms'][BARE]):.1f} ms ({median(row['step_ms'][BARE]):.1f} ms)"
        others = [
            f"{row['cpu_ratios'][tool] - 1:+.1%} ({row['ratios'][tool] - 1:+.1%})" for tool in tools[1:]
        ]
        lines.append(f"| {row['case']} | {bare} | {' | '.join(others)} |")
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
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
