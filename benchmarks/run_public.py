# SPDX-License-Identifier: Apache-2.0
"""Public training scripts as published, bare and under `feedrate run`, in turn; or what the doctor predicts.

    python benchmarks/run_public.py imagenet,torchvision,timm ROUNDS TAG
    python benchmarks/run_public.py predicted imagenet,torchvision

Names: imagenet, torchvision, timm, timm-randaugment, lightning, hf-mae. In the environment: SCRIPTS, a folder
with checkouts named examples (pytorch/examples), vision (pytorch/vision), timm (pytorch-image-models),
lightning (pytorch-lightning) and transformers; DATA, a folder with train/ and val/ of class folders; OUT, for
results. EPOCHS (3), BATCH (256), WORKERS (16), MOST seconds a command (150), WAYS (bare,run), RUN_OPTIONS,
TRY=cpu for a trial without a GPU. An epoch ends with the last line of its validation.
"""

import json
import os
import platform
import re
import resource
import select
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

ASKED = os.environ
EPOCHS, MOST = int(ASKED.get("EPOCHS", 3)), float(ASKED.get("MOST", 150))
DATA, PUB = os.path.abspath(ASKED.get("DATA", "data")), os.path.abspath(ASKED.get("SCRIPTS", "scripts"))
BATCH, WORKERS = int(ASKED.get("BATCH", 256)), int(ASKED.get("WORKERS", 16))
OUT = Path(ASKED.get("OUT", "out")).absolute()
WORK = OUT / "work"
IS_TRIAL = ASKED.get("TRY") == "cpu"
WAYS = ASKED.get("WAYS", "bare,run").split(",")
PYTHON = sys.executable
TICK = os.sysconf("SC_CLK_TCK")
SMALL_MAE = ",".join(
    f"{kind}{word}"
    for kind in ("", "decoder_")
    for word in ("hidden_size=32", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=64")
)


def count(part):
    return sum(len(files) for _, _, files in os.walk(f"{DATA}/{part}"))


def print_interval():
    """Of imagenet: so that the last batch of an epoch is printed (the usual 10 where that is so anyway)."""
    last = -(-count("train") // BATCH) - 1
    return next(n for n in range(10, 0, -1) if last % n == 0)


# Each: the words behind `python`; the first line of training; a line of training (the last one before
# validation ends it); the line that ends validation.
def commands(epochs):
    cpu = ["--device", "cpu"] if IS_TRIAL else []
    amp = [] if IS_TRIAL else ["--amp"]
    timm = [
        f"{PUB}/timm/train.py",
        "--data-dir",
        DATA,
        "--train-split",
        "train",
        "--val-split",
        "val",
        "--model",
        "resnet18",
        "--num-classes",
        "10",
        "-b",
        BATCH,
        "-j",
        WORKERS,
        "--epochs",
        epochs,
        "--warmup-epochs",
        0,
        "--lr",
        "0.1",
        "--output",
        "out",
        *amp,
        *cpu,
    ]
    timm_marks = (r"Train: 0 \[", r"Train: \d+ \[ *\d+/\d+ \(100%\)\]", r"Test: \[ *(\d+)/\1\]")
    return {
        "imagenet": (
            [
                f"{PUB}/examples/imagenet/main.py",
                "-a",
                "resnet18",
                "-j",
                WORKERS,
                "-b",
                BATCH,
                "--epochs",
                epochs,
                "-p",
                print_interval(),
                DATA,
            ],
            (r"^Epoch: \[0\]\[", r"^Epoch: \[\d+\]\[", r"^ \*\s+Acc@1 "),
        ),
        "torchvision": (
            [
                f"{PUB}/vision/references/classification/train.py",
                "--data-path",
                DATA,
                "--model",
                "resnet18",
                "-j",
                WORKERS,
                "-b",
                BATCH,
                "--epochs",
                epochs,
                "--output-dir",
                "out",
                *amp,
                *cpu,
            ],
            (r"^Epoch: \[0\] +\[", r"^Epoch: \[\d+\] Total time:", r"^Test: +Acc@1 "),
        ),
        "timm": (timm, timm_marks),
        "timm-randaugment": ([*timm, "--aa", "rand-m9-mstd0.5", "--reprob", "0.25"], timm_marks),
        "lightning": (
            [
                f"{PUB}/lightning/examples/pytorch/domain_templates/imagenet.py",
                "fit",
                "--model.data_path",
                DATA,
                "--model.arch",
                "resnet18",
                "--model.batch_size",
                BATCH,
                "--model.workers",
                WORKERS,
                "--trainer.max_epochs",
                epochs,
                *([] if IS_TRIAL else ["--trainer.precision", "16-mixed"]),
            ],
            (r"^Epoch 0: +\d", r"Epoch \d+: 100%", r"Validation DataLoader 0: 100%"),
        ),
        "hf-mae": (
            [
                f"{PUB}/transformers/examples/pytorch/image-pretraining/run_mae.py",
                "--dataset_name",
                "imagefolder",
                "--train_dir",
                f"{DATA}/train/**",
                "--output_dir",
                "out",
                "--remove_unused_columns",
                "False",
                "--label_names",
                "pixel_values",
                "--mask_ratio",
                "0.75",
                "--norm_pix_loss",
                "True",
                "--do_train",
                "--do_eval",
                "--base_learning_rate",
                "1.5e-4",
                "--weight_decay",
                "0.05",
                "--num_train_epochs",
                epochs,
                "--per_device_train_batch_size",
                BATCH,
                "--per_device_eval_batch_size",
                BATCH,
                "--dataloader_num_workers",
                WORKERS,
                "--logging_strategy",
                "epoch",
                "--eval_strategy",
                "epoch",
                "--save_strategy",
                "no",
                "--report_to",
                "none",
                "--seed",
                "1337",
                *(["--use_cpu", "True", "--config_overrides", SMALL_MAE] if IS_TRIAL else ["--bf16", "True"]),
            ],
            (r"Running training", r"\{'loss':", r"\{'eval_loss':"),
        ),
    }


def environment(folder):
    mine = {
        "PYTHONUNBUFFERED": "1",
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "WANDB_DISABLED": "true",
        "TOKENIZERS_PARALLELISM": "false",
        "COLUMNS": "200",
        "PYTHONWARNINGS": "ignore",
    }
    return {**os.environ, **mine}


def processes():
    """Of each process: its parent and its CPU seconds, with those of its ended children."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            found[int(name)] = int(words[1]), sum(map(int, words[11:15])) / TICK
    return found


def tree(pid):
    """The process and all below it: their numbers, and their CPU seconds."""
    found = processes()
    children = {}
    for number, (parent, _) in found.items():
        children.setdefault(parent, []).append(number)
    numbers, waiting = [], [pid]
    while waiting:
        number = waiting.pop()
        if number in found:
            numbers.append(number)
            waiting += children.get(number, [])
    return numbers, sum(found[number][1] for number in numbers)


class Epochs:
    """Finds the ends of training and of validation among lines as they come."""

    def __init__(self, marks):
        self.begun, self.train, self.validated = map(re.compile, marks)
        self.last_train, self.first_line, self.done = None, None, []

    def see(self, line, now, cpu):
        if self.first_line is None and self.begun.search(line):
            self.first_line = round(now, 3)
        if self.train.search(line):
            self.last_train = now, cpu()
        elif self.validated.search(line) and self.last_train:
            began, began_cpu = self.done[-1]["end"] if self.done else (0.0, 0.0)
            end = now, cpu()
            self.done.append(
                {
                    "wall_s": end[0] - began,
                    "train_s": self.last_train[0] - began,
                    "validation_s": end[0] - self.last_train[0],
                    "cpu_s": end[1] - began_cpu,
                    "end": end,
                }
            )
            self.last_train = None


def run(words, marks, folder, most=MOST):
    """Run a command to its end, or for `most` seconds; return what was seen, and its lines."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    child = subprocess.Popen(
        words,
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    epochs, lines, rest, ended, known = Epochs(marks), [], b"", "by itself", []
    pipe, due, gone = child.stdout.fileno(), began + most, None
    os.set_blocking(pipe, False)
    while True:
        now = time.monotonic()
        if now > due:
            known = tree(child.pid)[0] or known
            if ended == "by itself":
                ended, due = "SIGINT", now + 15
                send(child, signal.SIGINT)
            else:
                ended, due = "SIGKILL", now + 3600
                send(child, signal.SIGKILL, known)
        if gone is None and child.poll() is not None:
            gone = now
        data = b""
        if select.select([pipe], [], [], 0.2)[0]:
            data = os.read(pipe, 1 << 16)
            if not data:
                break
        elif gone is not None and now - gone > 2:  # somebody else holds the pipe
            break
        arrived = time.monotonic() - began
        *whole, rest = re.split(rb"[\r\n]+", rest + data)
        for line in whole:
            text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line.decode(errors="replace")).rstrip()
            if text:
                lines.append((arrived, text))
                epochs.see(text, arrived, lambda: tree(child.pid)[1])
    child.stdout.close()
    code = child.wait()
    wall, after = (gone or time.monotonic()) - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended != "by itself":
        send(child, signal.SIGKILL, known)  # workers that outlived it
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    done = [{**{key: round(value, 3) for key, value in row.items() if key != "end"}} for row in epochs.done]
    return {
        "exit_code": code,
        "ended": ended,
        "wall_s": round(wall, 3),
        "user_s": round(user, 2),
        "system_s": round(system, 2),
        "cpu_s": round(user + system, 2),
        "first_line_of_training_s": epochs.first_line,
        "epochs": done,
    }, lines


def send(child, number, others=()):
    for kill, pid in [(os.killpg, child.pid), *((os.kill, pid) for pid in others)]:
        try:
            kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def tail(title, words, lines, count=40):
    text = [
        f"##### {title}: {shlex.join(words)}",
        *(f"{at:8.2f} {line[:600]}" for at, line in lines[-count:]),
    ]
    head = [f"{at:8.2f} {line[:600]}" for at, line in lines if "feedrate run:" in line][:20]
    return "\n".join([*text, *(["--- feedrate's own lines"] if head else []), *head, ""]) + "\n"


def describe():
    names = (
        "torch",
        "torchvision",
        "pillow",
        "numpy",
        "timm",
        "lightning",
        "transformers",
        "datasets",
        "feedrate",
    )
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions,
        "train_images": count("train"),
        "val_images": count("val"),
        "batch": BATCH,
        "workers": WORKERS,
    }


