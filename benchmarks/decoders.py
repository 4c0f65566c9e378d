# SPDX-License-Identifier: Apache-2.0
"""How many images per second of CPU time, decoder against decoder on one thread, and which step takes it?

The decoders are those that people train with, and the jobs what they decode for: crops of training, the
centre of evaluation, CLIP's nearly whole crops, whole images, diffusion's large squares (image_decoders.py).
Every decoder reads its file from the page cache; only feedrate checks a crc. Those called `reduced` let
libjpeg decode at a half, a quarter or an eighth where the crop allows it: fast on large pictures, and other
pixels. Where the kernel's time goes is found by its own profile. simplejpeg and OpenCV take part where they
are installed.

    python benchmarks/decoders.py [FOLDER|PACK] --json benchmarks/results/kernel-made.json

Without a source it makes photographs of 0.2 megapixel, pictures of 12 megapixels as cameras write them (4:2:0
and quality 92, about 4 MB; soft at the scale of single pixels, under the noise of a sensor), and PNG files.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from image_decoders import DECODERS, FEEDRATE, JOBS, PILLOW, Decoder, Task, decode_with_pillow, on_one_thread
from PIL import Image
from threads import say

from feedrate import kernel
from feedrate.draws import pick
from feedrate.errors import SourceError
from feedrate.filters import FILTERS, Interpolation
from feedrate.format.fields import has_image_suffix
from feedrate.format.manifest import is_pack
from feedrate.kernel import I64, Ranges
from feedrate.lab.decode import Samples, compare_pixels, open_files, open_pack
from feedrate.lab.photographs import CLASSES, F32, cut_texture, draw_scene, make_photograph
from feedrate.loader.packs import open_pack as open_anywhere
from feedrate.machine.describe import describe_machine
from feedrate.machine.results import Machine
from feedrate.progress import Rejection
from feedrate.stats import median, median_ratio, spread

SOURCE_IMAGES = 100  # of a folder or a pack, unless the user says otherwise
_JPEG = b"\xff\xd8"


@dataclass(frozen=True, slots=True)
class KernelStage:
    """A step of decoding: CPU time per image, and what exactly was timed."""

    name: str
    cpu_s_per_image: float
    what: str


@dataclass(frozen=True, slots=True)
class KernelStanding:
    """One decoder on one thread.

    Attributes:
        images_per_cpu_s: median over the rounds; `slow` and `fast` are quartiles.
        ratio: feedrate's images per CPU second over this one's, median over paired rounds.
        mean_psnr_db: against Pillow, over images that differ; None: every pixel is equal.
        cpu_s: of each round, all images once.
    """

    contestant: str
    images_per_cpu_s: float
    slow_images_per_cpu_s: float
    fast_images_per_cpu_s: float
    ratio: float
    mean_psnr_db: float | None
    lowest_psnr_db: float | None
    cpu_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class KernelTask:
    """One of `JOBS` on one set of images. `left_out`: decoders that did not run, and why."""

    name: str
    what: str
    side: int
    standings: tuple[KernelStanding, ...]
    stages: tuple[KernelStage, ...]
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KernelSet:
    """One set of images."""

    name: str
    images: int
    mean_megapixels: float
    mean_bytes: float
    by_pillow: Mapping[str, int]
    tasks: tuple[KernelTask, ...]
    rejected: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True)
class KernelResult:
    """What this script measured."""

    image_side: int
    rounds: int
    sets: tuple[KernelSet, ...]
    machine: Machine
    interpolation: str
    simd_level: str


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """`images`: per set; None: as many as the set has. `jobs`: of `JOBS`."""

    images: int | None = None
    side: int = 224
    rounds: int = 10
    seed: int = 0
    interpolation: Interpolation = "bilinear"
    jobs: tuple[str, ...] = tuple(JOBS)


def bench_source(source: str, options: KernelOptions) -> KernelResult:
    """Compare on images of a folder or a pack."""
    wanted = SOURCE_IMAGES if options.images is None else options.images
    if is_pack(source):
        pack = open_anywhere(source)
        try:
            with open_pack(pack, pick(len(pack), wanted, options.seed)) as samples:
                return _finish([bench_set(source, samples, options)], options)
        finally:
            pack.close()
    paths = sorted(str(path) for path in Path(source).rglob("*") if has_image_suffix(bytes(path)))
    numbers = pick(len(paths), wanted, options.seed)
    with open_files([paths[i] for i in numbers], numbers) as samples:
        return _finish([bench_set(source, samples, options)], options)


def bench_made(names: Sequence[str], options: KernelOptions) -> KernelResult:
    """Compare on sets of images that are made here, and removed at the end."""
    sets = []
    with tempfile.TemporaryDirectory(prefix="feedrate-bench-") as folder:
        for name in names:
            say(f"making {SETS[name].what} images in {folder} (removed at the end)")
            asked = replace(options, jobs=tuple(one for one in options.jobs if one in SETS[name].jobs))
            with open_files(write_set(name, Path(folder), options.images)) as samples:
                sets.append(bench_set(name, samples, asked))
    return _finish(sets, options)


@dataclass(frozen=True, slots=True)
class Contest:
    """A task, the decoders that can do it, and how far their pixels are from Pillow's, in dB."""

    task: Task
    decoders: tuple[Decoder, ...]
    psnrs: Mapping[str, Sequence[float]]
    left_out: Mapping[str, str]


