# SPDX-License-Identifier: Apache-2.0
"""`feedrate split`: which part each sample belongs to, stored as a column of classes.

Samples, or groups of them, are sorted by a hash of their names and the seed, and the parts are cut off one
after the other. So the same data gives the same parts, whatever its order in the pack, and new samples move
few others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from feedrate import kernel
from feedrate.errors import NotFound, SourceError, UsageError
from feedrate.format.fields import Field, Kind
from feedrate.format.pack import Pack
from feedrate.kernel import I64
from feedrate.packing.change import update
from feedrate.packing.change.columns import count_classes
from feedrate.packing.change.update import hash_names, read_names
from feedrate.packing.results import ClassShare, SplitResult
from feedrate.units import format_count, printable, shell_quote

_MOST_ROUNDS = 20  # of moving groups; a few are enough
Share = float | int | Literal["rest"]  # a fraction, a number of samples, or what the others leave


def parse_shares(texts: Sequence[str]) -> dict[str, Share]:
    """Read `train=0.9`, `train=90%`, `validation=5000` and `train=rest`."""
    shares: dict[str, Share] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"'{text}' is not a part", hint="write it like train=0.9, or train=rest")
        if name in shares:
            raise UsageError(f"part '{name}' is given twice")
        shares[name] = _parse_share(name, value)
    return shares


def _parse_share(name: str, text: str) -> Share:
    if text == "rest":
        return "rest"
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        raise UsageError(
            f"part '{name}' cannot have '{text}'",
            hint="write a fraction (0.9), a percentage (90%), a number of samples (5000) or rest",
        ) from None


def count_shares(shares: Mapping[str, Share], samples: int) -> list[int]:
    """Return how many samples each part gets; they add up to `samples` exactly."""
    fixed = {name: share for name, share in shares.items() if share != "rest"}
    for name, share in fixed.items():
        if isinstance(share, bool) or not float(share) > 0:
            raise UsageError(f"part '{name}' must get more than 0, got {share}")
    wanted = {n: float(s) * samples if isinstance(s, float) else float(s) for n, s in fixed.items()}
    total = sum(wanted.values())
    if total > samples * (1 + 1e-9) or (len(fixed) == len(shares) and total < samples * (1 - 1e-9)):
        said = ", ".join(f"{name}={share}" for name, share in shares.items())
        raise UsageError(
            f"{said} adds up to {total:,.10g} samples, and the pack has {samples:,}",
            hint="fractions must add up to 1; NAME=rest takes what the others leave",
        )
    counts = dict(zip(wanted, _round_to(list(wanted.values()), round(total)), strict=True))
    left = samples - sum(counts.values())
    return [counts.get(name, left) for name in shares]


def count_missing(counts: Sequence[int], given: I64) -> list[int]:
    """Return how many of the samples without a part (-1) each part gets, so that `counts` are met."""
    there = np.bincount(given[given >= 0], minlength=len(counts))
    missing = np.maximum(np.array(counts) - there, 0)
    free = int((given < 0).sum())
    # Where a part has too much already, the others get less than they miss.
    return _round_to((missing * (free / max(int(missing.sum()), 1))).tolist(), free)


def _round_to(wanted: Sequence[float], total: int) -> list[int]:
    """Round numbers so that they add up: those with the largest fractions up."""
    counts = [int(value + 1e-9) for value in wanted]
    for place in sorted(range(len(wanted)), key=lambda i: counts[i] - wanted[i])[: total - sum(counts)]:
        counts[place] += 1
    return counts


def split_samples(hashes: np.ndarray[Any, Any], strata: I64, counts: Sequence[int]) -> I64:
    """Return the part of each sample: exactly `counts`, and of each stratum its share, give or take a few."""
    parts = np.full(len(hashes), len(counts) - 1, np.int64)
    left = np.lexsort((hashes, strata))
    for part, count in enumerate(counts[:-1]):
        if not len(left):
            break
        sizes = np.bincount(strata[left])
        ends = np.cumsum(sizes)
        taken = np.diff(ends * count // len(left), prepend=0)
        place = np.arange(len(left)) - (ends - sizes)[strata[left]]
        chosen = place < taken[strata[left]]
        parts[left[chosen]] = part
        left = left[~chosen]
    return parts


def split_groups(groups: I64, hashes: np.ndarray[Any, Any], counts: Sequence[int]) -> I64:
    """Return the part of each sample; groups stay whole, so counts are met as nearly as groups allow.

    Args:
        groups: of each sample.
        hashes: of each group.
    """
    sizes = np.bincount(groups, minlength=len(hashes))
    order = np.argsort(hashes, kind="stable")
    # Where a group's middle falls when groups are laid end to end.
    middles = np.cumsum(sizes[order]) - sizes[order] / 2
    part_of_group = np.zeros(len(hashes), np.int64)
    part_of_group[order] = np.searchsorted(np.cumsum(counts)[:-1], middles, side="right")
    return part_of_group[groups]


def split_strata_of_groups(
    groups: I64, hashes: np.ndarray[Any, Any], strata: I64, counts: Sequence[int], given: I64
) -> I64:
    """Return the part of each sample: groups stay whole, each part gets its share of each stratum as nearly
    as they allow.

    Large groups are placed first, those of about one size in the order of their hashes, each where it brings
    the parts nearest to their shares; then groups move as long as that brings them nearer still.

    Args:
        groups: of each sample.
        hashes: of each group.
        strata: of each sample, from 0.
        counts: samples of each part.
        given: the part of each sample, -1: none yet. A group that has one keeps it.
    """
    classes = int(strata.max()) + 1
    held = _count_held(groups, strata, len(hashes), classes)
    sizes = np.bincount(groups, minlength=len(hashes))
    # The whole counts as one more stratum, so that parts have the sizes that they should.
    totals = np.append(np.bincount(strata, minlength=classes), len(strata)).astype(float)
    shares = np.array(counts) / max(sum(counts), 1)
    wanted = shares[:, None] * totals
    weights = 1 / np.maximum(wanted, 1e-9)
    there = np.zeros_like(wanted)
    part_of = np.full(len(hashes), -1, np.int64)
    part_of[groups[given >= 0]] = given[given >= 0]
    for group in np.flatnonzero(part_of >= 0):
        kinds, numbers = held[group]
        there[part_of[group], kinds] += numbers
    free = np.flatnonzero(part_of < 0)
    order = free[np.lexsort((hashes[free], -np.floor(np.log2(np.maximum(sizes[free], 1)))))]
    for _ in range(_MOST_ROUNDS):
        is_moved = False
        for group in order.tolist():
            kinds, numbers = held[group]
            now = int(part_of[group])
            if now >= 0:
                there[now, kinds] -= numbers
            # How much further from their shares (squares, relative to these) all parts are with the group.
            far = (numbers * (2 * (there[:, kinds] - wanted[:, kinds]) + numbers) * weights[:, kinds]).sum(
                axis=1
            )
            best = int(far.argmin())
            if now >= 0 and far[best] > far[now] - 1e-9:
                best = now
            is_moved |= best != now
            part_of[group] = best
            there[best, kinds] += numbers
        if not is_moved:
            break
    return part_of[groups]


def _count_held(groups: I64, strata: I64, number: int, classes: int) -> list[tuple[I64, I64]]:
    """Return of each group which strata it has samples of, and how many; the last is the whole group."""
    pairs, counts = np.unique(groups * classes + strata, return_counts=True)
    ends = np.searchsorted(pairs, np.arange(number + 1) * classes)
    held = []
    for group in range(number):
        inside = slice(ends[group], ends[group + 1])
        kinds, numbers = pairs[inside] - group * classes, counts[inside]
        held.append((np.append(kinds, classes), np.append(numbers, numbers.sum())))
    return held


def _group_names(pack: Pack, options: SplitOptions) -> list[bytes]:
    """Return each sample's group: its folder, what a pattern finds in its path, or the value of a field."""
    if options.by_folder:
        return [path.rpartition(b"/")[0] for path in read_names(pack, by_key=False)]
    if options.by_path:
        return _group_by_path(pack, options.by_path)
    column = _find_field(pack, str(options.by))
    if column.kind is Kind.NUMBER:
        return [repr(value).encode() for value in pack.checked_column(column.name).tolist()]
    return _read_texts(pack, column)


