# SPDX-License-Identifier: Apache-2.0
"""Does `feedrate doctor` name the right cause first, and does a remedy give what it predicts?

Runs the corpus of scripts in tests/doctor_corpus, each slow for one known reason: once under the doctor,
then bare with and without the remedy, in turn. TraceML's verdict stands beside ours where its environment
is named.

    python benchmarks/doctor.py [CASE ...] --env traceml=envs/traceml/bin/python --json OUT.json
    python benchmarks/doctor.py --draw OUT.json

An existing JSON file is added to, also on another machine: cases that are run again are replaced. Some cases
need root (a slow file system, a throttled disk, control groups), some a GPU; the others are left out and
named.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))

from peers import environment, say  # noqa: E402
from traceml_run import ask_traceml  # noqa: E402

from doctor_corpus.cases import CASES, Case  # noqa: E402
from doctor_corpus.run_case import (  # noqa: E402
    CannotRun,
    Place,
    diagnose,
    find_case,
    measure_both,
    why_not,
)
from feedrate.machine.describe import describe_machine  # noqa: E402

# What is raw in a report and would make the file large.
LEFT_OUT = ("timeline", "curves", "machine")
HEAD = """| case | where | built in | found | exposed wait | remedy | predicted | actual | error | TraceML |
|---|---|---|---|---|---|---|---|---|---|"""


def main() -> int:
    arguments = parse()
    if arguments.draw:
        print(draw(json.loads(Path(arguments.draw).read_text())))
        return 0
    target = Path(arguments.json) if arguments.json else None
    document = load(target)
    for case in [find_case(name) for name in arguments.cases] or CASES:
        if reason := why_not(case):
            say(f"{case.name} is left out: {reason}")
            continue
        say(case.name)
        with tempfile.TemporaryDirectory(prefix="feedrate-doctor-") as scratch:
            place = Place(Path(arguments.data), Path(scratch))
            try:
                row = examine(case, place, arguments, document["cases"].get(case.name, {}))
            except (CannotRun, RuntimeError, subprocess.CalledProcessError) as error:
                say(f"{case.name} is left out: {error}")
                continue
            row = scrub(row, place) | {"machine": asdict(describe_machine(["benchmarks/doctor.py"]))}
        document["cases"][case.name] = row
        say(f"    expected {case.expected}, found {row['found']}")
        if target:
            target.write_text(json.dumps(document, indent=1) + "\n")
    print(draw(document))
    return 0


def load(target: Path | None) -> dict[str, Any]:
    if target and target.exists():
        document: dict[str, Any] = json.loads(target.read_text())
        return document
    return {"question": (__doc__ or "").splitlines()[0], "cases": {}}


def examine(
    case: Case, place: Place, arguments: argparse.Namespace, known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all that is known about a case; what is not asked for again is taken from `known`."""
    report = diagnose(case, place)
    row: dict[str, Any] = {
        "expected": case.expected,
        "reason": case.reason,
        "found": [finding["code"] for finding in report["findings"]],
        "verdict": report.get("verdict"),
        "exposed_wait_share": (report.get("run") or {}).get("exposed_wait_share"),
        "remedy": choose_remedy(case, report),
        "report": {name: value for name, value in report.items() if name not in LEFT_OUT},
        "actual": known.get("actual"),
        "traceml": known.get("traceml"),
    }
    if case.after is not None and not arguments.keep_actual:
        place = replace(place, advised=advised_workers(row["remedy"]))
        row["actual"] = measure_both(case, place, arguments.rounds, arguments.seconds)
    traceml = dict(arguments.env).get("traceml")
    if traceml:
        verdict = ask_traceml(case, place, traceml, arguments.traceml_seconds)
        row["traceml"] = {"status": verdict.status, "summary": verdict.summary, "action": verdict.action}
    return row


