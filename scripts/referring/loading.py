# SPDX-License-Identifier: Apache-2.0
"""Hashes the batches that feedrate.Loader gives from the packs, for several sets of options, on the CPU."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

BATCHES = 4
DEPTH = (
    "clip"  # one of the photographs is gray of 16 bits, and records are of its pixels as Pillow converts them
)


def record_loading(work: Path) -> dict[str, Any]:
    """Return the hashes of the first batches of each set of options; an error by its words."""
    return {name: attempt(make, work) for name, make in CASES.items()}


def attempt(make: Callable[[Path], Any], work: Path) -> Any:
    try:
        return make(work)
    except Exception as error:  # an error is a result, too
        return f"{type(error).__name__}: {error}".replace(str(work), "<work>")


def digest(batch: Any) -> str:
    """Return the SHA-256 of a batch's bytes, types and shapes."""
    found = hashlib.sha256()
    add_value(found, batch)
    return found.hexdigest()


def add_value(found: Any, value: Any) -> None:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        found.update(str(value.dtype).encode())
        value = value.float().numpy() if "bfloat16" in str(value.dtype) else value.numpy()
    if isinstance(value, np.ndarray):
        found.update(f"{value.dtype} {value.shape}".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, dict):
        for name in sorted(value):
            found.update(name.encode())
            add_value(found, value[name])
    elif isinstance(value, list | tuple):
        found.update(f"{type(value).__name__} {len(value)}".encode())
        for each in value:
            add_value(found, each)
    elif hasattr(value, "tobytes"):  # an image of Pillow's, a number of numpy's
        found.update(f"{getattr(value, 'mode', '')} {getattr(value, 'size', '')}".encode())
        found.update(value.tobytes())
    else:
        found.update(repr(value).encode())


def load(pack: str, epochs: int = 1, **options: Any) -> Callable[[Path], Any]:
    def make(work: Path) -> Any:
        import feedrate

        options.setdefault("output", "numpy")
        options.setdefault("threads", 2)
        options.setdefault("depth", DEPTH)
        with feedrate.Loader(work / pack, **options) as loader:
            return [hash_batches(loader) for _ in range(epochs)]

    return make


def hash_batches(batches: Iterable[Any]) -> list[str]:
    return [digest(batch) for batch, _ in zip(batches, range(BATCHES), strict=False)]


def resume(work: Path) -> Any:
    import feedrate

    options: dict[str, Any] = {
        "image": feedrate.RandomResizedCrop(24),
        "seed": 5,
        "output": "numpy",
        "flip": True,
    }
    with feedrate.Loader(work / "equals.pack", 8, **options) as loader:
        first = [digest(batch) for batch, _ in zip(loader, range(2), strict=False)]
        state = loader.state_dict()
        words = dict(sorted(loader.state_dict().items()))
    with feedrate.Loader(work / "equals.pack", 6, **options) as again:
        again.load_state_dict(json.loads(json.dumps(state)))
        return {"first": first, "state": words, "rest": [digest(batch) for batch in again]}


def refuse_state(work: Path) -> Any:
    import feedrate

    with feedrate.Loader(work / "equals.pack", 8, fields=("label",), seed=1) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with feedrate.Loader(work / "equals.pack", 8, fields=("label",), seed=2) as loader:
        loader.load_state_dict(state)


def stats(work: Path) -> Any:
    import feedrate

    with feedrate.Loader(
        work / "normal.pack", 8, image=feedrate.CenterCrop(32, resize=36), depth=DEPTH
    ) as loader:
        list(loader)
        found = dataclasses.asdict(loader.stats())
    return {
        "names": sorted(found),
        "stages": [stage["name"] for stage in found["stages"]],
        "by_pillow": found["by_pillow"],
        "pillow_reasons": found["pillow_reasons"],
    }


def pillow_reasons(work: Path) -> Any:
    import feedrate

    with feedrate.Loader(work / "photos.pack", 8, image=feedrate.Resize(32), depth=DEPTH) as loader:
        list(loader)
        return {"by_pillow": loader.stats().by_pillow, "reasons": dict(loader.stats().pillow_reasons)}