def _group_by_path(pack: Pack, pattern: str) -> list[bytes]:
    try:
        compiled = re.compile(os.fsencode(pattern))
    except re.error as error:
        raise UsageError(f"'{pattern}' is not a regular expression: {error}") from None
    names, unmatched = [], []
    for path in read_names(pack, by_key=False):
        match = compiled.search(path)
        if match is None:
            unmatched.append(path)
        else:
            names.append((match[1] if compiled.groups else match[0]) or b"")
    hint = r"the first (...) in it is the group: --by-path '(patient\d+)'"
    update.check_missing(unmatched, len(pack), f"group: '{pattern}' finds nothing in their paths", hint)
    return names


def _read_texts(pack: Pack, column: Field) -> list[bytes]:
    texts: list[bytes] = []
    for start in range(0, len(pack), 65536):
        positions = np.arange(start, min(start + 65536, len(pack)), dtype=np.int64)
        rows, statuses = pack.rows(positions, [column.name])
        buffer, starts, bad = kernel.read_ranges(pack.files, pack.ranges(column.name, rows, positions))
        for place in np.flatnonzero(statuses | bad):
            raise pack.describe_bad(int(positions[place]), column.name, None, "it cannot be read")
        whole = buffer.tobytes()
        texts += [whole[a:b] for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]
    return texts


