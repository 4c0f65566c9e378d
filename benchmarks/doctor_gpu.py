# SPDX-License-Identifier: Apache-2.0
"""What does the doctor say of a ResNet-50 on a GPU, fed with 2 and 16 workers and with synthetic data?

Needs a GPU. Each run's exposed waiting is put beside the idle share that NVML reports.

    python benchmarks/doctor_gpu.py FOLDER --json OUT.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from feedrate.machine.describe import describe_machine

SCRIPT = Path(__file__).parent / "gpu_runs" / "train_resnet.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", help="JPEG files")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 16])
    parser.add_argument("--pages", type=Path, help="a folder for the HTML pages")
    arguments = parser.parse_args()
    runs = {
        **{f"{n} workers": ["--data", arguments.folder, "--workers", str(n)] for n in arguments.workers},
        "synthetic": [],
        "synthetic, bfloat16": ["--amp"],
    }
    rows = [examine(name, words, arguments.pages) for name, words in runs.items()]
    print("| run | verdict | images/s | exposed wait | GPU idle (NVML) | best remedy |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(draw(row))
    if arguments.json:
        document = {
            "question": (__doc__ or "").splitlines()[0],
            "rows": rows,
            "machine": asdict(describe_machine(["doctor_gpu.py", "FOLDER"])),
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def examine(name: str, words: list[str], pages: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "doctor.json"
        page = ["--html", str(pages / f"{name.replace(' ', '-').replace(',', '')}.html")] if pages else []
        command = [
            sys.executable,
            "-m",
            "feedrate",
            "doctor",
            "--json",
            str(out),
            *page,
            "--",
            sys.executable,
        ]
        subprocess.run([*command, str(SCRIPT), *words], check=False)  # 3: it ended the run, as it should
        document = json.loads(out.read_text())
    utilisation = next((f["value"] for f in document["facts"] if f["name"] == "GPU utilisation"), "unknown")
    kept = ("verdict", "findings", "remedies", "run", "split", "sample", "rates", "overhead")
    return {"name": name, "gpu_utilisation": utilisation, **{key: document[key] for key in kept}}


def draw(row: dict[str, Any]) -> str:
    run, findings = row["run"], row["findings"]
    best = row["remedies"][0] if row["remedies"] else None
    remedy = f"{best['name']}: {best['predicted_speedup']:.2f}x" if best else "-"
    used = row["gpu_utilisation"]
    idle = f"{100 - float(used.rstrip('%')):.0f}%" if used.endswith("%") else used
    code = findings[0]["code"] if findings else "nothing"
    rate, wait = f"{run['samples_per_s']:.0f}", f"{run['exposed_wait_share']:.0%}"
    return f"| {row['name']} | {code} | {rate} | {wait} | {idle} | {remedy} |"


if __name__ == "__main__":
    sys.exit(main())
