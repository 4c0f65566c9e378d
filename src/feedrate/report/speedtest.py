# SPDX-License-Identifier: Apache-2.0
"""The result of `feedrate speedtest`: totals of the training, and the doctor's screen below them."""

from __future__ import annotations

from feedrate.demo.results import SpeedtestResult
from feedrate.report.doctor import draw_diagnosis
from feedrate.report.lines import lay_out
from feedrate.units import format_rate, format_seconds

# Of the doctor's rates and facts: what says how fast the parts are alone, and what the machine did meanwhile.
_RATES = {"device": "device alone", "loader": "loader alone", "feedrate-loader": "feedrate.Loader alone"}
_FACTS = ("precision", "batch", "in the page cache", "GPU utilisation", "GPU power")


def draw_speedtest(result: SpeedtestResult, width: int | None = None) -> str:
    diagnosis = result.diagnosis
    machine, run, facts = diagnosis.machine, diagnosis.run, {one.name: one.value for one in diagnosis.facts}
    steps = f"of {format_seconds(result.steps_s)} in {run.steps} steps"
    rows = [
        ("device", machine.cpu_model if run.device == "cpu" else run.device),
        ("model", result.model),
        ("images", result.source or "made here"),
        *((name, facts[name]) for name in _FACTS if name in facts),
        ("device time in total", f"{format_seconds(result.device_s)} {steps}"),
    ]
    if result.cpu_s is not None:
        rows.append(("CPU time in total", f"{format_seconds(result.cpu_s)}, all processes together"))
    rates = {one.name: one for one in diagnosis.rates}
    rows += [
        (title, format_rate(rates[name].samples_per_s, "images"))
        for name, title in _RATES.items()
        if name in rates
    ]
    return f"{lay_out(rows, width)}\n{draw_diagnosis(diagnosis)}"
