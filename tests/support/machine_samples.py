# SPDX-License-Identifier: Apache-2.0
"""Samples of the machine as the doctor's sampler writes them, made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SECOND = 10**9


def make_process(pid: int, **more: Any) -> dict[str, Any]:
    return {"pid": pid, "start": 7, "parent": 1, "name": "python", "threads": 2, "affinity": [0], **more}


def make_sample(second: float, **parts: Any) -> dict[str, Any]:
    parts.setdefault("processes", [make_process(2)])
    cpu = {"cores": [0, 3], "busy": [1.0, 0.5], "ours": 1.0, "others": 0.5, "iowait": 0.0, "steal": 0.0}
    return {"t_ns": round(second * SECOND), "passed_s": 1.0, "cpu": {**cpu, **parts.pop("cpu", {})}, **parts}


def write_samples(run: Path, samples: list[dict[str, Any]], end: str = "") -> Path:
    (run / "machine.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples) + end)
    return run
