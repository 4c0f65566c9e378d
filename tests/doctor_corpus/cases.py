# SPDX-License-Identifier: Apache-2.0
"""The corpus: scripts that are slow for one known reason, and what would make each of them faster.

In arguments, {photos} is the folder of that kind of data (data.py), {out} an empty folder, {mount} where a
slow file system is mounted, {cores} the number of cores that can be used, {many} eight times that, {advised}
the number of workers that the doctor advised (without its advice: as many as there are cores). Cases
in which the number of cores decides say so by it: a script with two workers is short of workers on sixteen
cores, not on two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Tier = Literal["fast", "slow", "benchmark"]


@dataclass(frozen=True)
class Run:
    """One way to run a script.

    Attributes:
        surroundings: arguments of surroundings.py; empty: this machine as it is.
        pages: what is done with the page cache of the data first: "cold" drops it, "warm" fills it.
    """

    arguments: str
    environ: Mapping[str, str] = field(default_factory=dict)
    surroundings: str = ""
    pages: Literal["", "cold", "warm"] = ""


@dataclass(frozen=True)
class Case:
    """A script, why it is slow, and how that is cured.

    Attributes:
        expected: the code of the finding that must come first.
        reason: what was built in.
        remedies: the doctor's names for what `after` does; one that it proposes counts.
        after: the script with the remedy; None: there is nothing to cure, or it does not run at all.
        needs: "root", "fuse", "gpu".
        period: after so many steps everything comes round again (validation, checkpoint, epoch).
        warm_up: steps that a bare run leaves out.
        last_step: the reason ends here (the cache is warm then); 0: it does not end.
        from_start: the reason comes before the first step: bare runs are measured from their start to the
            last step.
        is_drifting: what a step costs changes as the model learns: bare runs are measured over the steps
            that the doctor watches too, however long they take.
        speedup: by the remedy, without the doctor, one round on 2 quiet cores, no GPU; None: not measured so.
        model: what the loop calls its network; tools that ask for edits want it.
    """

    name: str
    expected: str
    reason: str
    script: str
    before: Run
    after: Run | None = None
    remedies: tuple[str, ...] = ()
    launcher: Literal["python", "torchrun"] = "python"
    prepare: str = ""
    needs: frozenset[str] = frozenset()
    tier: Tier = "benchmark"
    period: int = 1
    warm_up: int = 10
    last_step: int = 0
    from_start: bool = False
    is_drifting: bool = False
    crashes: bool = False
    speedup: float | None = None
    model: str = "model"


def changed(run: Run, more: str) -> Run:
    return replace(run, arguments=f"{run.arguments} {more}".strip())


ROOT, FUSE, GPU = frozenset({"root"}), frozenset({"root", "fuse"}), frozenset({"gpu"})
LATE = "--slow {thumbnails} {mount} 4 3 40"  # 4 ms per name and open, 3 ms per read, 40 MB/s
NARROW = "--slow {slices} {mount} 0.5 0.5 16"  # a near server behind a line of 16 MB/s
SLOW_DISK = "--disk {arrays} 24"

flowers = Run("--data {large-photos} --workers {cores}")
whole = Run("{photos} --workers {cores}")
scans = Run("{scans} -j {cores}")
panoramas = Run("{photos} --workers {cores}")
speckle = Run("{thumbnails} --workers {cores}")
keypoints = Run("--root {thumbnails} --num-workers {cores}")
baseline = Run("{photos}")
fixmatch = Run("--data {photos}")
numa = Run("{photos} --workers {cores}")
clouds = Run("--workers {cores}")
frames = Run("{volume} --workers {cores}")
tiles = Run("{cells} --workers {cores}")
resnet = Run("{photos} --workers 1")
alone = Run("{photos} --workers 1 --threads 1")
spectrograms = Run("{waves} --workers {cores}")
trainer = Run("--data-dir {photos}")
shards = Run("{mount} --workers 4", surroundings=LATE)
crops = Run("{volume} --workers {cores}")
preloaded = Run("{large-photos}")
safely = Run("--out {out}")
generator = Run("--data {volume} --out {out}")
imagefolder = Run("{photos} -j 4")
every_core = Run("{photos} -j {cores}")
pets = Run("{photos} -j {cores}")
shelves = Run("{photos} --workers {cores}")
gpu_resnet = Run("{photos} --workers 8 --size 160 --batch-size 16")
cached = Run(
    "--cache {out} --workers {cores}", surroundings="--memory 460000000 --disk {arrays} 100", pages="cold"
)

CASES = (
    Case(
        "slow-server-small-files", "storage-bound", "3000 small files on a server that is 4 ms away",
        "train_folder.py",
        Run("{mount} --workers {cores}", surroundings=LATE),
        Run("{thumbnails} --workers {cores}"),
        remedies=("stage", "cache-in-memory"), speedup=10.0, needs=FUSE, tier="slow", model="net",
    ),
    Case(
        "narrow-line", "storage-bound", "arrays of 330 KB over a line of 16 MB/s",
        "train_slices.py",
        Run("{mount}/slice-*.npy --workers {cores}", surroundings=NARROW),
        Run("{slices}/slice-*.npy --workers {cores}"),
        remedies=("stage", "cache-in-memory"), needs=FUSE,
    ),
    Case(
        "camera-photos", "decode-bound",
        "JPEGs of 2 megapixels, Pillow decodes all of them for crops of 96 pixels",
        "train_flowers.py", flowers, changed(flowers, "--pack {out}/pack"), remedies=("faster-decode",),
        prepare="--data {large-photos} --write-pack {out}/pack",
        tier="benchmark",
    ),
    Case(
        "random-crops", "decode-bound",
        "a folder per class, random crops by Pillow with a worker per core; cured by feedrate.Loader",
        "train_pets.py", pets, changed(pets, "--pack {out}/pack"), remedies=("loader",),
        prepare="{photos} --write-pack {out}/pack",
    ),
    Case(
        "whole-pictures", "decode-bound",
        "whole pictures scaled by Pillow with a worker per core; cured by feedrate.Loader",
        "train_shelves.py", shelves, changed(shelves, "--pack {out}/pack"), remedies=("loader",),
        prepare="{photos} --make-pack {out}/pack", model="net",
    ),
    Case(
        "whole-photos", "decode-bound",
        "JPEGs of 0.2 megapixel, decoded whole by Pillow and made small: no crop saves anything",
        "train_whole.py", whole, changed(whole, "--pack {out}/pack"), remedies=("faster-decode",),
        prepare="{photos} --pack {out}/pack --write-pack",
    ),
    Case(
        "png-scans", "decode-bound",
        "PNGs of 0.5 megapixel, OpenCV decodes all of them for 96 pixels; inference",
        "classify_scans.py", scans, changed(scans, "--cache {out}"), remedies=("preprocess-once",),
        prepare="{scans} -j {cores} --cache {out} --prepare", model="net",
    ),
    Case(
        "panoramas-every-epoch", "repeated-work",
        "photographs are decoded, unwarped and blurred alike in every epoch, nothing is random",
        "train_panoramas.py", panoramas, changed(panoramas, "--cached"),
        remedies=("cache-in-memory", "preprocess-once"), warm_up=40,
    ),
    Case(
        "random-panoramas", "repeated-work",
        "the same before a random part of each is taken: .map() keeps the random part random",
        "train_panoramas.py", changed(panoramas, "--random"), changed(panoramas, "--random --cached"),
        remedies=("cache-in-memory", "preprocess-once"), warm_up=40,
    ),
    Case(
        "python-noise", "transform-bound", "a transform that loops over all pixels in Python, random",
        "train_speckle.py", speckle, changed(speckle, "--vectorised"), remedies=("vectorise-transform",),
        speedup=5.2,
        model="net",
    ),
    Case(
        "python-heatmaps", "transform-bound",
        "heat maps of jittered keypoints, drawn in a Python loop in __getitem__",
        "train_keypoints.py", keypoints, changed(keypoints, "--numpy-heatmaps"),
        remedies=("vectorise-transform",), speedup=3.3,
        tier="slow", model="net",
    ),
    Case(
        "no-workers", "workers-starved", "num_workers is 0, and cores are idle",
        "train_baseline.py", baseline, changed(baseline, "--workers {advised}"), remedies=("more-workers",),
        speedup=1.2,
        tier="fast",
    ),
    Case(
        "one-worker-stream", "workers-starved", "an IterableDataset with one worker; inference",
        "embed_photos.py", Run("{photos}", {"EMBED_WORKERS": "1"}), Run("{photos}",
        {"EMBED_WORKERS": "{advised}"}),
        remedies=("more-workers",),
    ),
    Case(
        "two-loaders", "workers-starved", "a labelled and an unlabelled loader, both without workers",
        "train_fixmatch.py", fixmatch, changed(fixmatch, "--workers {advised}"), remedies=("more-workers",),
        speedup=1.3,
    ),
    Case(
        "sixteen-workers-chunks", "workers-oversubscribed",
        "eight workers per core; each decompresses for itself the chunk that its neighbours have too",
        "train_chunks.py", Run("{export} --workers {many}"), Run("{export} --workers {advised}"),
        remedies=("fewer-workers",), period=192, model="net",
    ),
    Case(
        "pinned-workers", "workers-pinned", "worker_init_fn puts all workers on the first core",
        "train_numa.py", numa, changed(numa, "--no-pinning"), remedies=("unpin-workers",), tier="slow",
    ),
    Case(
        "one-shard", "workers-idle",
        "an IterableDataset of one shard on a server that is 4 ms away: three of four workers have no data",
        "train_shards.py", shards, changed(shards, "--shards 4"), remedies=("more-shards",), needs=FUSE,
        tier="slow", model="net",
    ),
    Case(
        "crops-of-clips", "large-views",
        "crops of 0.2 MB are views of clips of 7 MB, which workers hand over whole",
        "train_crops.py", crops, changed(crops, "--clone"), remedies=("clone-views",), tier="slow",
        model="net",
    ),
    Case(
        "tiles-in-chunks", "unpack-bound",
        "an HDF5 file with 64 tiles in each gzip chunk, read one by one in random order",
        "train_cells.py", tiles, changed(tiles, "--file {out}/one.h5"), remedies=("rechunk",),
        prepare="{cells} --rechunk {out}/one.h5",
    ),
    Case(
        "decoded-in-advance", "slow-start",
        "the dataset decodes all its crops when it is made, one after the other",
        "train_preloaded.py", preloaded, changed(preloaded, "--threads {cores}"),
        remedies=("decode-side-by-side",), model="net", last_step=240, from_start=True,
    ),
    Case(
        "lists-of-arrays", "handover-bound", "batches are lists of numpy arrays, 38 MB through a pipe each",
        "train_pointclouds.py", clouds, changed(clouds, "--thin-in-workers"),
        remedies=("lighter-handover",), speedup=9.8,
        model="net",
    ),
    Case(
        "float-stacks", "handover-bound", "float32 stacks of frames, 57 MB per batch through shared memory",
        "train_frames.py", frames, changed(frames, "--bytes"), remedies=("lighter-handover",
        "uint8-transfer"), speedup=2.3,
    ),
    Case(
        "python-metric", "main-thread-bound", "a metric in plain Python at every step of the training loop",
        "train_detector.py", Run(""), Run("--metric-every 20"), remedies=("speed-up-loop",), speedup=5.0,
        tier="benchmark",
    ),
    Case(
        "python-confusion", "main-thread-bound",
        "a confusion matrix over pixels, counted in the training loop by one of Python's",
        "train_labels.py", Run("{volume} --workers 1"), Run("{volume} --workers 1 --array-operations"),
        remedies=("speed-up-loop",), model="net",
    ),
    Case(
        "encoding-in-the-loop", "main-thread-bound",
        "texts are encoded by Python in the training loop, not in workers",
        "train_reviews.py", Run("{reviews}"),
        Run("{reviews} --encode-in-workers --workers {advised}"), remedies=("move-to-workers",),
    ),
    Case(
        "job-too-small", "memory-pressure",
        "233 MB of mapped float32 samples in a job that may use 460 MB: pages are read again and again",
        "train_cached.py", cached, changed(cached, "--dtype uint8"), remedies=("use-less-memory",),
        needs=ROOT,
        prepare="--cache {out} --prepare {arrays}", warm_up=40,
    ),
    Case(
        "first-epoch", "cold-cache", "nothing of the data is in memory yet, the disk gives 24 MB/s",
        "train_arrays.py",
        Run("{arrays} {cores}", surroundings=SLOW_DISK, pages="cold"),
        Run("{arrays} {cores}", surroundings=SLOW_DISK, pages="warm"),
        remedies=("warm-page-cache", "cache-in-memory"), speedup=3.1, needs=ROOT, tier="slow",
        last_step=150, model="net",
    ),
    Case(
        "spawned-workers", "epoch-start-pause",
        "spawned workers start anew every 15 batches and import torch",
        "train_spawn.py", Run("--root {photos}"), Run("--root {photos} --keep-workers"),
        remedies=("persistent-workers",), speedup=6.5, period=15,
    ),
    Case(
        "catalogue-per-worker", "epoch-start-pause",
        "a catalogue of Python objects is pickled for every spawned worker, every 16 batches",
        "train_catalogue.py", Run(""), Run("--persistent"), remedies=("persistent-workers",),
        period=16, warm_up=16,
    ),
    Case(
        "annotations-per-worker", "epoch-start-pause",
        "each new worker parses a large file first, every 12 batches",
        "train_boxes.py", Run("--root {annotated-photos}"), Run("--root {annotated-photos} --persistent"),
        remedies=("persistent-workers",), period=12, model="net",
    ),
    Case(
        "validation-all-the-time", "validation-bound", "a whole validation every 20 steps; a trainer class",
        "train_trainer.py", trainer, changed(trainer, "--val-check-interval 400"),
        remedies=("fewer-evaluations",),
        tier="benchmark", period=20, model="module",
    ),
    Case(
        "checkpoints-all-the-time", "checkpoint-bound",
        "57 MB of weights and moments saved every second step",
        "train_safely.py", safely, changed(safely, "--save-every 40"), remedies=("fewer-checkpoints",),
        period=2,
    ),
    Case(
        "previews-all-the-time", "write-bound",
        "four PNGs and a line of a log, each synced to disk, at every step",
        "train_generator.py", generator, changed(generator, "--preview-every 20"),
        remedies=("write-less",), speedup=6.3,
        model="net", is_drifting=True,
    ),
    Case(
        "uneven-ranks", "slow-rank", "two ranks; the second one has all large pictures",
        "train_ddp.py", Run("--data {uneven-photos}"), Run("--data {uneven-photos} --split strided"),
        remedies=("balance-ranks",), speedup=1.7, launcher="torchrun",
    ),
    Case(
        "docker-shm", "shm-too-small", "/dev/shm holds 64 MB, as in a container: workers die of a bus error",
        "train_clips.py", Run("{volume} --workers 2", surroundings="--shm 64000000"), None, needs=ROOT,
        tier="benchmark", crashes=True, model="net",
    ),
    Case(
        "crowded-machine", "contended", "other people's processes burn as many cores as there are",
        "train_resnet.py", replace(alone, surroundings="--crowd {cores}"), alone,
        remedies=("stop-others",),
        tier="benchmark",
    ),
    Case(
        "crowded-loader", "contended", "the same for a script whose loader is the larger part",
        "train_numa.py", Run("{photos} --workers {cores} --no-pinning", surroundings="--crowd {cores}"),
        Run("{photos} --workers {cores} --no-pinning"), remedies=("stop-others",),
    ),
    Case(
        "spectrograms-every-epoch", "repeated-work",
        "the same spectrograms are computed in every epoch, no randomness",
        "train_spectrograms.py", spectrograms, changed(spectrograms, "--cache {out}/mel"),
        remedies=("preprocess-once",), speedup=12.0, prepare="{waves} --prepare --cache {out}/mel",
        tier="benchmark",
        model="net",
    ),
    Case(
        "healthy-resnet", "device-bound", "healthy: a residual network, one worker keeps up",
        "train_resnet.py", resnet, tier="benchmark",
    ),
    Case("healthy-gpt", "device-bound", "healthy: a small transformer on tokens", "train_gpt.py",
    Run("{tokens}")),
    Case(
        "healthy-evaluation", "device-bound", "healthy: evaluation with test-time augmentation",
        "evaluate_resnet.py", Run("{photos}"), model="network",
    ),
    Case(
        "gpu-unpinned-floats", "copy-bound", "300 MB of unpinned float32 per step to the GPU",
        "gpu_segment.py", Run(""), Run("--pinned"), remedies=("pinned-memory",), needs=GPU, model="net",
    ),
    Case(
        "gpu-floats", "copy-bound", "300 MB of pinned float32 per step to the GPU that could be uint8",
        "gpu_segment.py", Run("--pinned"), Run("--pinned --uint8"), remedies=("uint8-transfer",), needs=GPU,
        model="net",
    ),
    Case(
        "gpu-item-everywhere", "sync-bound", "two .item() per sample, to count the right answers",
        "gpu_accuracy.py", Run(""), Run("--count-on-gpu"), remedies=("remove-sync",), needs=GPU,
    ),
    Case(
        "gpu-logits-home", "readback-bound", "350 MB of logits per batch to the CPU; inference",
        "gpu_masks.py", Run(""), Run("--choose-on-gpu"), remedies=("keep-on-device",), needs=GPU,
        model="net",
    ),
    Case(
        "gpu-forgotten", "gpu-unused", "a GPU is there, the network stays on the CPU",
        "train_resnet.py", gpu_resnet, changed(gpu_resnet, "--device cuda"), remedies=("use-gpu",), needs=GPU,
    ),
    Case(
        "gpu-one-worker", "workers-starved", "one worker for a GPU and more than ten idle cores",
        "train_resnet.py", Run("{photos} --workers 1 --size 160 --epochs 400 --device cuda"),
        Run("{photos} --workers {advised} --size 160 --epochs 400 --device cuda"), remedies=("more-workers",),
        needs=GPU,
    ),
    Case(
        "gpu-four-workers", "workers-starved",
        "ResNet-18 on a GPU, four workers of ImageFolder; cured by feedrate.Loader",
        "gpu_imagefolder.py", imagefolder, changed(imagefolder, "--pack {out}/pack"), remedies=("loader",),
        prepare="{photos} --write-pack {out}/pack", needs=GPU,
    ),
    Case(
        "gpu-worker-per-core", "decode-bound",
        "ResNet-18 on a GPU, a worker of ImageFolder per core; cured by feedrate.Loader",
        "gpu_imagefolder.py", every_core, changed(every_core, "--pack {out}/pack"), remedies=("loader",),
        prepare="{photos} --write-pack {out}/pack", needs=GPU,
    ),
    Case(
        "gpu-healthy", "device-bound", "healthy: a wide residual network on the GPU, the workers keep up",
        "train_resnet.py",
        Run("{photos} --workers {cores} --size 224 --batch-size 8 --width 256 --repeat 40 --device cuda"),
        needs=GPU,
    ),
)  # fmt: skip