def bench_set(name: str, samples: Samples, options: KernelOptions) -> KernelSet:
    """Let every decoder do the same jobs in turn, round by round."""
    if not len(samples):
        why = f": {samples.rejected[0].path}: {samples.rejected[0].reason}" if samples.rejected else ""
        raise SourceError(f"no image in {name} can be decoded{why}")
    tasks = [
        Task.draw(job, samples, options.side, options.interpolation, options.seed) for job in options.jobs
    ]
    with on_one_thread():
        say(f"{name}: every decoder once, to warm up and to compare pixels")
        contests = [_try_decoders(task) for task in tasks]
        seconds = _run_rounds(name, contests, options.rounds)
        by_pillow, taken = _find_taken(tasks[0])
        stages = [measure_stages(task, taken, options.rounds) for task in tasks]
    widths, heights = tasks[0].geometry.sides
    return KernelSet(
        name=name,
        images=len(samples),
        mean_megapixels=float((widths * heights).mean()) / 1e6,
        mean_bytes=float(samples.images.length.mean()),
        by_pillow=by_pillow,
        tasks=tuple(_conclude(*one) for one in zip(contests, seconds, stages, strict=True)),
        rejected=samples.rejected,
    )


def _try_decoders(task: Task) -> Contest:
    """Let each decoder do the task once."""
    reference, out = task.make_out(), task.make_out()
    decode_with_pillow(task, reference)
    psnrs: dict[str, Sequence[float]] = {}
    left_out: dict[str, str] = {}
    for decoder in DECODERS:
        if why := decoder.find_missing() or decoder.find_useless(task):
            left_out[decoder.name] = why
            continue
        try:
            decoder.decode(task, out)
        except Exception as error:
            if decoder.name in (FEEDRATE, PILLOW):
                raise
            left_out[decoder.name] = f"does not decode these images: {' '.join(str(error).split())}"
        else:
            found = [
                compare_pixels(ours, theirs).psnr_db for ours, theirs in zip(out, reference, strict=True)
            ]
            psnrs[decoder.name] = [psnr for psnr in found if psnr is not None]
    return Contest(task, tuple(one for one in DECODERS if one.name in psnrs), psnrs, left_out)


def _run_rounds(name: str, contests: Sequence[Contest], rounds: int) -> list[dict[str, list[float]]]:
    """Return the CPU seconds of each contest's decoders. A round has every decoder do every task once."""
    seconds: list[dict[str, list[float]]] = [{one.name: [] for one in each.decoders} for each in contests]
    outs = [contest.task.make_out() for contest in contests]
    for number in range(rounds):
        say(f"{name}: round {number + 1} of {rounds}")
        for contest, out, taken in zip(contests, outs, seconds, strict=True):
            for decoder in contest.decoders:
                started = time.process_time()
                decoder.decode(contest.task, out)
                taken[decoder.name].append(time.process_time() - started)
    return seconds


def _find_taken(task: Task) -> tuple[dict[str, int], I64]:
    """Return why images go through Pillow and how many, and the numbers of the JPEGs that do not."""
    reasons: Counter[str] = Counter()
    taken = []
    for number in range(len(task.samples)):
        _, report = task.samples.decode_one(number, task.geometry, (1, 1))
        reasons.update(report.pillow_reasons or {})
        if not report.by_pillow and task.samples.read(number).startswith(_JPEG):
            taken.append(number)
    return dict(reasons.most_common()), np.array(taken, np.int64)