def skip_bad(work: Path) -> Any:
    import feedrate

    seen: list[str] = []
    with feedrate.Loader(
        work / "damaged.pack", 8, shuffle=False, image=feedrate.Resize(32), output="numpy", depth=DEPTH,
        on_bad_sample=lambda bad: seen.append(str(bad)),
    ) as loader:  # fmt: skip
        batches = [digest(batch) for batch in loader]
    return {"batches": batches, "bad": [line.replace(str(work), "<work>") for line in seen]}


def dataset(work: Path) -> Any:
    import feedrate

    plain = feedrate.Dataset(work / "photos.pack", depth=DEPTH)
    drawn = feedrate.Dataset(
        work / "equals.pack", image=feedrate.RandomResizedCrop(32), flip=True, seed=3, output="numpy"
    )
    return {
        "length": [len(plain), len(drawn)],
        "plain": [digest(plain[n]) for n in range(6)],
        "drawn": [digest(drawn[n]) for n in range(6)],
    }


def decode(work: Path) -> Any:
    import feedrate

    found = {}
    for path in sorted((work / "photos").rglob("*.*")):
        for name, options in (
            ("whole", {}),
            ("part", {"crop": (1, 1, 4, 3), "size": (10, 12)}),
            ("gray", {"mode": "L"}),
        ):
            key = f"{path.relative_to(work)} {name}"
            found[key] = attempt(
                lambda _, path=path, options=options: digest(feedrate.decode(path, depth=DEPTH, **options)),
                work,
            )
    return found


def many_crops(work: Path) -> Any:
    import feedrate

    files = sorted((work / "equals").rglob("*.jpg"))[:6]
    result = feedrate.decode_batch(files, [(n, 0, 40 + n, 40) for n in range(6)], size=24)
    return digest(result)


def cached(work: Path) -> Any:
    import feedrate

    options: dict[str, Any] = {"image": feedrate.RandomResizedCrop(24), "output": "numpy"}
    with feedrate.Loader(work / "equals.pack", 8, cache=feedrate.Cache(ram="50MB"), **options) as loader:
        return [hash_batches(loader) for _ in range(2)]


def on_scratch(work: Path) -> Any:
    import feedrate

    (work / "loader-scratch").mkdir(exist_ok=True)
    options: dict[str, Any] = {
        "image": feedrate.Resize(24),
        "output": "numpy",
        "scratch": work / "loader-scratch",
        "depth": DEPTH,
    }
    with feedrate.Loader(work / "two.pack", 8, **options) as loader:
        return [len(list(loader)) for _ in range(2)]


def finished(work: Path) -> Any:
    import feedrate

    steps = [
        feedrate.ColorJitter(0.4, 0.4, 0.4, 0.1),
        feedrate.Grayscale(0.3),
        feedrate.RandomErasing(0.5),
        feedrate.MixUp(0.4),
    ]
    with feedrate.Loader(
        work / "equals.pack",
        8,
        image=feedrate.RandomResizedCrop(24),
        normalize="imagenet",
        on_device=steps,
        seed=1,
    ) as loader:
        images, labels = next(iter(loader))
        # Sums of floats may differ in the last bits between machines.
        return {
            "images": str(images.dtype),
            "shape": list(images.shape),
            "mean": round(float(images.mean()), 3),
            "labels": digest(labels),
        }


def crop(name: str, *sizes: Any, **options: Any) -> Any:
    import feedrate

    return getattr(feedrate, name)(*sizes, **options)


def with_image(pack: str, image: Callable[[], Any], **options: Any) -> Callable[[Path], Any]:
    return lambda work: load(pack, image=image(), **options)(work)


PACKS = (
    "photos.pack", "two.pack", "tfrecord.pack", "hdf5.pack", "raw.pack", "resized.pack", "normal.pack",
    "kept.pack", "no-scan.pack", "entries.pack", "mapped.pack", "zip.pack", "webdataset.pack", "parquet.pack",
    "webdataset.index", "photos.index", "arrays.pack", "arrays.h5.index", "joined.pack",
    "killed-tar.pack", "equals-raw.pack",
)  # fmt: skip


def train_crops() -> Any:
    return crop("RandomResizedCrop", 32)


