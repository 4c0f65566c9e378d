# SPDX-License-Identifier: Apache-2.0
"""TraceML (PyPI `traceml-ai`) on a script of the corpus, with the edits that its documentation asks for.

Those are three lines: the import, `traceml.init(mode="auto")`, and `with traceml.trace_step(model):` around
what a training step does. They are put into a copy of the script.
"""

from __future__ import annotations

import ast
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from doctor_corpus.cases import Case, Run
from doctor_corpus.run_case import HERE, Place, die_with_parent, make_command, make_environ, prepare


@dataclass(frozen=True, slots=True)
class Verdict:
    """What TraceML says: its primary diagnosis, in its own words."""

    status: str
    summary: str
    action: str


def add_edits(source: str, model: str) -> str:
    """Return a script with TraceML's three lines in it."""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    loop = find_step_loop(tree, model)
    step = ast.parse(f"with traceml.trace_step({model}):\n    pass").body[0]
    assert isinstance(step, ast.With)
    step.body, loop.body = loop.body, [step]
    outer: ast.AST = loop
    while not (isinstance(outer, ast.FunctionDef) or isinstance(parents.get(outer), ast.Module)):
        outer = parents[outer]
    assert isinstance(outer, (ast.FunctionDef, ast.If))
    outer.body[:0] = ast.parse('import traceml_ai as traceml\ntraceml.init(mode="auto")').body
    return ast.unparse(ast.fix_missing_locations(tree))


def find_step_loop(tree: ast.AST, model: str) -> ast.For:
    """The innermost loop that steps an optimizer; without one, the innermost that calls the network."""

    def is_step(call: ast.Call) -> bool:
        return isinstance(call.func, ast.Attribute) and call.func.attr == "step"

    def is_forward(call: ast.Call) -> bool:
        return ast.unparse(call.func) == model

    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]  # from the outside inwards
    for is_wanted in (is_step, is_forward):
        found = [loop for loop in loops if any(map(is_wanted, calls_in(loop)))]
        if found:
            return found[-1]
    raise ValueError(f"no loop that calls {model} or steps an optimizer")


def calls_in(loop: ast.For) -> list[ast.Call]:
    return [node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Call)]


def make_traceml_command(
    case: Case, run: Run, place: Place, python: str, source: Path | None = None
) -> list[str]:
    """Return TraceML's command line for a case; its copy of the script lies in the scratch folder."""
    source = source or HERE / "scripts" / case.script
    script = place.scratch / case.script
    script.write_text(add_edits(source.read_text(), case.model))
    traceml = str(Path(python).parent / "traceml")
    tool = [traceml, "run", str(script), "--logs-dir", str(place.scratch / "traceml"), "--run-name", "run"]
    if case.launcher == "torchrun":
        tool += ["--nproc-per-node", "2"]
    command = make_command(case, run, place, script=script, launcher=())
    at = command.index(str(script))
    return [*command[:at], *tool, "--args", *command[at + 1 :]]


def ask_traceml(case: Case, place: Place, python: str, seconds: float = 60.0) -> Verdict:
    """Run a case under TraceML until it ends, or so long; interrupted, it writes its summary all the same."""
    prepare(case, case.before, place)
    process = subprocess.Popen(
        make_traceml_command(case, case.before, place, python),
        env=make_environ(case.before, place), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, preexec_fn=die_with_parent,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(2)
        try:
            output, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
    found = sorted((place.scratch / "traceml").rglob("final_summary.json"))
    if not found:
        return Verdict("no summary", " ".join(output.split()[-30:]), "")
    primary = json.loads(found[-1].read_text()).get("primary_diagnosis") or {}
    return Verdict(*(str(primary.get(name, "")) for name in ("status", "summary", "action")))