def find_strata(pack: Pack, name: str | None) -> I64:
    """Return the stratum of each sample, from 0: its class; None: all are in one."""
    if name is None:
        return np.zeros(len(pack), np.int64)
    column = _find_field(pack, name)
    if column.kind is not Kind.NUMBER or column.dtype != "int64":
        raise UsageError(
            f"--stratify needs a field of classes or whole numbers; '{name}' is {column.dtype or column.kind}"
        )
    _, strata = np.unique(pack.checked_column(name), return_inverse=True)
    return strata.astype(np.int64)


def _find_field(pack: Pack, name: str) -> Field:
    column = pack.manifest.field(name)
    if column is None or column.kind not in (Kind.NUMBER, Kind.TEXT, Kind.JSON):
        known = [f.name for f in pack.fields if f.kind in (Kind.NUMBER, Kind.TEXT, Kind.JSON)]
        raise UsageError(
            f"{pack.path} has no column '{name}' of numbers, classes or text",
            hint=f"it has: {', '.join(known) or 'none'}; 'feedrate add-column' adds one from a table",
        )
    return column


def read_lists(pack: Pack, files: Mapping[str, Path], *, has_rest: bool) -> I64:
    """Return the part of each sample, counted as in `files`; the rest is in one more, if there may be one."""
    parts = list(files)
    part_of: dict[bytes, int] = {}
    for number, file in enumerate(files.values()):
        for line in _read_list(file):
            if part_of.setdefault(line, number) != number:
                other = parts[part_of[line]]
                raise SourceError(
                    f"'{printable(line)}' stands in the lists of '{other}' and of '{parts[number]}'"
                )
    values = np.full(len(pack), len(parts), np.int64)
    missing: list[bytes] = []
    used: set[bytes] = set()
    paths = read_names(pack, by_key=not _has_paths(pack))
    for place, (path, key) in enumerate(zip(paths, pack.all_texts("key"), strict=True)):
        name = path if path in part_of else key
        if name in part_of:
            values[place] = part_of[name]
            used.add(name)
        elif not has_rest:
            missing.append(path)
    strangers = [name for name in part_of if name not in used]
    if strangers:
        raise SourceError(
            f"the lists name {format_count(len(strangers), 'sample')} that {pack.path} does not have:"
            f" {update.some(strangers)}",
            hint="a line is an original path or a key; "
            f"see some: feedrate ls {shell_quote(pack.path)} --samples 5",
        )
    update.check_missing(missing, len(pack), "part: no list names them", hint="give them one: NAME=rest")
    return values


def _has_paths(pack: Pack) -> bool:
    try:
        return bool(len(pack)) and bool(next(read_names(pack, by_key=False)))
    except UsageError:
        return False


def _read_list(path: Path) -> list[bytes]:
    try:
        text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise NotFound(f"cannot read the list {path}: {error.strerror}") from None
    lines = [line.strip("\r") for line in text.split("\n")]
    names = [update.as_path(line) for line in lines if line.strip()]
    if not names:
        raise SourceError(f"the list {path} is empty")
    return names