def _conclude(
    contest: Contest, seconds: Mapping[str, Sequence[float]], stages: tuple[KernelStage, ...]
) -> KernelTask:
    task, images = contest.task, len(contest.task.samples)
    rates = {name: [images / s for s in found] for name, found in seconds.items()}
    standings = tuple(
        KernelStanding(
            contestant=name,
            images_per_cpu_s=median(rates[name]),
            slow_images_per_cpu_s=spread(rates[name])[0],
            fast_images_per_cpu_s=spread(rates[name])[1],
            ratio=median_ratio(rates[FEEDRATE], rates[name]),
            mean_psnr_db=sum(psnrs) / len(psnrs) if psnrs else None,
            lowest_psnr_db=min(psnrs, default=None),
            cpu_s=tuple(found),
        )
        for (name, found), psnrs in zip(seconds.items(), contest.psnrs.values(), strict=True)
    )
    return KernelTask(task.name, JOBS[task.name].what, task.side, standings, stages, contest.left_out)


def _finish(sets: Sequence[KernelSet], options: KernelOptions) -> KernelResult:
    machine = describe_machine(["decoders.py", *sys.argv[1:]])
    return KernelResult(
        options.side, options.rounds, tuple(sets), machine, options.interpolation, kernel.simd_level()
    )


def measure_stages(task: Task, taken: I64, rounds: int) -> tuple[KernelStage, ...]:
    """Time steps in turn, `rounds` times each, on the images that the kernel takes.

    Args:
        taken: which of the samples those are.
    """
    if not len(taken):
        return ()
    files = [task.samples.read(int(i)) for i in taken]
    seconds = _time_calls(task, taken, files, rounds)
    return (
        KernelStage("read", seconds["read"], "the file, from the page cache"),
        *_profile(task, taken, files, rounds),
        KernelStage("whole job", seconds["all"], "in one call, as the loader does it"),
        KernelStage("Huffman of all", seconds["scan"], "apart: what a start at the top costs at least"),
    )


def _time_calls(task: Task, taken: I64, files: Sequence[bytes], rounds: int) -> dict[str, float]:
    """Return the CPU seconds per image of whole calls."""
    samples, images = task.samples, task.samples.images.take(taken)
    unchecked = Ranges(images.file, images.offset, images.length)
    geometry, out = task.geometry.take(taken), task.make_out()[: len(taken)]
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: kernel.read_ranges(samples.files, unchecked),
        "scan": lambda: [kernel.scan(file) for file in files],
        "all": lambda: samples.decode_chosen(taken, geometry, out),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.process_time()
            call()
            seconds[name].append(time.process_time() - started)
    return {name: median(found) / len(taken) for name, found in seconds.items()}


def _profile(task: Task, taken: I64, files: Sequence[bytes], rounds: int) -> tuple[KernelStage, ...]:
    sums: Counter[str] = Counter()
    for i, file in zip(taken.tolist(), files, strict=True):
        left, top, right, bottom = task.geometry.boxes[i].tolist()
        entries = kernel.scan(file).entries
        size = (task.side, task.side)
        box, filter_ = (left, top, right, bottom), task.geometry.filters[0]
        sums.update(kernel.profile_decode(file, entries, box=box, size=size, repeats=rounds, filter_=filter_))
    return tuple(
        KernelStage(name, seconds / len(taken), "by the kernel's own profile")
        for name, seconds in sums.items()
    )


WIDTH, HEIGHT = 4000, 3000
QUALITY = 92
_ENLARGED = 4  # each pixel of the texture becomes this many across
_SENSOR_NOISE = 4.0  # levels; what is left of it after a camera's own denoising


