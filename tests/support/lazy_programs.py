# SPDX-License-Identifier: Apache-2.0
"""Made-up programs that use Pillow, and a record of everything that they see while they run.

The same program is run with a bare Pillow and with one whose images stay recipes: the records must be equal.
"""

from __future__ import annotations

import copy
import io
import pickle
import re
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFile, ImageFilter, ImageOps, ImageStat

SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")
DAMAGE = ("none", "tail", "cut", "end", "byte", "filled", "zeros")
Images = list[Any]


def make_file(random: Random) -> bytes:
    """Return a JPEG of any kind, sometimes a damaged one."""
    width, height = random.choice([
        (random.randint(1, 20), random.randint(1, 20)), (random.randint(20, 150), random.randint(20, 150)),
        (random.randint(1, 4), random.randint(150, 500)),
        (random.randint(400, 600), random.randint(300, 500)),
    ])  # fmt: skip
    mode = random.choices(["RGB", "L", "CMYK"], [12, 5, 1])[0]
    noise = np.random.default_rng(random.randrange(1 << 30))
    coarse = noise.integers(0, 256, (max(1, height // 6), max(1, width // 6), len(mode)), dtype=np.uint8)
    small = Image.frombytes(mode, (coarse.shape[1], coarse.shape[0]), coarse.tobytes())
    image = small.resize((width, height))
    options: dict[str, Any] = {"quality": random.choice([30, 75, 90, 98, 100])}
    if mode == "RGB":
        chosen = random.choice(SUBSAMPLINGS)
        options.update({"keep_rgb": True} if random.random() < 0.05 else {"subsampling": chosen})
    options["progressive"] = random.random() < 0.1
    options["optimize"] = random.random() < 0.2
    if random.random() < 0.2:
        options["restart_marker_blocks"] = random.randint(1, 30)
    if random.random() < 0.3:
        exif = Image.Exif()
        exif[0x0112] = random.randint(1, 8)
        exif[0x010E] = "a photograph"
        options["exif"] = exif
    if random.random() < 0.1:
        options["icc_profile"] = noise.bytes(300)
    if random.random() < 0.1:
        options["comment"] = b"a comment"
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    damaged = random.choices(DAMAGE, [14, 2, 2, 1, 1, 1, 1])[0]
    if damaged in ("byte", "zeros"):
        # Other tables could make coefficients of damaged data so large that they mean what the machine makes
        # of them: tests/slow/test_differential.py, `is_wide`.
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=100)
    return _damage(random, buffer.getvalue(), damaged)


def _damage(random: Random, data: bytes, kind: str) -> bytes:
    if kind == "tail":
        return data + random.choice([b"\0", b"junk" * 9, data, bytes(70_000)])
    if kind == "cut":
        return data[: random.randint(1, len(data))]
    if kind == "end":
        return data[:-2]
    if kind == "filled":
        return data[:-2] + bytes(random.choice([1, 40, 70_000])) + data[-2:]
    at = random.randrange(min(data.index(b"\xff\xda") + 14, len(data) - 2), len(data))
    if kind == "byte":
        return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
    if kind == "zeros":
        return data[:at] + bytes(min(40, len(data) - at)) + data[at + 40 :]
    return data


class OwnBytes(io.BytesIO):
    """A file object of a class of the script's."""


class Unseekable:
    """A stream."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)
        self.read = self._file.read


def _open(random: Random, path: Path, data: bytes) -> tuple[Any, Any]:
    """Return what to open, and the file object whose state is looked at."""
    kind = random.choice(["path", "path", "path", "str", "memory", "file", "raw", "both", "own", "stream"])
    if kind == "path":
        return path, None
    if kind == "str":
        return str(path), None
    if kind == "stream":
        return Unseekable(data), None
    file: Any
    if kind == "memory":
        file = io.BytesIO(data)
        file.seek(min(random.choice([0, 7]), len(data)))
    elif kind == "own":
        file = OwnBytes(data)
    else:
        # It stays open while the program runs.
        file = open(  # noqa: SIM115
            path, "r+b" if kind == "both" else "rb", buffering=0 if kind == "raw" else -1
        )
    return file, file


def run_program(seed: int, folder: Path) -> list[Any]:
    """Run the program of this seed; return what it saw, step by step."""
    random = Random(seed)
    data = make_file(random)
    path = folder / "image.jpg"
    path.write_bytes(data)
    images: Images = []
    seen: list[Any] = []
    target, file = _open(random, path, data)
    wants_truncated = random.random() < 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ImageFile.LOAD_TRUNCATED_IMAGES = wants_truncated
            seen.append(_try(lambda: images.append(Image.open(target))))
            for _ in range(random.randint(1, 9)):
                step_seed = random.randrange(1 << 30)
                if images:
                    seen.append(_run_step(Random(step_seed), images, folder))
                    seen.append(_state_of(file))
            seen += [_try(lambda image=image: describe(image)) for image in images]
            seen += [_try(lambda image=image: image.tobytes()) for image in images]
            seen.append(_state_of(file))
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = False
            for image in images:
                image.close()
            if file is not None:
                file.close()
    return seen


def _state_of(file: Any) -> Any:
    return None if file is None else (file.closed, file.closed or file.tell())


def _try(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return type(error).__name__, re.sub("0x[0-9a-fA-F]+", "0x", str(error))


def describe(image: Any) -> Any:
    """Return all that a script sees of an image but its pixels."""
    open_file = getattr(image, "fp", None)
    return (
        type(image), image.mode, image.size, image.format, _plain(image.info),
        image.palette and image.palette.mode,
        getattr(image, "filename", None) and "named", getattr(image, "tile", None),
        open_file is not None and (open_file.closed, open_file.closed or open_file.tell()),
        image.getbands(), sorted(set(vars(image)) - {"_im", "im", "_feedrate", "_exif"}),
    )  # fmt: skip


def _plain(info: Any) -> Any:
    return {name: zlib.crc32(value) if isinstance(value, bytes) else value for name, value in info.items()}


def _run_step(random: Random, images: Images, folder: Path) -> Any:
    image = images[-1] if random.random() < 0.7 else random.choice(images)
    name, step = random.choices(STEPS, WEIGHTS)[0]
    result = _try(lambda: step(random, image, images, folder))
    if isinstance(result, Image.Image):
        images.append(result)
        result = describe(result)
    return name, result


def _make_box(random: Random, width: int, height: int) -> tuple[int, int, int, int]:
    left, top = random.randint(0, width - 1), random.randint(0, height - 1)
    return left, top, random.randint(left + 1, width), random.randint(top + 1, height)


def _convert(random: Random, image: Any, *_: Any) -> Any:
    mode = random.choice(["RGB"] * 8 + ["L"] * 5 + [None, "RGBA", "CMYK", "1", "P", "HSV", "nonsense"])
    if random.random() < 0.05:
        return image.convert(mode, (0.4, 0.3, 0.3, 0) * (3 if mode == "RGB" else 1))
    return image.convert(mode)


def _crop(random: Random, image: Any, *_: Any) -> Any:
    width, height = image.size
    left, top, right, bottom = _make_box(random, width, height)
    kind = random.choices(
        ["in", "floats", "out", "turned", "none", "empty", "list", "all", "few"], [12] + [1] * 8
    )[0]
    box: Any = {
        "in": (left, top, right, bottom), "floats": (left + 0.4, top + 0.5, right - 0.3, bottom - 0.5),
        "out": (left - 5, top, right + 3, bottom), "turned": (right, top, left, bottom), "none": None,
        "empty": (left, top, left, bottom), "list": [left, np.int64(top), np.float32(right), bottom],
        "all": (0, 0, width, height), "few": (left, top, right),
    }[kind]  # fmt: skip
    return image.crop(box)


def _resize(random: Random, image: Any, *_: Any) -> Any:
    width, height = image.size
    size: Any = random.choice([
        (random.randint(1, 60), random.randint(1, 60)), (random.randint(1, 60), random.randint(1, 60)),
        (random.randint(1, width + 3), random.randint(1, height + 3)), (width, random.randint(1, 90)),
        (width, height), [random.randint(1, 40), np.int64(9)],
    ])  # fmt: skip
    if random.random() < 0.05:
        size = random.choice([(0, 5), (-1, 5), (5.5, 6), (5,), 7, (1 << 40, 2), np.array([5, 6])])
    given: dict[str, Any] = {}
    if random.random() < 0.8:
        given["resample"] = random.choice([*range(6), *Image.Resampling, None, 2])
    if random.random() < 0.1:
        given["resample"] = random.choice([99, -1, "bilinear", 2.0])
    if random.random() < 0.3:
        box = _make_box(random, width, height)
        given["box"] = random.choice([
            box, list(box), tuple(one * 0.97 for one in box), (0, 0, width, height),
            (box[0] - 1, *box[1:]), (box[2], box[1], box[0], box[3]), (*box[:2], box[2] + 0.5, box[3]),
        ])  # fmt: skip
    if random.random() < 0.08:
        given["reducing_gap"] = random.choice([0.5, 1.0, 2.0, 3.0])
    return image.resize(size, **given)


def _access(random: Random, image: Any, *_: Any) -> Any:
    pixels, at = image.load(), (random.randrange(image.width), random.randrange(image.height))
    if random.random() < 0.5:
        pixels[at] = 7
    return pixels[at]


def _paste(random: Random, image: Any, images: Images, *_: Any) -> Any:
    if random.random() < 0.5:
        return image.paste(random.randrange(256), _make_box(random, *image.size))
    return image.paste(random.choice(images), (random.randrange(5), random.randrange(5)))


def _save(random: Random, image: Any, _images: Images, folder: Path) -> Any:
    buffer = io.BytesIO()
    kind = random.choice(["PNG", "JPEG", "BMP", "path"])
    if kind == "path":
        image.save(folder / "saved.png")
        return zlib.crc32((folder / "saved.png").read_bytes())
    image.save(buffer, kind, **({"quality": "keep"} if kind == "JPEG" and random.random() < 0.3 else {}))
    return zlib.crc32(buffer.getvalue())


def _draw_on(random: Random, image: Any, *_: Any) -> Any:
    draw = ImageDraw.Draw(image)
    draw.rectangle(_make_box(random, *image.size), fill=random.randrange(256))
    return None


def _pickle(random: Random, image: Any, *_: Any) -> Any:
    return pickle.loads(pickle.dumps(image, random.choice([2, 5])))


def _with(_random: Random, image: Any, *_: Any) -> Any:
    with image as same:
        same.load()
    return None


def _thumbnail(random: Random, image: Any, *_: Any) -> Any:
    gap = random.choice([2.0, None])
    return image.thumbnail(
        (random.randint(1, 80), random.randint(1, 80)), random.randrange(6), gap
    ), image.size


def _draft(random: Random, image: Any, *_: Any) -> Any:
    return image.draft(random.choice([None, "L", "RGB"]), (random.randint(1, 90), random.randint(1, 90)))


def _exif(_random: Random, image: Any, *_: Any) -> Any:
    return dict(image.getexif()), image.getexif().get(0x0112)


def _pixel(random: Random, image: Any, *_: Any) -> Any:
    return image.getpixel((random.randrange(image.width), random.randrange(image.height)))


def _put_pixel(random: Random, image: Any, *_: Any) -> Any:
    return image.putpixel((random.randrange(image.width), random.randrange(image.height)), 200)


def _rows(random: Random, image: Any, *_: Any) -> Any:
    rows = np.array(image) if random.random() < 0.5 else np.asarray(image)
    content = zlib.crc32(rows.tobytes()) if rows.dtype != object else "an image that has no pixels"
    return rows.shape, rows.dtype, rows.strides, rows.flags.writeable, content


def _to_bytes(random: Random, image: Any, *_: Any) -> Any:
    given = random.choice(
        [(), (), ("raw",), ("raw", image.mode), ("raw", "BGR"), ("raw", (image.mode, 0, -1))]
    )
    return zlib.crc32(image.tobytes(*given))


def _difference(_random: Random, image: Any, images: Images, *_: Any) -> Any:
    return zlib.crc32(ImageChops.difference(image, images[0]).tobytes()), image == images[0]


STEPS: list[tuple[str, Callable[..., Any]]] = [
    ("convert", _convert), ("crop", _crop), ("resize", _resize),
    ("transpose", lambda random, image, *_: image.transpose(random.choice([0, 0, 1, 1, 2, 3, 4, 6, 9]))),
    ("copy", lambda _, image, *__: image.copy()), ("load", lambda _, image, *__: image.load() is None),
    ("rows", _rows), ("tobytes", _to_bytes), ("pixel", _pixel), ("paste", _paste), ("access", _access),
    ("put pixel", _put_pixel), ("copy.copy", lambda _, image, *__: copy.copy(image)),
    ("deepcopy", lambda _, image, *__: copy.deepcopy(image)), ("pickle", _pickle), ("save", _save),
    ("thumbnail", _thumbnail), ("draft", _draft), ("draw", _draw_on), ("exif", _exif), ("with", _with),
    ("reduce", lambda random, image, *_: image.reduce(random.choice([1, 2, (2, 3)]))),
    ("transposed", lambda _, image, *__: ImageOps.exif_transpose(image)),
    ("mirror", lambda _, image, *__: ImageOps.mirror(image)),
    ("fit", lambda random, image, *_: ImageOps.fit(image, (random.randint(1, 50), random.randint(1, 50)))),
    ("blur", lambda _, image, *__: image.filter(ImageFilter.GaussianBlur(1))),
    ("rotate", lambda random, image, *_: image.rotate(random.choice([0, 90, 180, 33]))),
    ("statistics", lambda _, image, *__: ImageStat.Stat(image).sum),
    ("bands", lambda _, image, *__: len(image.split())),
    ("box", lambda _, image, *__: image.getbbox()),
    ("histogram", lambda _, image, *__: sum(image.histogram()[::3])),
    ("verify", lambda _, image, *__: image.verify()), ("close", lambda _, image, *__: image.close()),
    ("seek", lambda random, image, *_: image.seek(random.randrange(2))), ("difference", _difference),
    ("readonly", lambda _, image, *__: bool(image.readonly)), ("core", lambda _, image, *__: image.im.size),
    ("extrema", lambda _, image, *__: image.getextrema()),
    ("point", lambda _, image, *__: image.point(lambda v: 255 - v)),
    ("raw size", lambda _, image, *__: (image.width, image.height, image.mode, image.format_description)),
]  # fmt: skip
WEIGHTS = [14, 14, 14, 8, 3, 3, 4, 3, *[1] * (len(STEPS) - 8)]