_PART = re.compile(r"[^\s:+=,/]{1,100}")


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """Settings of `split`.

    Attributes:
        files: part -> a file that lists its samples, a path or key per line.
        seed: another one gives other parts.
        by: a field: samples with the same value stay together.
        by_path: a regular expression: samples in whose original paths it finds the same stay together; what
            its first group finds, where it has one.
        by_folder: samples of one folder stay together.
        stratify: a field of classes: each part gets its share of each class, as nearly as groups allow.
        name: of the column.
        replace: a column of this name may be there.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    seed: int = 0
    by: str | None = None
    by_path: str | None = None
    by_folder: bool = False
    stratify: str | None = None
    name: str = "split"
    replace: bool = False

    def __post_init__(self) -> None:
        ways = [w for w in (self.by, self.by_path, self.by_folder or None) if w is not None]
        if len(ways) > 1:
            raise UsageError("--by, --by-path and --by-folder exclude each other: choose one")
        if self.files and (ways or self.stratify is not None):
            raise UsageError("with --file the lists decide: --by and --stratify have no say")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed must be at least 0 and below 2**63, got {self.seed}")

    def settings(self) -> dict[str, Any]:
        told = {
            "seed": self.seed, "by": self.by, "by_path": self.by_path, "by_folder": self.by_folder or None,
            "stratify": self.stratify,
        }  # fmt: skip
        return {name: value for name, value in told.items() if value is not None}


def split(
    pack: str | os.PathLike[str], shares: Mapping[str, Share], options: SplitOptions | None = None
) -> SplitResult:
    """Divide the samples of a pack into named parts, for `Loader(pack, split=NAME)`.

    Args:
        shares: part -> fraction, number of samples, or "rest". With `options.files` only "rest" makes sense.

    Raises:
        NotFound: there is no pack, or no such list.
        UsageError: the parts do not add up, or one of them would be empty.
        SourceError: a list names what is not there, or samples that another list names too.
        AlreadyExists: the pack has such a column, or another process is changing the pack.
    """
    options = options or SplitOptions()
    parts = _check_parts(shares, options)
    with update.changing(pack) as opened:
        update.check_taken(opened, options.name, replace=options.replace)
        replaced = opened.manifest.field(options.name) is not None
        groups: I64 | None = None
        if options.files:
            values = read_lists(opened, options.files, has_rest=bool(shares))
        else:
            values, groups = _divide(opened, shares, options, np.full(len(opened), -1, np.int64))
        made = {"shares": dict(shares), **options.settings()}
        if options.files:
            made["files"] = {name: path.name for name, path in options.files.items()}
        return _store(opened, options.name, parts, values, groups, made, replaced=replaced)


def extend_split(pack: str | os.PathLike[str], name: str = "split") -> SplitResult:
    """Give samples that came later a part, as the split was made; no other sample moves.

    Raises:
        NotFound: there is no pack.
        UsageError: it has no such split, or one that was made from lists.
        AlreadyExists: another process is changing the pack.
    """
    with update.changing(pack) as opened:
        column = opened.manifest.field(name)
        made = opened.manifest.settings.get("columns", {}).get(name, {})
        if column is None or column.classes is None or "shares" not in made:
            raise UsageError(
                f"{opened.path} has no split '{name}'", hint="make one: feedrate split PACK NAME=SHARE ..."
            )
        if "files" in made:
            raise UsageError(
                f"the split '{name}' of {opened.path} was made from lists, which do not say where others go",
                hint="give longer lists: --file NAME=FILE --replace",
            )
        told = {key: made[key] for key in ("seed", "by", "by_path", "by_folder", "stratify") if key in made}
        given = opened.checked_column(name)
        values, groups = _divide(opened, made["shares"], SplitOptions(**told), given)
        return _store(opened, name, column.classes, values, groups, made, replaced=True)


def _divide(
    pack: Pack, shares: Mapping[str, Share], options: SplitOptions, given: I64
) -> tuple[I64, I64 | None]:
    """Return the part of each sample, and its group if there are groups; samples with a part keep it."""
    counts, values = count_shares(shares, len(pack)), given.copy()
    if options.by is None and options.by_path is None and not options.by_folder:
        free = np.flatnonzero(values < 0)
        strata = find_strata(pack, options.stratify)[free]
        hashes = hash_names(pack.all_texts("key"), options.seed)[free]
        values[free] = split_samples(hashes, strata, count_missing(counts, values))
        return values, None
    names, groups = np.unique(np.array(_group_names(pack, options), object), return_inverse=True)
    if options.stratify is not None:
        hashes, strata = hash_names(names.tolist(), options.seed), find_strata(pack, options.stratify)
        placed = split_strata_of_groups(groups, hashes, strata, counts, values)
        return np.where(values < 0, placed, values), groups
    of_group = np.full(len(names), -1, np.int64)
    of_group[groups[values >= 0]] = values[values >= 0]
    values = np.where(values < 0, of_group[groups], values)
    free = np.flatnonzero(values < 0)
    new, inside = np.unique(groups[free], return_inverse=True)
    hashes = hash_names(names[new].tolist(), options.seed)
    values[free] = split_groups(inside, hashes, count_missing(counts, values))
    return values, groups


def _store(
    pack: Pack,
    name: str,
    parts: tuple[str, ...],
    values: I64,
    groups: I64 | None,
    made: Mapping[str, Any],
    *,
    replaced: bool,
) -> SplitResult:
    column = Field(name, Kind.NUMBER, dtype="int64", classes=parts)
    counts = count_classes(column, values)
    empty = next((part for part, count in counts.items() if not count), None)
    if empty is not None:
        whole = format_count(len(pack), "sample")
        if groups is not None:
            whole = format_count(len(np.unique(groups)), "group")
        raise UsageError(
            f"part '{empty}' would be empty: the pack has {whole}", hint="give it a larger share"
        )
    label, class_counts = pack.manifest.field("label"), {}
    if label is not None and label.classes is not None:
        labels = pack.column("label")
        class_counts = {p: count_classes(label, labels[values == n]) for n, p in enumerate(parts)}
    part = update.store_column(pack, column, {name: values}, made)
    return SplitResult(
        pack=str(pack.path),
        name=name,
        samples=len(pack),
        parts=counts,
        groups={}
        if groups is None
        else {part: len(np.unique(groups[values == number])) for number, part in enumerate(parts)},
        class_counts=class_counts,
        least_even=None if groups is None else _find_least_even(pack, made.get("stratify"), parts, values),
        size_bytes=part.size_bytes,
        replaced=replaced,
    )


def _check_parts(shares: Mapping[str, Share], options: SplitOptions) -> tuple[str, ...]:
    parts = (*options.files, *(name for name in shares if name not in options.files))
    for name in parts:
        if not _PART.fullmatch(name):
            raise UsageError(f"'{name}' cannot be the name of a part", hint="without spaces and : + = , /")
    twice = next((name for name in shares if name in options.files), None)
    if twice is not None:
        raise UsageError(f"part '{twice}' is given twice")
    if options.files and any(share != "rest" for share in shares.values()):
        raise UsageError("with --file the lists decide; only NAME=rest can stand beside them")
    if sum(share == "rest" for share in shares.values()) > 1:
        raise UsageError("two parts cannot both have the rest")
    if not parts or (len(parts) < 2 and not options.files):
        raise UsageError("a split needs at least two parts", hint="train=0.9 validation=0.1")
    return parts


def _find_least_even(pack: Pack, name: str | None, parts: tuple[str, ...], values: I64) -> ClassShare | None:
    """Return where a class's share of a part differs most from its share of all samples."""
    column = None if name is None else pack.manifest.field(name)
    if column is None:
        return None
    kinds, strata = np.unique(pack.checked_column(column.name), return_inverse=True)
    table = np.zeros((len(parts), len(kinds)))
    np.add.at(table, (values[values >= 0], strata[values >= 0]), 1)
    of_parts, of_all = table / table.sum(axis=1, keepdims=True), table.sum(axis=0) / table.sum()
    part, place = np.unravel_index(np.abs(of_parts - of_all).argmax(), table.shape)
    kind = int(kinds[place])
    return ClassShare(
        part=parts[part],
        name=column.classes[kind] if column.classes and 0 <= kind < len(column.classes) else str(kind),
        share=float(of_parts[part, place]),
        share_of_all=float(of_all[place]),
        absent={
            name: absent for name, row in zip(parts, table, strict=True) if (absent := int((row == 0).sum()))
        },
    )