def median(values):
    values = [value for value in values if value is not None]
    return round(statistics.median(values), 3) if values else None


def summarise(runs):
    """Return medians of each way, and bare over run; one that was ended counts for its epochs alone."""
    rows = {}
    for way in WAYS:
        mine = [row for row in runs if row["way"] == way]
        ended = [row for row in mine if row["ended"] == "by itself" and row["exit_code"] == 0]
        rows[way] = {
            "command_wall_s": median(row["wall_s"] for row in ended),
            "command_cpu_s": median(row["cpu_s"] for row in ended),
            "first_epoch_s": median(row["epochs"][0]["wall_s"] for row in mine if row["epochs"]),
            **{
                f"later_{key}": median(epoch[key] for row in mine for epoch in row["epochs"][1:])
                for key in ("wall_s", "train_s", "validation_s", "cpu_s")
            },
        }
    if {"bare", "run"} <= set(rows):
        rows["bare / run"] = {
            key: round(value / rows["run"][key], 3) if value and rows["run"][key] else None
            for key, value in rows["bare"].items()
        }
    return rows


def measure(names, rounds, tag):
    machine, log = describe(), OUT / f"log-{tag}.txt"
    for name in names:
        words, marks = commands(EPOCHS)[name]
        words = [PYTHON, *map(str, words)]
        cache, path = WORK / f"cache-{name}", OUT / f"public-{name}-{tag}.json"
        runs = []
        for number in range(rounds):
            for way in WAYS if number % 2 == 0 else WAYS[::-1]:
                try:
                    runs.append({"way": way, "round": number, **once(name, way, words, marks, cache, log)})
                except Exception as error:  # the next one goes on
                    print(f"{name} {way}: {error!r}", flush=True)
                row = {
                    "name": name,
                    "tag": tag,
                    "command": words,
                    "epochs_asked": EPOCHS,
                    **machine,
                    "runs": runs,
                }
                path.write_text(json.dumps({**row, "summary": summarise(runs)}, indent=1) + "\n")
        draw(name, summarise(runs))