def make_camera_picture(number: int, *, seed: int = 0, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    """Return picture `number`; it depends on the seed, the number and the size alone."""
    rng = np.random.default_rng((seed, number, width))
    scene = draw_scene(rng, number % len(CLASSES), width, height).convert("YCbCr")
    contrast = 20.0 * math.exp(rng.normal(0, 0.3))
    strength = np.exp(0.9 * _draw_texture(rng, "slow", width, height)) * contrast
    planes = []
    for plane, share in zip(scene.split(), (1.0, 0.16, 0.16), strict=True):
        values = np.asarray(plane, np.float32) + share * strength * _draw_texture(rng, "rough", width, height)
        if share == 1.0:
            values += _SENSOR_NOISE * rng.standard_normal((height, width), np.float32)
        planes.append(Image.fromarray(np.clip(values, 0, 255, out=values).astype(np.uint8)))
    out = io.BytesIO()
    Image.merge("YCbCr", planes).save(out, "JPEG", quality=QUALITY, subsampling=2)
    return out.getvalue()


def _draw_texture(rng: np.random.Generator, kind: str, width: int, height: int) -> F32:
    small = cut_texture(rng, kind, -(-width // _ENLARGED), -(-height // _ENLARGED))
    large = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(large)


def _make_png(number: int) -> bytes:
    out = io.BytesIO()
    with Image.open(io.BytesIO(make_photograph(number).jpeg)) as image:
        image.save(out, "PNG")
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class MadeSet:
    """`images`: how many, unless the user says otherwise: enough to be typical, few enough to be quick.

    `jobs`: those that differ from each other, whoever decodes.
    """

    images: int
    suffix: str
    make: Callable[[int], bytes]
    what: str
    jobs: tuple[str, ...] = tuple(JOBS)


SETS = {
    "photographs": MadeSet(100, ".jpg", lambda n: make_photograph(n).jpeg, "0.2-megapixel JPEG"),
    "camera": MadeSet(6, ".jpg", make_camera_picture, "12-megapixel JPEG, 4:2:0"),
    "png": MadeSet(30, ".png", _make_png, "0.2-megapixel PNG", ("crops",)),
}


def write_set(name: str, folder: Path, images: int | None) -> list[str]:
    """Make a set's files in `folder`; return their paths."""
    made = SETS[name]
    paths = []
    for number in range(made.images if images is None else images):
        path = folder / f"{name}-{number:04d}{made.suffix}"
        path.write_bytes(made.make(number))
        paths.append(str(path))
    return paths


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", nargs="?")
    parser.add_argument("--set", choices=tuple(SETS), action="append", dest="sets")
    parser.add_argument("--job", choices=tuple(JOBS), action="append", dest="jobs")
    parser.add_argument("--images", type=int, help="of each set (default: 100; camera 6, png 30)")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--interpolation", default="bilinear", choices=tuple(FILTERS))
    parser.add_argument("--json")
    asked = parser.parse_args()
    options = KernelOptions(
        asked.images, asked.size, asked.rounds, 0, asked.interpolation, tuple(asked.jobs or JOBS)
    )
    result = (
        bench_source(asked.source, options) if asked.source else bench_made(asked.sets or list(SETS), options)
    )
    for one in result.sets:
        print_set(one)
    if asked.json:
        Path(asked.json).write_text(json.dumps(asdict(result), indent=1) + "\n")
    return 0


def print_set(one: KernelSet) -> None:
    print(
        f"\n{one.name}: {one.images} images of {one.mean_megapixels:.1f} megapixel, "
        f"{one.mean_bytes:,.0f} bytes"
    )
    for task in one.tasks:
        print_task(task)
    if one.by_pillow:
        print(f"decoded by Pillow: {one.by_pillow}")
    for rejected in one.rejected:
        print(f"not decoded by anyone: {rejected.path}: {rejected.reason}")


def print_task(task: KernelTask) -> None:
    print(f" {task.name}: {task.what}, to {task.side} pixels")
    for standing in task.standings:
        psnr = "equal" if standing.mean_psnr_db is None else f"{standing.mean_psnr_db:.1f} dB"
        print(
            f"  {standing.contestant:22} {standing.images_per_cpu_s:9,.1f} images/CPU s "
            f"({standing.slow_images_per_cpu_s:,.1f}-{standing.fast_images_per_cpu_s:,.1f}), feedrate is "
            f"{standing.ratio:.2f}x; PSNR to Pillow: {psnr}"
        )
    for stage in task.stages:
        print(f"  {stage.name:22} {1e6 * stage.cpu_s_per_image:9,.1f} us  {stage.what}")
    for name, why in task.left_out.items():
        print(f"  left out: {name}: {why}")


if __name__ == "__main__":
    sys.exit(main())
