# SPDX-License-Identifier: Apache-2.0
"""How many images per second of CPU time, decoder against decoder on one thread, and which step takes it?

The decoders are those that people train with, each doing the same job: read, decode, crop, resize, flip.
Every one reads its file from the page cache; only feedrate checks a crc. Those called `reduced` let libjpeg
decode at a half, a quarter or an eighth where the crop allows it: fast on large pictures, and other pixels.
Where the kernel's time goes is found by its own profile where it has one, else by subtraction of whole calls.
simplejpeg and OpenCV take part where they are installed.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from threads import say

from feedrate import kernel
from feedrate.draws import pick
from feedrate.errors import SourceError
from feedrate.filters import BILINEAR, FILTERS
from feedrate.format.manifest import is_pack
from feedrate.kernel import I64, U8, Ranges
from feedrate.kernel.pillow import Box
from feedrate.lab.decode import Samples, compare_pixels, decode_as_torchvision, open_files, open_pack
from feedrate.lab.photographs import CLASSES, F32, cut_texture, draw_scene, make_photograph
from feedrate.loader.geometry import Geometry
from feedrate.loader.packs import open_pack as open_anywhere
from feedrate.machine.describe import describe_machine
from feedrate.machine.results import Machine
from feedrate.progress import Rejection
from feedrate.source.folders import find_images
from feedrate.stats import median, median_ratio, spread

Clock = Callable[[], float]
FEEDRATE, PILLOW = "feedrate", "Pillow"
SOURCE_IMAGES = 100  # of a folder or a pack, unless the user says otherwise
_JPEG = b"\xff\xd8"
# (file, entries, *, box, size, repeats, filter_) -> seconds of each step
Profile = Callable[..., Mapping[str, float]]


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
class KernelSet:
    """One set of images. `left_out`: decoders that did not run, and why."""

    name: str
    images: int
    mean_megapixels: float
    mean_bytes: float
    by_pillow: Mapping[str, int]
    standings: tuple[KernelStanding, ...]
    stages: tuple[KernelStage, ...]
    left_out: Mapping[str, str]
    rejected: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True)
class KernelResult:
    """`feedrate bench kernel`."""

    image_side: int
    rounds: int
    sets: tuple[KernelSet, ...]
    machine: Machine
    interpolation: str = "bilinear"


@dataclass(frozen=True, slots=True)
class Task:
    """The same images, crops and flips for every decoder."""

    samples: Samples
    geometry: Geometry
    side: int

    def make_out(self) -> U8:
        return np.zeros((len(self.samples), self.side, self.side, 3), np.uint8)


@dataclass(frozen=True, slots=True)
class Decoder:
    """`needs`: modules that must be installed. `is_reduced`: gives other pixels where it reduces."""

    name: str
    decode: Callable[[Task, U8], None]
    needs: tuple[str, ...] = ()
    is_reduced: bool = False

    def find_missing(self) -> str | None:
        """Return why it cannot run here, in words."""
        packages = {"cv2": "opencv-python-headless"}
        missing = [packages.get(name, name) for name in self.needs if find_spec(name) is None]
        return f"not installed: pip install {' '.join(missing)}" if missing else None


@dataclass(frozen=True, slots=True)
class Part:
    """What one image is to become."""

    box: Box
    side: int
    flip: bool
    size: tuple[int, int]  # width, height of the image
    filter: int = BILINEAR

    def needed_size(self) -> tuple[int, int]:
        """Return the smallest width and height of the whole image at which the crop has enough pixels."""
        left, top, right, bottom = self.box
        width, height = self.size
        return (
            min(width, math.ceil(width * self.side / (right - left))),
            min(height, math.ceil(height * self.side / (bottom - top))),
        )

    def scale_box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return the crop in pixels of the whole image at another size."""
        across, down = width / self.size[0], height / self.size[1]
        left, top, right, bottom = self.box
        return left * across, top * down, right * across, bottom * down


