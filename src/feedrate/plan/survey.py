# SPDX-License-Identifier: Apache-2.0
"""Describes a dataset by a sample of it: how many samples, how large, how long each takes. In seconds.

Counting, sizes and the page cache come first, before anything is read. Then how the file system answers,
then the costs of samples.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from feedrate import kernel
from feedrate.errors import SourceError
from feedrate.figures import Figure, combine
from feedrate.files.own_folder import own_folder
from feedrate.format.manifest import find_index
from feedrate.kernel import pillow
from feedrate.kernel.depth import is_deep
from feedrate.lab.copier import measure_address, measure_source
from feedrate.lab.samples import find_missing, measure_costs
from feedrate.lab.store import NOT_SEEN, Neighbours, call_patiently
from feedrate.machine.cpu import measure_usable_cores
from feedrate.plan.contents import Content, Sampled, ask_more_sizes, sample_dataset
from feedrate.plan.results import Survey
from feedrate.remote.addresses import is_url
from feedrate.source.names import find_train
from feedrate.units import format_count, shell_quote

# Shares of the time: counting, the file system, reading contents. Costs of samples take three seconds more.
_COUNTING, _STORE, _READING = 0.4, 0.25, 0.15
_HANG_S = 15.0
_COPYING_S = 1.5
_USUAL_CROP = 224
_CHANNELS = 3  # loaders convert to RGB
_FORMATS = {".jpg": "jpeg", ".tif": "tiff"}


def survey_dataset(
    dataset: str,
    *,
    seconds: float = 10.0,
    crop: int | None = None,
    workers: int = 4,
    say: Callable[[str], None],
) -> Survey:
    """Sample a dataset for about so many seconds, whatever its size.

    Args:
        dataset: whatever `feedrate pack` takes, or a pack.
        crop: side of the crops that are trained on; None: 224 pixels, or what the images have.
        workers: of the script's DataLoader: so many read files at a time, where they lie.

    Raises:
        FeedrateError: it is not there, is no dataset, cannot be read, or its file system does not answer.
    """
    began, neighbours = time.monotonic(), Neighbours()
    with _sampling(dataset, seconds, say) as (sampled, scratch):
        say("measuring how the source answers")
        if sampled.fetched:
            source = measure_address(dataset, sampled.fetched, _STORE * seconds)
        else:
            source = measure_source(
                dataset, sampled.timed, sampled.copied, scratch,
                seconds=_STORE * seconds, copying_s=_COPYING_S,
            )  # fmt: skip
        say("reading some samples")
        contents = sampled.read(_READING * seconds)
    sampled, seen = ask_more_sizes(sampled), _inspect_all(dataset, contents, sampled.has_images)
    say("decoding some samples, on one core and on all")
    width, height = map(statistics.median, zip(*(seen.sides or [(0.0, 0.0)]), strict=True))
    side = crop or int(min(width, height, _USUAL_CROP)) or _USUAL_CROP
    costs = measure_costs(
        seen.good, has_images=sampled.has_images, total=sampled.samples.value, side=side,
        lying=sampled.waited, workers=workers,
    )  # fmt: skip
    sizes, busy = _find_sizes(sampled, seen), neighbours.describe()
    notes = [*sizes.notes, *costs.notes, *_note_oddities(dataset, sampled)]
    notes += [f"{NOT_SEEN}, and its figures are assumed"] if source.file_s.note == NOT_SEEN else []
    notes += [f"{busy}: what was timed is less sure, try again when they have ended"] if busy else []
    known = _as_keywords(sampled, Survey) | _as_keywords(costs) | _as_keywords(sizes)
    return Survey(**known | {
        "dataset": dataset, "formats": _find_formats(seen.kinds, sampled.suffixes), "width": width,
        "height": height, "crop": side, "cores": measure_usable_cores(), "source": source,
        "how": f"{sampled.how}; sizes of {len(sampled.sizes):,} and contents of "
        f"{format_count(len(contents), 'sample')} read",
        "took_s": time.monotonic() - began, "notes": tuple(notes), "busy": busy,
        "deep_share": seen.deep / len(seen.good), "trained": find_train(sampled.parts),
    })  # fmt: skip


def _as_keywords(record: Any, taker: Any = None) -> dict[str, Any]:
    """Return the fields of a record, all or those that `taker` has as well."""
    names = [one.name for one in fields(record)]
    return {name: getattr(record, name) for name in names if taker is None or name in taker.__slots__}


@contextlib.contextmanager
def _sampling(dataset: str, seconds: float, say: Callable[[str], None]) -> Iterator[tuple[Sampled, Path]]:
    """Count samples and choose some; yield them, and a folder for their contents."""
    say("counting samples")
    if not is_url(dataset):
        _check_answers(dataset)
    with own_folder(tempfile.gettempdir(), "feedrate-plan-") as scratch:
        sampling = partial(sample_dataset, dataset, str(scratch), seconds=_COUNTING * seconds)
        yield call_patiently(dataset, sampling, _COUNTING * seconds + _HANG_S), scratch


def measure_sizes(dataset: str, *, seconds: float = 10.0, say: Callable[[str], None]) -> Sizes:
    """Return how much a dataset is, as files and decoded; nothing is timed.

    Raises:
        FeedrateError: as `survey_dataset`.
    """
    with _sampling(dataset, seconds, say) as (sampled, _):
        contents = sampled.read(_READING * seconds)
    return _find_sizes(ask_more_sizes(sampled), _inspect_all(dataset, contents, sampled.has_images))


def _check_answers(path: str) -> None:
    """Let another process ask for it first: one that waits for a FUSE server's answer cannot even be killed.

    Raises:
        StorageError: there is no answer.
    """
    with contextlib.suppress(FileNotFoundError):  # no such program, on other systems
        asking = subprocess.Popen(
            ["stat", "-L", "--", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        call_patiently(path, asking.wait, _HANG_S)


def _note_oddities(dataset: str, sampled: Sampled) -> list[str]:
    notes = []
    if not sampled.has_images:
        notes.append("its samples are no images: their bytes count, decoding does not")
    if sampled.parts and not find_train(sampled.parts):
        names = ", ".join(sampled.parts)
        notes.append(f"none of its parts ({names}) is called train: an epoch is counted over all of them")
    if not is_url(dataset) and (index := find_index(dataset)) is not None:
        notes.append(f"its index is {index}: feedrate plan {shell_quote(index)}")
    return notes


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a dataset is; as in a `Survey`."""

    samples: Figure
    sample_bytes: Figure
    total_bytes: Figure
    decoded_bytes: Figure
    factor: Figure
    notes: tuple[str, ...]