def choose_remedy(case: Case, report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what the doctor says of the remedy that the case applies; None: it does not name it."""
    offered = [remedy for finding in report["findings"] for remedy in finding["remedies"]]
    offered += report.get("remedies") or []
    named = [remedy for remedy in offered if remedy["name"] in case.remedies]
    return named[0] if named else None


def advised_workers(remedy: Mapping[str, Any] | None) -> int | None:
    found = re.search(r"num_workers=(\d+)", (remedy or {}).get("change") or "")
    return int(found[1]) if found else None


def sum_up(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return how often the cause was right, and how good the predictions were."""
    right = [row["found"][:1] == [row["expected"]] for row in rows.values()]
    predicted = [row for row in rows.values() if row["remedy"] and row["actual"]]
    inside = [row["remedy"]["low"] <= row["actual"]["speedup"] <= row["remedy"]["high"] for row in predicted]
    errors = [prediction_error(row) for row in predicted]
    widths = [row["remedy"]["high"] / row["remedy"]["low"] for row in predicted]
    return {
        "cases": len(rows),
        "right": sum(right),
        "with_remedy": sum(bool(row["actual"]) for row in rows.values()),
        "predicted": len(predicted),
        "inside": sum(inside),
        "narrow": sum(width <= 1.5 for width in widths),
        "median_error": median(errors) if errors else None,
    }


def prediction_error(row: Mapping[str, Any]) -> float:
    return abs(float(row["remedy"]["predicted_speedup"]) / float(row["actual"]["speedup"]) - 1)


def draw(document: Mapping[str, Any]) -> str:
    """Return the Markdown table and its summary."""
    order = {case.name: number for number, case in enumerate(CASES)}
    rows = dict(sorted(document["cases"].items(), key=lambda pair: order.get(pair[0], 999)))
    lines = [HEAD, *(draw_row(name, row) for name, row in rows.items())]
    total = sum_up(rows)
    error = "none" if total["median_error"] is None else f"{total['median_error']:.0%}"
    lines += [
        "",
        f"Right cause first: {total['right']} of {total['cases']}. Remedies applied: {total['with_remedy']},"
        f" of which the doctor predicted {total['predicted']}: {total['inside']} inside the interval,"
        f" {total['narrow']} of the intervals no wider than 1.5; median error {error}.",
    ]
    return "\n".join(lines)


def draw_row(name: str, row: Mapping[str, Any]) -> str:
    found = row["found"][0] if row["found"] else "nothing"
    exposed = row["exposed_wait_share"]
    remedy, actual, traceml = row["remedy"], row["actual"], row["traceml"]
    cells = [
        name,
        ", ".join([f"{row['machine']['usable_cores']} cores", *row["machine"].get("gpus", ())]),
        row["expected"],
        found if found == row["expected"] else f"**{found}**",
        "" if exposed is None else f"{exposed:.0%}",
        remedy["name"] if remedy else "",
        f"{remedy['predicted_speedup']:.2f} ({remedy['low']:.2f} to {remedy['high']:.2f})" if remedy else "",
        f"{actual['speedup']:.2f}" if actual else "",
        f"{prediction_error(row):.0%}" if remedy and actual else "",
        traceml["status"] if traceml else "",
    ]
    return f"| {' | '.join(cells)} |"


def scrub(row: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return a row without the paths of this machine."""
    text = json.dumps(row)
    for path, name in (
        (str(place.data), "DATA"),
        (str(place.scratch), "SCRATCH"),
        (str(REPOSITORY), "REPOSITORY"),
        (sys.prefix, "VENV"),
        (sys.base_prefix, "PYTHON"),
        (os.path.expanduser("~"), "HOME"),
        (tempfile.gettempdir(), "TMP"),
    ):
        text = re.sub(re.escape(path) + r"(?=[/\"\\ :,;)'*]|$)", name, text)
    cleaned: dict[str, Any] = json.loads(text)
    return cleaned


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="none: all that can run here")
    parser.add_argument("--env", action="append", default=[], type=environment, metavar="NAME=PYTHON")
    parser.add_argument("--rounds", type=int, default=3, help="of the bare runs, before and after in turn")
    parser.add_argument("--seconds", type=float, default=12.0, help="that a bare run is watched for")
    parser.add_argument("--traceml-seconds", type=float, default=45.0)
    parser.add_argument(
        "--keep-actual", action="store_true", help="ask the doctor again, but keep the bare runs"
    )
    parser.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "feedrate-corpus"))
    parser.add_argument("--json", help="where results are kept")
    parser.add_argument("--draw", metavar="JSON", help="only draw the table of these results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