def one_by_one(decode: Callable[[bytes, Part], U8]) -> Callable[[Task, U8], None]:
    """Make a decoder of single files into one of tasks."""

    def decode_all(task: Task, out: U8) -> None:
        widths, heights = task.geometry.sides
        for i, box in enumerate(task.geometry.boxes.tolist()):
            size = int(widths[i]), int(heights[i])
            part = Part(tuple(box), task.side, bool(task.geometry.flips[i]), size, task.geometry.filters[0])
            out[i] = decode(task.samples.read(i), part)

    return decode_all


def decode_with_feedrate(task: Task, out: U8) -> None:
    report = task.samples.decode(task.geometry, out)
    for number, reason in report.reasons.items():
        raise ValueError(f"{task.samples.names[number]}: {reason}")


def decode_with_pillow(file: bytes, part: Part) -> U8:
    return decode_as_torchvision(file, part.box, part.side, part.flip, part.filter)


def decode_with_pillow_reduced(file: bytes, part: Part) -> U8:
    from PIL import Image

    with Image.open(io.BytesIO(file)) as image:
        image.draft("RGB", part.needed_size())
        box = part.scale_box(*image.size)
        picture = image.convert("RGB").resize((part.side, part.side), part.filter, box=box)
    pixels = np.asarray(picture)
    return pixels[:, ::-1] if part.flip else pixels


def decode_with_simplejpeg(file: bytes, part: Part) -> U8:
    import simplejpeg

    return _resize(simplejpeg.decode_jpeg(file), part)


def decode_with_simplejpeg_reduced(file: bytes, part: Part) -> U8:
    import simplejpeg

    width, height = part.needed_size()
    return _resize(simplejpeg.decode_jpeg(file, min_height=height, min_width=width, min_factor=1), part)


def decode_with_opencv(file: bytes, part: Part) -> U8:
    import cv2

    return _swap(_resize(_decode_with_opencv(file, cv2.IMREAD_COLOR), part))