def once(name, way, words, marks, cache, log):
    document, is_warm = WORK / "run.json", cache.exists()
    document.unlink(missing_ok=True)
    options = ["--json", str(document), "--cache", str(cache), *shlex.split(ASKED.get("RUN_OPTIONS", ""))]
    full = words if way == "bare" else [PYTHON, "-m", "feedrate", "run", *options, "--", *words]
    row, lines = run(full, marks, WORK / "run")
    if way != "bare":
        row["cache"] = "warm" if is_warm else "cold"
        row["feedrate"] = json.loads(document.read_text()) if document.exists() else None
    with open(log, "a") as file:
        file.write(tail(f"{name} {way}", full, lines))
    shutil.rmtree(WORK / "run", ignore_errors=True)
    seconds = " ".join(f"{epoch['train_s']:.2f}+{epoch['validation_s']:.2f}" for epoch in row["epochs"])
    print(
        f"{name} {way}: {row['ended']} {row['exit_code']}, {row['wall_s']:.1f} s, {row['cpu_s']:.0f} s CPU;",
        f"epochs {seconds}",
        flush=True,
    )
    if row["exit_code"] and row["ended"] == "by itself":
        print("\n".join(line for _, line in lines[-12:]), flush=True)
    return row


def draw(name, rows):
    for way, row in rows.items():
        print(f"{name:17}{way:11}" + "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


def predict(names):
    for name in names:
        words, marks = commands(EPOCHS if "EPOCHS" in ASKED else 40)[name]
        words, path = [PYTHON, *map(str, words)], OUT / f"doctor-{name}.json"
        full = [PYTHON, "-m", "feedrate", "doctor", "--force", "--json", str(path), "--", *words]
        try:
            row, lines = run(full, marks, WORK / "run")
            with open(OUT / "log-predicted.txt", "a") as file:
                file.write(tail(f"{name} doctor", full, lines, 120))
            print(f"{name} doctor: {row['ended']} {row['exit_code']}, {row['wall_s']:.1f} s", flush=True)
            for remedy in json.loads(path.read_text())["remedies"]:
                figures = {
                    key: value for key, value in remedy.items() if isinstance(value, (int, float, dict))
                }
                print(f"  {remedy.get('name')}: {json.dumps(figures)[:300]}", flush=True)
        except Exception as error:  # the next one goes on
            print(f"{name} doctor: {error!r}", flush=True)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    predicted = len(sys.argv) == 3 and sys.argv[1] == "predicted"
    if not predicted and len(sys.argv) != 4:
        sys.exit(__doc__)
    names = sys.argv[2 if predicted else 1].split(",")
    unknown = set(names) - set(commands(1))
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    # What they import is read, and compiled, once before anything is timed.
    quiet = {"check": False, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": WORK}
    subprocess.run(
        [PYTHON, "-c", "import torch; torch.cuda.is_available() and torch.zeros(1).cuda()"], **quiet
    )
    for script in {str(commands(1)[name][0][0]): None for name in names}:
        subprocess.run([PYTHON, script, *(["fit"] if "lightning" in script else []), "--help"], **quiet)
    if predicted:
        predict(names)
    else:
        measure(names, int(sys.argv[2]), sys.argv[3])


if __name__ == "__main__":
    main()