def _find_sizes(sampled: Sampled, seen: _Seen) -> Sizes:
    each, encoded = _find_mean(sampled), [float(len(data)) for _, data in seen.good]
    decoded = [width * height * _CHANNELS for width, height in seen.sides] or encoded
    factor = _find_factor(decoded, encoded, sampled.samples.value)
    total = sampled.total_bytes or combine(
        lambda samples, each: samples * each, {"samples": sampled.samples, "each": each}
    )
    return Sizes(
        samples=sampled.samples,
        sample_bytes=each,
        total_bytes=replace(total, note=sampled.samples.note),
        decoded_bytes=combine(lambda k, each: k * each, {"k": factor, "each": each}),
        factor=factor,
        notes=(*sampled.notes, *seen.notes),
    )


class _Seen(NamedTuple):
    """Contents that can be used (suffix, bytes), width and height of images, and words about the others.

    `deep` of them are gray of more than 8 bits; `kinds`: of their formats, where names say something wrong.
    """

    good: list[tuple[str, bytes]]
    sides: list[tuple[float, float]]
    kinds: Counter[str]
    notes: list[str]
    deep: int


def _inspect_all(dataset: str, contents: Sequence[Content], has_images: bool) -> _Seen:
    good: list[tuple[str, bytes]] = []
    sides: list[tuple[float, float]] = []
    bad: list[str] = []
    kinds: Counter[str] = Counter()
    is_misnamed, deep = False, 0
    for suffix, data, why in contents:
        if not data:
            bad.append(why or "it is empty")
        elif not has_images:
            good.append((suffix, data))
        elif isinstance(found := _inspect(data), str):
            bad.append(found)
        else:
            width, height, kind, mode = found
            deep += is_deep(mode)
            good.append((suffix, data))
            sides.append((width, height))
            kinds[kind] += 1
            is_misnamed = is_misnamed or bool(suffix and _FORMATS.get(suffix, suffix[1:]) != kind)
    if not good:
        read = format_count(len(contents), "image" if has_images else "sample")
        raise SourceError(
            f"none of the {read} of {dataset} that were looked at can be used: "
            f"{bad[0] if bad else 'they are empty'}",
            hint="look at one of them: is it what its name says?",
        )
    notes = []
    if bad:
        bad_ones = f"{len(bad):,} of {format_count(len(contents), 'sample')} that were read"
        notes.append(f"{bad_ones} cannot be used; the first: {bad[0]}")
    if deep:
        notes.append(
            f"{deep:,} of {format_count(len(good), 'image')} that were read are gray of more than 8 bits: "
            'choose depth="uint16" (values as they are), (low, high) (that range as 0 to 255) or "clip"'
        )
    return _Seen(good, sides, kinds if is_misnamed else Counter(), notes, deep)


def _inspect(data: bytes) -> tuple[float, float, str, str] | str:
    """Return width, height, format and Pillow's mode of an image; else why it is none."""
    try:
        if kernel.scan(data).damaged:
            pillow.check(data)
        width, height, mode = pillow.measure(data)
        kind = pillow.describe(data)[0].lower()
    except pillow.Undecodable as error:
        return str(error)
    return width, height, "jpeg" if kind == "mpo" else kind, mode


def _find_formats(kinds: Counter[str], suffixes: Counter[str]) -> dict[str, float]:
    """Return the share of each format; names of all files tell more than the contents of a few."""
    if not kinds:
        for suffix, count in suffixes.items():
            kinds[_FORMATS.get(suffix, suffix[1:] or "unknown")] += count
    return {kind: count / kinds.total() for kind, count in kinds.most_common()}


def _find_mean(sampled: Sampled) -> Figure:
    """Return the mean size; that of a part of all samples within two standard errors."""
    sizes = sampled.sizes
    note = f"from {format_count(len(sizes), 'sample')}"
    if sampled.is_all:
        return Figure.exactly(statistics.fmean(sizes), note=note)
    missing = find_missing(len(sizes), sampled.samples.value)
    return Figure.of_mean(sizes, note, least=0.0).narrowed(missing)


def _find_factor(decoded: Sequence[float], encoded: Sequence[float], samples: float) -> Figure:
    """Return decoded by encoded bytes of all samples: a ratio of sums, within two standard errors."""
    total = math.fsum(encoded)
    ratio = math.fsum(decoded) / total
    squares = math.fsum((d - ratio * e) ** 2 for d, e in zip(decoded, encoded, strict=True))
    count = len(encoded)
    half = 2 * math.sqrt(squares * count / (count - 1)) / total if count > 1 else ratio / 2
    half *= find_missing(count, samples)
    return Figure(ratio, max(ratio - half, 0.0), ratio + half, note=f"from {format_count(count, 'sample')}")