def decode_with_opencv_reduced(file: bytes, part: Part) -> U8:
    import cv2

    left, top, right, bottom = part.box
    factor = min((right - left) // part.side, (bottom - top) // part.side)
    flag = cv2.IMREAD_COLOR
    for least, reduced in (
        (2, cv2.IMREAD_REDUCED_COLOR_2),
        (4, cv2.IMREAD_REDUCED_COLOR_4),
        (8, cv2.IMREAD_REDUCED_COLOR_8),
    ):
        flag = reduced if factor >= least else flag
    return _swap(_resize(_decode_with_opencv(file, flag), part))


def _decode_with_opencv(file: bytes, flag: int) -> U8:
    import cv2

    # As Pillow does, it leaves the orientation alone: a crop box must mean the same to all.
    pixels = cv2.imdecode(np.frombuffer(file, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is None:
        raise ValueError("OpenCV does not decode it")
    return np.asarray(pixels, np.uint8)


def _resize(pixels: Any, part: Part) -> U8:
    import cv2

    height, width = pixels.shape[:2]
    left, top, right, bottom = (round(edge) for edge in part.scale_box(width, height))
    crop = pixels[top : max(bottom, top + 1), left : max(right, left + 1)]
    # OpenCV's other filters look at the same few pixels however much is left out: they do not antialias.
    kinds = {"bicubic": cv2.INTER_CUBIC, "lanczos": cv2.INTER_LANCZOS4, "nearest": cv2.INTER_NEAREST_EXACT}
    kind = {FILTERS[word]: kind for word, kind in kinds.items()}.get(part.filter, cv2.INTER_AREA)
    small = cv2.resize(crop, (part.side, part.side), interpolation=kind)
    return np.asarray(cv2.flip(small, 1) if part.flip else small, np.uint8)


def _swap(pixels: U8) -> U8:
    import cv2

    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


DECODERS = (
    Decoder(FEEDRATE, decode_with_feedrate),
    Decoder(PILLOW, one_by_one(decode_with_pillow)),
    Decoder("simplejpeg + OpenCV", one_by_one(decode_with_simplejpeg), ("simplejpeg", "cv2")),
    Decoder("OpenCV", one_by_one(decode_with_opencv), ("cv2",)),
    Decoder("Pillow, reduced", one_by_one(decode_with_pillow_reduced), is_reduced=True),
    Decoder(
        "simplejpeg, reduced", one_by_one(decode_with_simplejpeg_reduced), ("simplejpeg", "cv2"),
        is_reduced=True,
    ),
    Decoder("OpenCV, reduced", one_by_one(decode_with_opencv_reduced), ("cv2",), is_reduced=True),
)  # fmt: skip


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Keep OpenCV from spreading its work: what is compared is CPU time on one thread."""
    if find_spec("cv2") is None:
        yield
        return
    import cv2

    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """`images`: per set; None: as many as the set has."""

    images: int | None = None
    side: int = 224
    rounds: int = 10
    seed: int = 0
    interpolation: str = "bilinear"


def bench_source(source: str, options: KernelOptions) -> KernelResult:
    """Compare on images of a folder, a file or a pack."""
    wanted = SOURCE_IMAGES if options.images is None else options.images
    if is_pack(source):
        pack = open_anywhere(source)
        try:
            with open_pack(pack, pick(len(pack), wanted, options.seed)) as samples:
                return _finish([bench_set(source, samples, options)], options)
        finally:
            pack.close()
    paths = find_images([source])
    numbers = pick(len(paths), wanted, options.seed)
    with open_files([paths[i] for i in numbers], numbers) as samples:
        return _finish([bench_set(source, samples, options)], options)


def bench_made(names: Sequence[str], options: KernelOptions) -> KernelResult:
    """Compare on sets of images that are made here, and removed at the end."""
    sets = []
    with tempfile.TemporaryDirectory(prefix="feedrate-bench-") as folder:
        for name in names:
            say(f"making {SETS[name].what} images in {folder} (removed at the end)")
            with open_files(write_set(name, Path(folder), options.images)) as samples:
                sets.append(bench_set(name, samples, options))
    return _finish(sets, options)


def bench_set(
    name: str,
    samples: Samples,
    options: KernelOptions,
    *,
    decoders: Sequence[Decoder] = DECODERS,
    clock: Clock = time.process_time,
) -> KernelSet:
    """Let every decoder do the same job in turn, round by round."""
    if not len(samples):
        why = f": {samples.rejected[0].path}: {samples.rejected[0].reason}" if samples.rejected else ""
        raise SourceError(f"no image in {name} can be decoded{why}")
    geometry = samples.draw(options.side, options.seed, options.interpolation)
    task = Task(samples, geometry, options.side)
    with on_one_thread():
        say(f"{name}: every decoder once, to warm up and to compare pixels")
        pictures, left_out = _try_decoders(task, decoders)
        running = [decoder for decoder in decoders if decoder.name in pictures]
        seconds = _run_rounds(name, task, running, options.rounds, clock=clock)
        by_pillow, taken = _find_taken(task)
        stages = measure_stages(task, taken, rounds=options.rounds, clock=clock, profile=find_profile())
    widths, heights = task.geometry.sides
    return KernelSet(
        name=name,
        images=len(samples),
        mean_megapixels=float((widths * heights).mean()) / 1e6,
        mean_bytes=float(samples.images.length.mean()),
        by_pillow=by_pillow,
        standings=tuple(_stand(decoder.name, seconds, pictures) for decoder in running),
        stages=stages,
        left_out=left_out,
        rejected=samples.rejected,
    )


def _try_decoders(task: Task, decoders: Sequence[Decoder]) -> tuple[dict[str, U8], dict[str, str]]:
    """Return what each decoder makes of the task, and why others make nothing."""
    pictures: dict[str, U8] = {}
    left_out: dict[str, str] = {}
    boxes = task.geometry.boxes
    shorter = np.minimum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])
    for decoder in decoders:
        why = decoder.find_missing()
        if why is None and decoder.is_reduced and np.median(shorter) < 2 * task.side:
            why = "most crops are too small to be decoded at half size"
        if why is None:
            out = task.make_out()
            try:
                decoder.decode(task, out)
            except Exception as error:
                if decoder.name in (FEEDRATE, PILLOW):
                    raise
                why = f"does not decode these images: {' '.join(str(error).split())}"
            else:
                pictures[decoder.name] = out
                continue
        left_out[decoder.name] = why
    return pictures, left_out


def _run_rounds(
    name: str, task: Task, decoders: Sequence[Decoder], rounds: int, *, clock: Clock
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {decoder.name: [] for decoder in decoders}
    out = task.make_out()
    for number in range(rounds):
        say(f"{name}: round {number + 1} of {rounds}")
        for decoder in decoders:
            started = clock()
            decoder.decode(task, out)
            seconds[decoder.name].append(clock() - started)
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


def _stand(name: str, seconds: dict[str, list[float]], pictures: dict[str, U8]) -> KernelStanding:
    images = len(pictures[name])
    rates = [images / s for s in seconds[name]]
    slow, fast = spread(rates)
    psnrs = [
        found.psnr_db
        for ours, theirs in zip(pictures[name], pictures[PILLOW], strict=True)
        if (found := compare_pixels(ours, theirs)).psnr_db is not None
    ]
    return KernelStanding(
        contestant=name,
        images_per_cpu_s=median(rates),
        slow_images_per_cpu_s=slow,
        fast_images_per_cpu_s=fast,
        ratio=median_ratio([images / s for s in seconds[FEEDRATE]], rates),
        mean_psnr_db=sum(psnrs) / len(psnrs) if psnrs else None,
        lowest_psnr_db=min(psnrs, default=None),
        cpu_s=tuple(seconds[name]),
    )


def _finish(sets: Sequence[KernelSet], options: KernelOptions) -> KernelResult:
    return KernelResult(options.side, options.rounds, tuple(sets), describe_machine(), options.interpolation)


def find_profile() -> Profile | None:
    """Return the kernel's own profile, when it was built with one."""
    profile: Any = getattr(kernel, "profile_decode", None)
    return profile  # type: ignore[no-any-return]


def measure_stages(
    task: Task, taken: I64, *, rounds: int, clock: Clock, profile: Profile | None
) -> tuple[KernelStage, ...]:
    """Time steps in turn, `rounds` times each, on the images that the kernel takes.

    Args:
        taken: which of the samples those are.
        clock: CPU seconds.
        profile: the kernel's own; None: by subtraction.
    """
    if not len(taken):
        return ()
    files = [task.samples.read(int(i)) for i in taken]
    seconds = _time_calls(task, taken, files, rounds=rounds, clock=clock)
    whole = KernelStage("whole job", seconds["all"], "in one call, as the loader does it")
    apart = KernelStage("Huffman of all", seconds["scan"], "apart: what a start at the top costs at least")
    if profile is None:
        return (*_by_subtraction(seconds), whole, apart)
    read = KernelStage("read", seconds["read unchecked"], "the file, from the page cache")
    return (read, *_by_profile(task, taken, files, profile, rounds), whole, apart)


def _time_calls(
    task: Task, taken: I64, files: Sequence[bytes], *, rounds: int, clock: Clock
) -> dict[str, float]:
    """Return the CPU seconds per image of calls that each do a step more."""
    samples, images = task.samples, task.samples.images.take(taken)
    unchecked = Ranges(images.file, images.offset, images.length)
    geometry, out = task.geometry.take(taken), task.make_out()[: len(taken)]
    sizes = geometry.boxes[:, 2:] - geometry.boxes[:, :2]
    crop = np.zeros(int(sizes.prod(axis=1, dtype=np.int64).max()) * 3, np.uint8)
    calls: dict[str, Callable[[], object]] = {
        "read unchecked": lambda: kernel.read_ranges(samples.files, unchecked),
        "read": lambda: kernel.read_ranges(samples.files, images),
        "scan": lambda: [kernel.scan(file) for file in files],
        "crop": lambda: _decode_crops(task, taken, crop),
        "all": lambda: samples.decode_chosen(taken, geometry, out),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            started = clock()
            call()
            seconds[name].append(clock() - started)
    return {name: median(found) / len(taken) for name, found in seconds.items()}


def _by_subtraction(seconds: Mapping[str, float]) -> tuple[KernelStage, ...]:
    read, cropped, whole = seconds["read"], seconds["crop"], seconds["all"]
    return (
        KernelStage("read, crc32c", read, "the file, from the page cache"),
        KernelStage("Huffman, IDCT, colour", cropped - read, "the crop without a resize, less reading"),
        KernelStage("resize, flip", whole - cropped, "the whole job, less the crop without a resize"),
    )


def _by_profile(
    task: Task, taken: I64, files: Sequence[bytes], profile: Profile, rounds: int
) -> tuple[KernelStage, ...]:
    sums: Counter[str] = Counter()
    for i, file in zip(taken.tolist(), files, strict=True):
        left, top, right, bottom = task.geometry.boxes[i].tolist()
        entries = kernel.scan(file).entries
        size = (task.side, task.side)
        box, filter_ = (left, top, right, bottom), task.geometry.filters[0]
        sums.update(profile(file, entries, box=box, size=size, repeats=rounds, filter_=filter_))
    return tuple(
        KernelStage(name, seconds / len(taken), "by the kernel's own profile")
        for name, seconds in sums.items()
    )


def _decode_crops(task: Task, taken: I64, buffer: U8) -> None:
    """Decode each crop at its own size, always into the same memory."""
    for i in taken:
        left, top, right, bottom = task.geometry.boxes[i].tolist()
        width, height = right - left, bottom - top
        out = buffer[: height * width * 3].reshape(1, height, width, 3)
        one = np.array([i], np.int64)
        task.samples.decode_chosen(one, task.geometry.take(one), out)


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
    """`images`: how many, unless the user says otherwise: enough to be typical, few enough to be quick."""

    images: int
    suffix: str
    make: Callable[[int], bytes]
    what: str


SETS = {
    "photographs": MadeSet(100, ".jpg", lambda n: make_photograph(n).jpeg, "0.2-megapixel JPEG"),
    "camera": MadeSet(6, ".jpg", make_camera_picture, "12-megapixel JPEG, 4:2:0"),
    "png": MadeSet(30, ".png", _make_png, "0.2-megapixel PNG"),
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
    parser.add_argument("--images", type=int, help="of each set (default: 100; camera 6, png 30)")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--interpolation", default="bilinear", choices=tuple(FILTERS))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    options = KernelOptions(
        arguments.images, arguments.size, arguments.rounds, interpolation=arguments.interpolation
    )
    result = (
        bench_source(arguments.source, options)
        if arguments.source
        else bench_made(arguments.sets or tuple(SETS), options)
    )
    for one in result.sets:
        print_set(one)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(asdict(result), indent=1) + "\n")
    return 0


def print_set(one: KernelSet) -> None:
    print(
        f"\n{one.name}: {one.images} images of {one.mean_megapixels:.1f} megapixel, "
        f"{one.mean_bytes:,.0f} bytes"
    )
    for standing in one.standings:
        psnr = "equal" if standing.mean_psnr_db is None else f"{standing.mean_psnr_db:.1f} dB"
        print(
            f"  {standing.contestant:22} {standing.images_per_cpu_s:9,.1f} images/CPU s "
            f"({standing.slow_images_per_cpu_s:,.1f}-{standing.fast_images_per_cpu_s:,.1f}), feedrate is "
            f"{standing.ratio:.2f}x; PSNR to Pillow: {psnr}"
        )
    for stage in one.stages:
        print(f"  {stage.name:22} {1e6 * stage.cpu_s_per_image:9,.1f} us  {stage.what}")
    for name, why in one.left_out.items():
        print(f"  left out: {name}: {why}")
    if one.by_pillow:
        print(f"  decoded by Pillow: {one.by_pillow}")
    for rejected in one.rejected:
        print(f"  not decoded by anyone: {rejected.path}: {rejected.reason}")


if __name__ == "__main__":
    sys.exit(main())
