# SPDX-License-Identifier: Apache-2.0
"""Diagnoses as real runs give them, made up: for tests of what is drawn from them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_origin, get_type_hints

from feedrate.cli.output import dump_document
from feedrate.doctor.results import (
    Curve,
    Diagnosis,
    Fact,
    Finding,
    HotLine,
    Overhead,
    Rate,
    Remedy,
    RunFacts,
    SamplePart,
    StepRow,
    TimeShare,
    load_diagnosis,
)
from support.bench_results import MACHINE

NASTY = "<script>alert(1)</script>\"'&\x1b[31m\n\udcff"
FULL = {"real": 110, "drain": 24, "again": 24, "trial": 30, "replay": 30, "replay-half-precision": 20}


def make_timeline(
    wait_s: float,
    parts: Mapping[str, float],
    *,
    phases: Mapping[str, int] = FULL,
    exposed: float = 0.95,
    ranks: int = 1,
    seed: int = 1,
) -> tuple[StepRow, ...]:
    """Return steps whose wait comes in lumps, as that of a loader with workers does."""
    draw = random.Random(seed)
    rows: list[StepRow] = []
    for rank in range(ranks):
        now = 0.0
        for phase, steps in phases.items():
            is_trained = phase not in ("drain", "again")
            for number in range(steps):
                lump = 2.6 if number % 8 == 0 else 0.77
                wait = wait_s * lump * draw.uniform(0.85, 1.15)
                wait *= {"again": 0.9, "trial": 0.6, "replay": 0.0, "replay-half-precision": 0.0}.get(
                    phase, 1.0
                )
                speed = 0.6 if phase == "replay-half-precision" else 1.0
                work = {n: s * speed * draw.uniform(0.97, 1.03) for n, s in parts.items() if is_trained}
                if phase == "real" and number == 60:
                    work["save"] = 4 * (wait_s + sum(parts.values()))
                wall = wait + 1.02 * sum(work.values()) + 0.0005
                rows.append(StepRow(now, wall, wait, exposed * wait, work, phase, rank))
                now += wall
            now += 0.8
    return tuple(sorted(rows, key=lambda row: (row.start_s, row.rank)))


def make_curve(
    name: str,
    unit: str,
    value: Callable[[float], float | None],
    limit: float | None,
    *,
    seconds: float = 60.0,
) -> Curve:
    times = tuple(0.5 * n for n in range(int(2 * seconds)))
    return Curve(name, unit, times, tuple(value(t) for t in times), limit)


def make_run(**changes: object) -> RunFacts:
    run = RunFacts(
        mode="experiments",
        exit_code=None,
        seconds=71.4,
        steps=110,
        warmup_steps=10,
        samples_per_step=256.0,
        seconds_per_step=0.312,
        samples_per_s=820.5,
        exposed_wait_share=0.66,
        device="NVIDIA H200",
        ranks=1,
        workers=16,
        usable_cores=16.0,
        unseen=("no validation in 110 steps: use --passive to see one",),
        experiments=(
            "24 batches taken from the loader without training",
            "the same samples once more",
            "30 steps on batches kept in memory",
            "the same under autocast to bfloat16",
        ),
    )
    return replace(run, **changes)


DECODE = Remedy(
    "faster-decode",
    "decode with feedrate.Loader, from a pack",
    2.4,
    2.0,
    2.8,
    "device-bound",
    command="feedrate pack /data/imagenet/train PACK",
    change='loader = feedrate.Loader("PACK", batch_size=256, ...)',
    note="its kernel decoded 1,480 of these very images per second and core",
)
HALF = Remedy(
    "half-precision",
    "train under autocast to bfloat16",
    1.0,
    0.98,
    1.03,
    "decode-bound",
    note="the device waits already: a faster one would wait longer",
)
PACK = Remedy("pack", "packing alone", 1.0, 0.99, 1.02, note="reads are 1% of the time")
PIN = Remedy("pinned-memory", "pinned memory", 1.01, 1.0, 1.02, note="copies are 0.9% of the time")


def make_decode_bound() -> Diagnosis:
    """ImageNet through Pillow on all 16 cores: the device could take three times as much."""
    remedies = (
        DECODE,
        Remedy(
            "preprocess-once",
            "store the images resized to 256 pixels",
            1.9,
            1.7,
            2.2,
            "decode-bound",
            command="feedrate pack /data/imagenet/train PACK --resize 256",
            note="changes the pixels: random crops lose detail",
        ),
        PACK,
        PIN,
        HALF,
    )
    findings = (
        Finding(
            "decode-bound",
            0.66,
            "Pillow's decoding of JPEGs",
            "All cores decode JPEGs with Pillow, and the device waits for them.",
            (
                "the loader gives at most 824 samples/s, the device could take 2,710",
                "decoding is 14.1 ms of the 19.0 ms that a sample takes in a worker",
                "16 workers keep 15.8 of 16 cores busy: more workers give nothing (tried: 0.99x)",
            ),
            {
                "loader_samples_per_s": 824.1,
                "device_samples_per_s": 2710.0,
                "decode_s_per_sample": 0.0141,
                "decoder": "PIL.ImageFile.load",
            },
            (DECODE, remedies[1]),
        ),
        Finding(
            "sync-bound",
            0.021,
            ".item() at train.py:58 waits for the device every step",
            "The loss is read every step.",
            ("loss.item() at train.py:58: 6.5 ms a step",),
            {},
            (),
        ),
    )
    return Diagnosis(
        command=("python", "train.py", "--data", "/data/imagenet"),
        verdict="decode-bound: the device stands idle for 66% of the time, waiting for Pillow to decode "
        "JPEGs on 16 busy cores; feedrate's decoder would make this run 2.4x as fast.",
        findings=findings,
        remedies=remedies,
        run=make_run(),
        split=(
            TimeShare("waiting for data", 0.2138, 0.685, 0.2061),
            TimeShare("copy to the device", 0.0028, 0.009, detail="float32, pinned, 154 MB"),
            TimeShare("forward", 0.0281, 0.090),
            TimeShare("backward", 0.0518, 0.166),
            TimeShare("optimizer", 0.0053, 0.017),
            TimeShare("synchronising", 0.0065, 0.021, detail="train.py:58"),
            TimeShare("other", 0.0037, 0.012),
        ),
        sample=(
            SamplePart("read", "open", 0.00006, 0.00001, 0.00013, 0.0105),
            SamplePart("decode", "PIL.ImageFile.load", 0.0134, 0.0006, 0.0001, 0.742),
            SamplePart("transform", "RandomResizedCrop", 0.0021, 0.0001, 0.0, 0.116),
            SamplePart("transform", "ToTensor", 0.0009, 0.00005, 0.0, 0.05),
            SamplePart("transform", "Normalize", 0.0005, 0.00002, 0.0, 0.0274),
            SamplePart("rest", "__getitem__", 0.0002, 0.00001, 0.0, 0.011),
            SamplePart("collate", "default_collate", 0.0006, 0.00003, 0.0, 0.0332),
            SamplePart("hand-over", "pickling and shared memory", 0.00015, 0.00001, 0.0, 0.0084),
        ),
        hot_lines=(
            HotLine(
                "/home/ada/project/data.py:31",
                "load",
                "worker",
                0.71,
                "image = Image.open(path).convert('RGB')",
            ),
            HotLine(
                "/home/ada/project/data.py:44",
                "__getitem__",
                "worker",
                0.18,
                "return self.transform(image), label",
            ),
            HotLine("/home/ada/project/train.py:58", "train", "main", 0.03, "total += loss.item()"),
        ),
        rates=(
            Rate("real", "the run as it is", 820.5, 806.0, 833.0, 100),
            Rate("loader", "the loader alone", 824.1, 815.2, 836.4, 24),
            Rate("loader-again", "the same samples again, from memory", 829.9, 820.0, 838.2, 24),
            Rate("trial-24-workers", "the loader with 24 workers", 816.0, 790.0, 829.0, 30),
            Rate("kernel", "feedrate's decoder on the same samples", 18_900.0, 18_100.0, 19_600.0, 24),
            Rate("device", "the device alone, on batches kept in memory", 2710.0, 2688.0, 2731.0, 30),
            Rate("device-half-precision", "the device alone, under bfloat16", 4480.0, 4430.0, 4530.0, 20),
        ),
        timeline=make_timeline(
            0.214,
            {"copy": 0.0028, "forward": 0.0281, "backward": 0.0518, "optimizer": 0.0053, "sync": 0.0065},
        ),
        curves=(
            make_curve("cores busy", "cores", lambda t: 15.8 - 0.3 * math.sin(t) if t < 40 else 3.1, 16.0),
            make_curve(
                "GPU 0, busy", "share", lambda t: 0.31 + 0.04 * math.sin(t / 2) if t < 40 else 0.97, 1.0
            ),
            make_curve("GPU 0, memory used", "B", lambda t: 21.4e9 + 0 * t, 150e9),
            make_curve("GPU 0, power", "W", lambda t: 210 + 15 * math.sin(t) if t < 40 else 640.0, 700.0),
            make_curve("memory used", "B", lambda t: 18e9 + 2e7 * t, 128e9),
            make_curve("disks, read", "B/s", lambda t: 96e6 + 8e6 * math.sin(3 * t) if t < 40 else 0.0, None),
            make_curve("NFS, round trip", "s", lambda t: None if 20 < t < 26 else 0.0005, None),
        ),
        facts=(
            Fact("dataset", "data.Photos, 1,281,167 samples"),
            Fact("loader", "DataLoader, made at train.py:31"),
            Fact("persistent workers", "True"),
            Fact("pinned memory", "True"),
            Fact("batch", "float32 256x3x224x224, int64 256"),
            Fact("torch", "2.11.0, 16 threads"),
            Fact("data lies in", "/data/imagenet/train"),
            Fact("file system", "ext4 (/dev/nvme0n1), solid state"),
            Fact("in the page cache", "100%"),
            Fact("memory limit", "128 GB"),
            Fact("cores used by others", "0.1"),
            Fact("PCIe", "unknown"),
        ),
        overhead=Overhead(0.00009, 0.0003, 80, 20),
        machine=MACHINE,
    )


def make_device_bound() -> Diagnosis:
    """The good case."""
    half = Remedy(
        "half-precision",
        "train under autocast to bfloat16",
        1.62,
        1.55,
        1.69,
        "device-bound",
        basis="measured",
        change='with torch.autocast("cuda", dtype=torch.bfloat16): ...',
        note="check the accuracy",
    )
    last = Remedy(
        "channels-last",
        "put model and images into channels-last order",
        1.2,
        1.05,
        1.35,
        "device-bound",
        change="model.to(memory_format=torch.channels_last)",
    )
    more = Remedy(
        "more-workers", "more workers", 1.0, 1.0, 1.0, note="the device never waits: 0.3% of the time"
    )
    return replace(
        make_decode_bound(),
        command=("torchrun", "--nproc-per-node=1", "train.py", "--synthetic"),
        verdict="healthy: device-bound. The device is busy 99% of the time; the loader could feed 3.4 such.",
        findings=(
            Finding(
                "device-bound",
                0.99,
                "the device is busy",
                "The device is the slowest part.",
                (
                    "the device takes 2,710 samples/s, the loader could give 9,330",
                    "waiting for data: 0.9 ms of 94.5 ms a step, 0.3 ms of it exposed",
                ),
                {"device_samples_per_s": 2710.0},
                (half, last),
            ),
        ),
        remedies=(half, last, more, replace(PACK, note="the device never waits for data")),
        run=make_run(
            seconds_per_step=0.0945, samples_per_s=2709.0, exposed_wait_share=0.003, seconds=24.0, unseen=()
        ),
        split=(
            TimeShare("waiting for data", 0.0009, 0.0095, 0.0003),
            TimeShare("copy to the device", 0.0012, 0.0127),
            TimeShare("forward", 0.0301, 0.3185),
            TimeShare("backward", 0.0552, 0.5841),
            TimeShare("optimizer", 0.0058, 0.0614),
            TimeShare("other", 0.0013, 0.0138),
        ),
        sample=(SamplePart("transform", "randn", 0.001, 0.0, 0.0, 1.0),),
        hot_lines=(),
        rates=(
            Rate("real", "the run as it is", 2709.0, 2700.0, 2716.0, 100),
            Rate("device", "the device alone, on batches kept in memory", 2718.0, 2709.0, 2725.0, 30),
            Rate("loader", "the loader alone", 9330.0, 9010.0, 9610.0, 24),
        ),
        timeline=make_timeline(
            0.0009, {"copy": 0.0012, "forward": 0.0301, "backward": 0.0552, "optimizer": 0.0058}, exposed=0.3
        ),
        overhead=Overhead(-0.00001, -0.0001, 80, 20),
    )


def make_storage_bound() -> Diagnosis:
    """Small files on NFS, and nearly everything that can be said beside it."""
    stage = Remedy(
        "stage",
        "copy the dataset to /scratch/ada (1.1 TB free)",
        5.2,
        4.4,
        6.1,
        "decode-bound",
        note="146 GB at 230 MB/s: 11 minutes, once per node",
    )
    cache = Remedy(
        "cache-in-ram",
        "keep the files in memory",
        5.4,
        4.6,
        6.3,
        "decode-bound",
        note="does not fit: 146 GB of files, this job may use 128 GB",
    )
    pack = Remedy(
        "pack",
        "pack the dataset into shards on the same mount",
        3.1,
        2.6,
        3.7,
        "storage-bound",
        command="feedrate pack /net/datasets/plankton PACK",
    )
    workers = Remedy(
        "more-workers",
        "use 32 workers instead of 8",
        2.2,
        1.8,
        2.6,
        "storage-bound",
        basis="measured",
        change="DataLoader(..., num_workers=32)",
        note="oversubscribes 16 cores 2x",
    )
    findings = (
        Finding(
            "storage-bound",
            0.81,
            "many small files on a network mount",
            "Each sample is a file of its own on NFS; opening one costs a round trip.",
            (
                "a sample takes 41 ms in a worker, 36 ms of it blocked in open() and read()",
                "38 KB a file, 1.9 round trips each: 7.4 MB/s, where the mount gives 230 MB/s in one stream",
                "the same samples again, from memory: 5.6x as fast",
                "0% of the files looked at are in the page cache, and they do not fit into this job's limit",
            ),
            {"mount": "nfs4", "bytes_per_s": 7.4e6},
            (stage, pack, workers),
        ),
        Finding("cold-cache", 0.30, "this was the first epoch", "", ("0% resident",)),
        Finding(
            "memory-pressure", 0.05, "memory grows by 41 MB a step in worker 3: full in 31 minutes", "", ()
        ),
        Finding("epoch-start-pause", 0.03, "workers are started anew each epoch: 4.1 s", "", ()),
        Finding("contended", 0.02, "other users' processes take 3.2 of 16 cores", "", ()),
        Finding("checkpoint-bound", 0.01, "torch.save at train.py:90 takes 2.2 s every 200 steps", "", ()),
    )
    return replace(
        make_decode_bound(),
        command=("srun", "--gpus=1", "python", "-m", "plankton.train", "fold=3"),
        verdict="storage-bound: 81% of the time goes into waiting for small files from an NFS mount "
        "(fileserver:/datasets); from local disk this run would be 5.2x as fast.",
        findings=findings,
        remedies=(
            stage,
            pack,
            workers,
            PIN,
            HALF,
            replace(DECODE, predicted_speedup=1.02, low=1.0, high=1.05, note="decoding is 6% of the time"),
            replace(cache, predicted_speedup=1.0),
        ),
        run=make_run(
            samples_per_s=195.2,
            seconds_per_step=1.31,
            exposed_wait_share=0.81,
            workers=8,
            seconds=172.0,
            unseen=(
                "no validation in 110 steps: use --passive to see one",
                "no checkpoint in 110 steps: use --passive to see one",
                "the end of an epoch was not reached",
            ),
        ),
        split=(
            TimeShare("waiting for data", 1.074, 0.82, 1.061),
            TimeShare("epoch start", 0.041, 0.031),
            TimeShare("copy to the device", 0.021, 0.016, detail="float32, not pinned"),
            TimeShare("forward", 0.051, 0.039),
            TimeShare("backward", 0.092, 0.07),
            TimeShare("optimizer", 0.008, 0.006),
            TimeShare("saving", 0.013, 0.01, detail="train.py:90"),
            TimeShare("other", 0.010, 0.008),
        ),
        sample=(
            SamplePart("read", "open", 0.0002, 0.0001, 0.0214, 0.527),
            SamplePart("read", "read", 0.0003, 0.0001, 0.0146, 0.364),
            SamplePart("decode", "cv2.imdecode", 0.0021, 0.0001, 0.0, 0.053),
            SamplePart("transform", "plankton.data.augment", 0.0019, 0.0001, 0.0, 0.048),
        ),
        facts=(
            Fact("file system", "nfs4 (fileserver:/datasets)"),
            Fact("data lies in", "/net/datasets/plankton"),
            *(Fact(f"NFS option {n}", f"value {n}, and some more words about it") for n in range(24)),
            Fact("pinned memory", "False"),
            Fact("batch", "float32 256x1x128x128"),
        ),
        timeline=make_timeline(
            1.07, {"copy": 0.021, "forward": 0.051, "backward": 0.092, "optimizer": 0.008}, seed=2
        ),
        rates=(
            Rate("real", "the run as it is", 195.2, 171.0, 214.0, 100),
            Rate("loader", "the loader alone", 197.0, 170.0, 220.0, 24),
            Rate("loader-again", "the same samples again, from memory", 1103.0, 1040.0, 1170.0, 24),
            Rate("trial-32-workers", "the loader with 32 workers", 431.0, 360.0, 509.0, 30),
            Rate("device", "the device alone, on batches kept in memory", 1321.0, 1300.0, 1340.0, 30),
        ),
    )


def make_ended_early() -> Diagnosis:
    """A script of seven steps: over before anything could be tried."""
    first = replace(
        make_decode_bound().findings[0],
        share=0.4,
        evidence=("waiting for data: 120 of 300 ms a step",),
        remedies=(),
    )
    return replace(
        make_decode_bound(),
        command=("python", "-c", "import train; train.main(steps=7)"),
        verdict="decode-bound, as far as 7 steps can tell: 40% of the time is spent waiting for Pillow.",
        findings=(first,),
        remedies=(replace(DECODE, predicted_speedup=1.4, low=1.0, high=1.7, next_bottleneck=None),),
        run=make_run(
            mode="ended",
            exit_code=0,
            steps=7,
            warmup_steps=2,
            seconds=4.2,
            experiments=(),
            workers=2,
            seconds_per_step=0.3,
            samples_per_s=853.0,
            exposed_wait_share=0.4,
            unseen=("the script ended after 7 steps, before the experiments: predictions are wide",),
        ),
        split=(TimeShare("waiting for data", 0.12, 0.4, 0.12), TimeShare("everything else", 0.18, 0.6)),
        sample=(),
        hot_lines=(),
        rates=(Rate("real", "the run as it is", 853.0, 610.0, 990.0, 5),),
        timeline=make_timeline(0.12, {"forward": 0.1, "backward": 0.08}, phases={"real": 7}),
        curves=(Curve("cores busy", "cores", (0.0, 2.0), (1.9, None), 2.0),),
        overhead=None,
    )


def make_no_gpu() -> Diagnosis:
    """A CPU as the device, and a Python loop in a transform."""
    vector = Remedy(
        "vectorise", "replace the loop at augment.py:17 by array operations", 3.3, 2.7, 4.0, "device-bound"
    )
    workers = Remedy(
        "more-workers",
        "use 1 worker",
        1.25,
        1.15,
        1.35,
        "transform-bound",
        basis="measured",
        change="DataLoader(..., num_workers=1)",
    )
    return replace(
        make_decode_bound(),
        command=("python3.12", "train.py"),
        verdict="transform-bound: a Python loop at augment.py:17 takes 70% of the time, on one core.",
        findings=(
            Finding(
                "transform-bound",
                0.70,
                "a Python loop in a transform",
                "The loop runs in the interpreter, pixel by pixel.",
                (
                    "84% of the looks at the loading thread fall on augment.py:17 (add_noise)",
                    "1.0 of 2 cores is busy while data is made",
                ),
                {},
                (vector, workers),
            ),
            Finding("gpu-unused", 0.0, "a GPU is there, but this torch was built without CUDA", "", ()),
        ),
        remedies=(vector, workers, PACK),
        run=make_run(
            device="cpu",
            workers=0,
            usable_cores=2.0,
            samples_per_step=32.0,
            seconds_per_step=0.731,
            samples_per_s=43.8,
            exposed_wait_share=0.7,
            seconds=96.0,
        ),
        split=(
            TimeShare("waiting for data", 0.512, 0.70, 0.512),
            TimeShare("forward", 0.08, 0.109),
            TimeShare("backward", 0.121, 0.166),
            TimeShare("optimizer", 0.012, 0.016),
            TimeShare("other", 0.006, 0.009),
        ),
        sample=(
            SamplePart("transform", "AddNoise", 0.0134, 0.0001, 0.0, 0.84),
            SamplePart("decode", "PIL.ImageFile.load", 0.0021, 0.0, 0.0, 0.13),
            SamplePart("collate", "default_collate", 0.0004, 0.0, 0.0, 0.03),
        ),
        hot_lines=(HotLine("augment.py:17", "add_noise", "main", 0.84, "for x in range(width):"),),
        rates=(
            Rate("real", "the run as it is", 43.8, 42.0, 45.1, 100),
            Rate("loader", "the loader alone", 62.5, 61.0, 64.0, 24),
            Rate("device", "the steps alone, on batches kept in memory", 146.0, 141.0, 150.0, 30),
        ),
        timeline=make_timeline(0.512, {"forward": 0.08, "backward": 0.121, "optimizer": 0.012}, seed=3),
        curves=(
            make_curve("cores busy", "cores", lambda t: 1.0 if int(t) % 2 else 1.6, 2.0),
            make_curve("memory used", "B", lambda t: 1.2e9 + 0 * t, None),
        ),
        facts=(Fact("GPU", "NVIDIA A10, driver 570, not usable by this torch"), Fact("torch", "2.11.0+cpu")),
    )


def make_evaluation_only() -> Diagnosis:
    """No optimizer: a step is a next()."""
    keep = Remedy(
        "readback",
        "keep outputs on the device until the end",
        1.45,
        1.35,
        1.55,
        "decode-bound",
        change="outputs.append(y)  # and .cpu() once, after the loop",
    )
    return replace(
        make_decode_bound(),
        command=("python", "embed.py", "--split", "test"),
        verdict="readback-bound: 31% of the time goes into bringing outputs back to the CPU, every step.",
        findings=(
            Finding(
                "readback-bound",
                0.31,
                "outputs brought back every step",
                "Each .cpu() waits for the device and leaves it idle afterwards.",
                (".cpu() at embed.py:22: 39 ms a step, 205 MB each",),
                {},
                (keep,),
            ),
        ),
        remedies=(keep, PACK),
        run=make_run(
            mode="passive",
            exit_code=0,
            steps=195,
            warmup_steps=10,
            seconds=24.9,
            samples_per_s=2031.0,
            seconds_per_step=0.126,
            exposed_wait_share=0.02,
            unseen=(),
            experiments=(),
        ),
        split=(
            TimeShare("waiting for data", 0.004, 0.03, 0.0025),
            TimeShare("forward", 0.081, 0.643),
            TimeShare("outputs to the CPU", 0.039, 0.31, detail="embed.py:22"),
            TimeShare("other", 0.002, 0.017),
        ),
        timeline=make_timeline(0.004, {"copy": 0.003, "forward": 0.078, "sync": 0.039}, phases={"real": 195}),
    )


def make_eight_ranks() -> Diagnosis:
    """One of them is slower, and the others wait for it in backward."""
    even = Remedy("even-ranks", "move rank 5's other process elsewhere", 1.3, 1.2, 1.4, "device-bound")
    return replace(
        make_decode_bound(),
        command=("torchrun", "--nproc-per-node=8", "train.py"),
        verdict="slow-rank: rank 5 is 1.31x slower than the others, and all wait for it.",
        findings=(
            Finding(
                "slow-rank",
                0.23,
                "rank 5 is slower",
                "Another process uses the GPU of rank 5.",
                ("rank 5 takes 402 ms a step, the median of the others 307 ms",),
                {"rank": 5},
                (even,),
            ),
        ),
        remedies=(even, PACK),
        run=make_run(
            ranks=8,
            workers=8,
            usable_cores=96.0,
            samples_per_step=2048.0,
            samples_per_s=5094.0,
            seconds_per_step=0.402,
        ),
        timeline=make_timeline(
            0.02, {"forward": 0.1, "backward": 0.2, "optimizer": 0.02, "copy": 0.01}, ranks=8
        ),
    )


def make_nothing_found() -> Diagnosis:
    return replace(
        make_device_bound(),
        verdict="healthy: no cause costs more than 3% of the time.",
        findings=(),
        remedies=(),
        sample=(),
        hot_lines=(),
        rates=(),
        curves=(),
        facts=(),
        timeline=(),
    )


def make_nasty() -> Diagnosis:
    """Every text that a user or a stranger could have chosen is meant to do harm."""
    whole = make_decode_bound()
    remedy = replace(
        DECODE,
        name=NASTY,
        title=NASTY,
        command=NASTY,
        change=NASTY,
        note=NASTY,
        next_bottleneck=NASTY,
        basis=NASTY,
    )
    return replace(
        whole,
        command=(NASTY, NASTY),
        verdict=NASTY,
        findings=(Finding(NASTY, 0.5, NASTY, NASTY, (NASTY,), {NASTY: NASTY}, (remedy,)),) * 2,
        remedies=(remedy, replace(remedy, predicted_speedup=1.0)),
        run=make_run(device=NASTY, mode=NASTY, unseen=(NASTY,), experiments=(NASTY,)),
        split=(TimeShare(NASTY, 0.1, 1.0, 0.1, NASTY),),
        sample=(SamplePart(NASTY, NASTY, 0.1, 0.1, 0.1, 1.0),),
        hot_lines=(HotLine(NASTY, NASTY, NASTY, 0.5, NASTY),),
        rates=(Rate(NASTY, NASTY, 1.0, 0.9, 1.1, 3),),
        timeline=tuple(replace(row, phase=NASTY, parts={NASTY: 0.1}) for row in whole.timeline[:20]),
        curves=tuple(replace(curve, name=NASTY, unit=NASTY) for curve in whole.curves[:1]),
        facts=(Fact(NASTY, NASTY),),
        machine=replace(MACHINE, cpu_model=NASTY, versions={NASTY: NASTY}, command_line=(NASTY,)),
    )


_ODD_TEXTS = (
    "",
    NASTY,
    "a",
    "real",
    "wait",
    "\u4f60\u597d " * 9,
    "\u202e\u0301",
    "x" * 300,
    "a word " * 60,
    "{}%s\x00",
)
_ODD_NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 1e-12, 1e300, -1e300, math.nan, math.inf, -math.inf)
_ODD_COUNTS = (0, 1, 2, -1, 7, 10**9, 10**400)


def make_odd(draw: random.Random, kind: object = Diagnosis) -> Any:
    """Return a value of a type, of a whole diagnosis by default, that no run would give."""
    if kind is None or kind is type(None):
        return None
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{one.name: make_odd(draw, hints[one.name]) for one in fields(kind)})
    if kind in _ODD:
        return draw.choice(_ODD[kind])
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple(make_odd(draw, inner[0]) for _ in range(draw.choice((0, 1, 2, 3, 9))))
    if origin is Mapping:
        return {make_odd(draw, inner[0]): make_odd(draw, inner[1]) for _ in range(draw.randrange(4))}
    return make_odd(draw, draw.choice(inner))


_ODD: Mapping[object, Sequence[object]] = {str: _ODD_TEXTS, float: _ODD_NUMBERS, int: _ODD_COUNTS}


DIAGNOSES: Mapping[str, Callable[[], Diagnosis]] = {
    "decode-bound": make_decode_bound,
    "device-bound": make_device_bound,
    "storage-bound": make_storage_bound,
    "ended-early": make_ended_early,
    "no-gpu": make_no_gpu,
    "evaluation-only": make_evaluation_only,
    "eight-ranks": make_eight_ranks,
    "nothing-found": make_nothing_found,
}


def write(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the document of a diagnosis."""
    document = json.loads(dump_document("doctor", diagnosis))
    assert isinstance(document, dict)
    return document


def reread(diagnosis: Diagnosis) -> Diagnosis:
    """Return a diagnosis as it comes back from its document."""
    return load_diagnosis(write(diagnosis))


def rerun(before: Diagnosis, speedup: float, **changes: Any) -> Diagnosis:
    """Return the run once more, that much faster."""
    run = replace(before.run, samples_per_s=before.run.samples_per_s * speedup, **changes.pop("run", {}))
    return replace(before, run=run, **changes)


if __name__ == "__main__":
    # Draws what the tests compare with anew. Look at the difference before committing it.
    from feedrate.report.doctor import draw_diagnosis
    from support.paths import DATA

    for name, make in DIAGNOSES.items():
        (DATA / "doctor" / f"{name}.txt").write_text(draw_diagnosis(make()))