CASES: dict[str, Callable[[Path], Any]] = {
    **{
        f"train crops of {name}": with_image(name, train_crops, batch_size=8, seed=7, flip=True)
        for name in PACKS
    },
    "evaluation": with_image(
        "photos.pack", lambda: crop("CenterCrop", 32, resize=40), batch_size=8, shuffle=False
    ),
    "bad samples skipped": with_image("no-scan.pack", train_crops, batch_size=8, on_bad_sample="skip"),
    "whole images of one size": load("equals.pack", batch_size=8, seed=2, epochs=2),
    "whole images of many sizes": load("photos.pack", batch_size=8),
    **{
        f"filter {name}": with_image(
            "photos.pack",
            lambda name=name: crop("RandomResizedCrop", 40, interpolation=name),
            batch_size=8,
            seed=1,
        )
        for name in ("bilinear", "bicubic", "lanczos", "box", "hamming", "nearest", ("bilinear", "bicubic"))
    },
    "crops with padding": with_image(
        "equals.pack", lambda: crop("RandomCrop", 72, padding=4), batch_size=8, seed=1
    ),
    "crops that mirror": with_image(
        "equals.pack",
        lambda: crop("RandomCrop", 60, padding=4, padding_mode="reflect"),
        batch_size=8,
        flip=0.3,
    ),
    "many crops": with_image(
        "equals.pack",
        train_crops,
        batch_size=8,
        seed=4,
        fields=("image", "label", "key", "number"),
    ),
    "views": lambda work: load(
        "equals.pack",
        batch_size=8,
        image=train_crops(),
        fields=("image", crop("View", "image", size=24), "label"),
    )(work),
    "gray": with_image("photos.pack", train_crops, batch_size=8, mode="L"),
    "windowed": load("equals.pack", batch_size=8, fields=("number", "key"), order="windowed", epochs=2),
    "staged": load("equals.pack", batch_size=8, fields=("number",), order="staged", epochs=2),
    "stored order": load("two.pack", batch_size=8, fields=("number", "label"), shuffle=False),
    "given order": load("equals.pack", batch_size=4, fields=("number",), order=[5, 3, 3, 1, 0, 9]),
    "balanced": load("equals.pack", batch_size=8, fields=("label", "number"), weights="balanced", epochs=2),
    "split": load("equals.pack", batch_size=8, fields=("number", "age", "caption"), split="validation"),
    "fold": load("equals.pack", batch_size=8, fields=("number",), split="fold:1"),
    "share": load("equals.pack", batch_size=8, fields=("number",), split=(0.7, 1)),
    "second rank of three": load(
        "equals.pack", batch_size=4, fields=("number",), rank=1, world_size=3, epochs=2
    ),
    "padded rank": load("equals.pack", batch_size=5, fields=("number",), rank=2, world_size=4, pad=True),
    "last batch dropped": load("equals.pack", batch_size=20, fields=("number",), drop_last=True),
    "all fields": with_image(
        "table.pack",
        train_crops,
        batch_size=5,
        flip=True,
        fields=("image", "label", "mask", "features", "caption", "age", "boxes", "key", "number"),
    ),
    "all fields of hdf5": with_image(
        "table-hdf5.pack", train_crops, batch_size=5, fields=("image", "mask", "features", "caption", "boxes")
    ),
    "all fields of tfrecord": with_image(
        "table-tfrecord.pack",
        train_crops,
        batch_size=5,
        fields=("image", "mask", "features", "caption", "boxes"),
    ),
    "several labels": load("tags.pack", batch_size=5, fields=("labels", "number")),
    "transform": with_image(
        "equals.pack", train_crops, batch_size=8, transform=lambda sample: {"sum": int(sample["image"].sum())}
    ),
    "torch": with_image("equals.pack", train_crops, batch_size=8, output="torch"),
    "resumed": resume,
    "state of another seed": refuse_state,
    "stats": stats,
    "what Pillow decodes": pillow_reasons,
    "bad samples": skip_bad,
    "cache": cached,
    "scratch": on_scratch,
    "finished on the device": finished,
    "Dataset": dataset,
    "decode": decode,
    "decode_batch": many_crops,
    "public names": lambda _: sorted(__import__("feedrate").__all__),
    "wrong option": load("equals.pack", batch_size=8, num_workers=4),
    "wrong field": load("equals.pack", batch_size=8, fields=("picture",)),
    "wrong split": load("equals.pack", batch_size=8, fields=("label",), split="test"),
    "wrong size": load("equals.pack", batch_size=0),
}
