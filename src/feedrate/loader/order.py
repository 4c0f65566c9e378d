# SPDX-License-Identifier: Apache-2.0
"""Which samples, in which order: a pure function of (seed, epoch, kind), computed and never stored.

An epoch has `length` slots; an order says which sample stands in which slot. Which rank takes which slot is
ranks.py's business, so the global order cannot depend on the number of ranks. A split says which samples an
order is over; a saved state, where in an epoch a loader stands, and which settings must agree to go on there.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from feedrate import kernel
from feedrate.arrays import F64, I64
from feedrate.draws import GROUP, Purpose, draw_uniforms, make_key, mix_array, order_shards, permute
from feedrate.errors import PackError, UsageError
from feedrate.format.fields import Field, Kind
from feedrate.format.manifest import Manifest
from feedrate.format.pack import Pack
from feedrate.loader.arguments import is_whole
from feedrate.loader.options import Options, find_label
from feedrate.units import shell_quote

log = logging.getLogger("feedrate")

# 256 samples of 110 KB are one sequential read of 28 MB; 16 of them mix 4096 samples.
BLOCK = 256
WINDOW_BLOCKS = GROUP


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """One epoch's order: `indices(slots)` gives the sample in each slot."""

    length: int
    indices: Callable[[I64], I64]


class Order(ABC):
    """A kind of order over `n` samples."""

    kind: ClassVar[str]
    repeats = False  # True: one sample may come several times in an epoch

    def __init__(self, n: int, seed: int = 0) -> None:
        self.n, self.seed = n, seed

    @abstractmethod
    def at(self, epoch: int) -> EpochOrder: ...

    def identity(self) -> str:
        """Return the difference to other orders of its kind, for the saved state."""
        return ""


class Sequential(Order):
    kind = "sequential"

    def at(self, epoch: int) -> EpochOrder:
        del epoch
        return EpochOrder(self.n, lambda slots: slots)


class Shuffled(Order):
    kind = "shuffled"

    def at(self, epoch: int) -> EpochOrder:
        key = make_key(self.seed, epoch, Purpose.ORDER)
        return EpochOrder(self.n, lambda slots: permute(slots, self.n, key))


class _InBlocks(Order):
    """Samples move in blocks, and are mixed in windows of several blocks."""

    def __init__(self, n: int, seed: int, block: int = BLOCK, window_blocks: int = WINDOW_BLOCKS) -> None:
        super().__init__(n, seed)
        self.block, self.window = block, block * window_blocks

    def identity(self) -> str:
        return f"{self.block}x{self.window // self.block}"

    def _mix_windows(self, slots: I64, epoch: int) -> I64:
        """Return a permutation that moves no slot out of its window."""
        number, inside = np.divmod(slots, self.window)
        keys = mix_array(number.astype(np.uint64) + np.uint64(make_key(self.seed, epoch, Purpose.WINDOW)))
        last = number == self.n // self.window
        mixed = np.empty_like(slots)
        for members, size in ((~last, self.window), (last, self.n % self.window)):
            mixed[members] = permute(inside[members], size, keys[members])
        return number * self.window + mixed


class Windowed(_InBlocks):
    """Blocks of neighbours in a random order, mixed inside windows of several blocks: large reads, still well
    shuffled.

    Blocks begin at another place in every epoch, so that neither their members nor the short block that
    remains at the end are always the same.
    """

    kind = "windowed"

    def at(self, epoch: int) -> EpochOrder:
        return EpochOrder(self.n, lambda slots: self._indices(epoch, slots))

    def _indices(self, epoch: int, slots: I64) -> I64:
        whole_blocks = self.n // self.block
        block, rest = np.divmod(self._mix_windows(slots, epoch), self.block)
        is_whole = block < whole_blocks
        block[is_whole] = permute(block[is_whole], whole_blocks, make_key(self.seed, epoch, Purpose.BLOCKS))
        offset = make_key(self.seed, epoch, Purpose.OFFSET) % max(self.n, 1)
        shifted: I64 = (block * self.block + rest + offset) % self.n
        return shifted


class Staged(_InBlocks):
    """While a pack flows to scratch: the first epoch follows the flow, later ones are shuffled.

    Shards flow in groups, side by side (see `store.flow`), so a window of the first epoch takes the next
    block of each shard of a group, and mixes them. Groups and blocks are the same for all seeds: all jobs of
    a node ask for the same shards at about the same time. What has landed, and when, changes nothing.

    Args:
        edges: where shards begin among the samples, in stored order; one more than there are shards.
        by_position: the samples in stored order; None: they are.
    """

    kind = "staged"

    def __init__(
        self, n: int, seed: int, edges: I64, by_position: I64 | None = None, *,
        block: int = BLOCK, window_blocks: int = WINDOW_BLOCKS,
    ) -> None:  # fmt: skip
        super().__init__(n, seed, block, window_blocks)
        self._by_position = by_position
        self._later = Shuffled(n, seed)
        counts = -(-np.diff(edges) // block)
        shards = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(shards)) - np.repeat(np.cumsum(counts) - counts, counts)
        turn = np.argsort(order_shards(len(counts)))  # when each shard has its turn
        flow = np.lexsort((turn[shards], number, turn[shards] // window_blocks))
        starts = edges[shards] + number * block
        lengths = np.minimum(block, edges[shards + 1] - starts)
        self._starts = starts[flow]
        self._before = np.cumsum(lengths[flow]) - lengths[flow]

    def at(self, epoch: int) -> EpochOrder:
        if epoch:
            return self._later.at(epoch)
        return EpochOrder(self.n, self._indices)

    def _indices(self, slots: I64) -> I64:
        mixed = self._mix_windows(slots, 0)
        block = np.searchsorted(self._before, mixed, side="right") - 1
        found: I64 = self._starts[block] + mixed - self._before[block]
        return found if self._by_position is None else self._by_position[found]


class Given(Order):
    """Positions the user gave: an array for every epoch, or a function of the epoch."""

    kind, repeats = "given", True

    def __init__(self, given: Sequence[int] | I64 | Callable[[int], Sequence[int] | I64], n: int) -> None:
        super().__init__(n)
        self._given = given
        self._latest: tuple[int, I64] | None = None if callable(given) else (-1, self._check(given))

    def at(self, epoch: int) -> EpochOrder:
        positions = self._positions(epoch)
        return EpochOrder(len(positions), lambda slots: positions[slots])

    def identity(self) -> str:
        if callable(self._given):
            return "callable"  # it may differ from epoch to epoch; its author answers for it
        return _digest(self._positions(0))

    def _positions(self, epoch: int) -> I64:
        latest = self._latest
        if callable(self._given) and (latest is None or latest[0] != epoch):
            latest = self._latest = (epoch, self._check(self._given(epoch)))
        assert latest is not None
        return latest[1]

    def _check(self, given: Sequence[int] | I64) -> I64:
        array = np.asarray(given)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise UsageError(
                f"order must be a list of positions, got an array of {array.dtype} with shape {array.shape}"
            )
        positions = array.astype(np.int64)
        if positions.size and (positions.min() < 0 or positions.max() >= self.n):
            worst = positions.min() if positions.min() < 0 else positions.max()
            raise UsageError(f"order holds position {worst}; this pack has positions 0 to {self.n - 1}")
        return positions


class Weighted(Order):
    """Sampling with replacement, in proportion to weights; an epoch is as long as the dataset."""

    kind, repeats = "weighted", True

    def __init__(self, weights: F64, seed: int) -> None:
        super().__init__(len(weights), seed)
        self._sums = np.cumsum(weights)
        self._identity = _digest(self._sums)

    def at(self, epoch: int) -> EpochOrder:
        key = make_key(self.seed, epoch, Purpose.WEIGHTS)
        return EpochOrder(self.n, lambda slots: self._indices(key, slots))

    def _indices(self, key: int, slots: I64) -> I64:
        points = draw_uniforms(key, slots, 1)[:, 0] * self._sums[-1]
        # side="right" passes over samples of weight 0.
        found: I64 = np.searchsorted(self._sums, points, side="right").astype(np.int64)
        return found

    def identity(self) -> str:
        return self._identity


@dataclass(frozen=True, slots=True)
class Subset:
    """Positions of a split by fractions (None: all), whatever the seed; exact counts.

    A pack is cut piece by piece: what it was made of, then each append. A piece has one fixed permutation, of
    which a split takes a range, so an append moves no sample that was there to the other side.
    """

    pieces: tuple[int, ...]
    fractions: tuple[float, float] | None = None

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self._ranges())

    @property
    def is_whole(self) -> bool:
        return len(self) == sum(self.pieces)

    def identity(self) -> list[Any] | None:
        """Return its fractions, and the pieces where there are several, for the saved state."""
        if self.fractions is None:
            return None
        edges = [float(edge) for edge in self.fractions]
        # States of before there were pieces have the edges alone, and may have cut another part.
        in_one = Subset((sum(self.pieces),), self.fractions)
        is_same = len(self.pieces) == 1 or (self.is_whole and in_one.is_whole)
        return edges if is_same else [*edges, list(self.pieces)]

    def positions(self, indices: I64) -> I64:
        if self.is_whole:
            return indices
        ranges = self._ranges()
        ends = np.cumsum([stop - start for start, stop in ranges])
        which = np.searchsorted(ends, indices, side="right")
        found = np.empty(len(indices), np.int64)
        for piece in np.unique(which).tolist():
            (start, stop), n = ranges[piece], self.pieces[piece]
            inside = indices[which == piece] - (int(ends[piece]) - (stop - start)) + start
            key = make_key(n, Purpose.SPLIT) if piece == 0 else make_key(n, piece, Purpose.SPLIT)
            found[which == piece] = permute(inside, n, key) + sum(self.pieces[:piece])
        return found

    def _ranges(self) -> list[tuple[int, int]]:
        start, stop = self.fractions or (0.0, 1.0)
        return [(round(start * n), round(stop * n)) for n in self.pieces]


@dataclass(frozen=True, slots=True)
class Members:
    """Positions of a split that is stored in the pack: `chosen` are its samples, in stored order."""

    name: str
    chosen: npt.NDArray[np.int32] | I64

    def __len__(self) -> int:
        return len(self.chosen)

    def positions(self, indices: I64) -> I64:
        return self.chosen[indices].astype(np.int64)

    def identity(self) -> str:
        """Return the difference to other splits of the same name, for the saved state."""
        return f"{self.name} {_digest(self.chosen.astype(np.int64))}"


def _find_pieces(pack: Pack) -> tuple[int, ...]:
    """Return how many samples the pack was made of, and how many each append brought."""
    appended = pack.manifest.settings.get("appended", [])
    try:
        brought = [one["samples"] for one in appended]
        first = len(pack) - sum(brought)
    except (TypeError, KeyError):
        brought, first = [], -1
    if first < 0 or not all(is_whole(count, 0) for count in brought):
        raise PackError(
            f"{pack.name} is damaged: pack.json names appended samples that {len(pack):,} do not hold"
        )
    return first, *brought


def _digest(array: I64 | F64) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).hexdigest()


Split = Subset | Members
DEFAULT_COLUMN = "split"
ALL = "all"


def find_split(pack: Pack, split: str | tuple[float, float] | None) -> Split:
    """Return the samples of a split; None: all of them.

    Args:
        split: fractions `(start, stop)`, or the name of a part: "train" of the column `split`, "fold:2" of
            another column of classes; several with "+" between them; "all".

    Raises:
        UsageError: the pack has no such column, the column no such part, or the split no samples.
        PackError: the column is damaged.
    """
    found = _find_split(pack, None if split == ALL else split)
    if split is not None and len(pack) and not len(found):
        raise UsageError(
            f"split={split!r} holds none of the {len(pack):,} samples of {pack.name}",
            hint="choose a larger share, or leave split out",
        )
    return found


@functools.cache
def tell_parts(pack: str, parts: tuple[str, ...]) -> None:
    log.warning(
        '%s has the parts %s, and all of them are loaded together: split="%s" gives one, split="all" all '
        "without this warning",
        pack, _few(list(parts)), parts[0],
    )  # fmt: skip


def find_parts(pack: Pack) -> tuple[str, ...]:
    """Return the names that `split=` takes for the pack's stored parts; none: it was never split."""
    made = pack.manifest.settings.get("columns", {})
    names: list[str] = []
    for field in pack.fields:
        if field.classes is None or field.kind is not Kind.NUMBER:
            continue
        if field.name == DEFAULT_COLUMN:
            names += field.classes
        elif "shares" in made.get(field.name, {}):
            names += [f"{field.name}:{name}" for name in field.classes]
    return tuple(names) if len(names) > 1 else ()


def count_parts(pack: Pack) -> dict[str, int]:
    """Return the pack's parts by the names that `split=` takes, each with its samples.

    Of several splits, one: that of the usual name, or else the first.
    """
    names = find_parts(pack)
    chosen = [name for name in names if ":" not in name]
    if not chosen and names:
        column = names[0].partition(":")[0]
        chosen = [name for name in names if name.startswith(f"{column}:")]
    return {name: len(_find_split(pack, name)) for name in chosen}


def _find_split(pack: Pack, split: str | tuple[float, float] | None) -> Split:
    if not isinstance(split, str):
        return Subset((len(pack),) if split is None else _find_pieces(pack), split)
    column, colon, parts = split.partition(":")
    if not colon:
        column, parts = DEFAULT_COLUMN, split
    field = _find_column(pack, column)
    values = pack.checked_column(column)
    chosen = np.flatnonzero(np.isin(values, [_number(field, name) for name in parts.split("+")]))
    # Half the memory where it is enough: 4 MB per million samples.
    return Members(split, chosen.astype(np.int32) if len(pack) < 2**31 else chosen)


def members(split: Split) -> I64:
    """Return the positions of all samples of a split."""
    return split.positions(np.arange(len(split), dtype=np.int64))


def _find_column(pack: Pack, name: str) -> Field:
    # Several classes per sample (`labels`, an array) are no parts: a sample would be in more than one.
    known = [f.name for f in pack.fields if f.classes is not None and f.kind is Kind.NUMBER]
    field = pack.manifest.field(name)
    if field is None or name not in known:
        hint = f"make one: feedrate split {shell_quote(pack.name)} train=0.9 validation=0.1"
        if name != DEFAULT_COLUMN:
            hint = f"columns of classes: {', '.join(known) or 'none'}"
        raise UsageError(f"{pack.name} has no split: it has no column '{name}' of classes", hint=hint)
    return field


def _number(field: Field, name: str) -> int:
    classes = list(field.classes or ())
    if name not in classes:
        near = difflib.get_close_matches(name, classes, n=1)
        raise UsageError(
            f"column '{field.name}' has no part {name!r}; it has {_few(classes)}",
            hint=f"did you mean '{near[0]}'?" if near else None,
        )
    return classes.index(name)


def _few(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10:,} more" if len(names) > 10 else "")


def choose_order(pack: Pack, options: Options, subset: Split) -> Order:
    """Return the order over the samples of `subset`."""
    n = len(subset)
    if options.weights is not None:
        return Weighted(_weigh(pack, options.weights, subset), options.seed)
    order = options.order
    if order is None and options.shuffle:
        # Not whether there is a copy, or how much of it: ranks on several nodes would not agree.
        order = "shuffled" if options.scratch is None else "staged"
    if order is None:
        return Sequential(n)
    if not isinstance(order, str):
        return Given(order, n)
    if order == "staged":
        return _stage(pack, options.seed, subset)
    return Windowed(n, options.seed) if order == "windowed" else Shuffled(n, options.seed)


def _stage(pack: Pack, seed: int, subset: Split) -> Staged:
    if len(subset) == len(pack):
        return Staged(len(pack), seed, pack.edges)
    positions = members(subset)
    by_position = np.argsort(positions)
    return Staged(len(subset), seed, np.searchsorted(positions[by_position], pack.edges), by_position)


def _weigh(pack: Pack, weights: Any, subset: Split) -> F64:
    if isinstance(weights, str):
        if weights != "balanced":
            raise UsageError(f'weights must be "balanced" or one number per sample, got {weights!r}')
        return _balance(pack, subset)
    try:
        given = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise UsageError(f'weights must be "balanced" or one number per sample, got {weights!r}') from None
    if given.shape != (len(pack),):
        raise UsageError(
            f"weights must hold a number for each of the pack's {len(pack)} samples, got shape {given.shape}"
        )
    if not np.isfinite(given).all() or (given < 0).any():
        worst = given[~np.isfinite(given) | (given < 0)][0]
        raise UsageError(f"weights must be finite and not negative, got {worst}")
    chosen = given[members(subset)]
    if len(chosen) and not chosen.sum() > 0:
        raise UsageError("weights are all 0: no sample can be drawn")
    return chosen


def _balance(pack: Pack, subset: Split) -> F64:
    label = find_label(pack)
    if label.kind is not Kind.NUMBER or label.dtype != "int64":
        raise UsageError(
            f'weights="balanced" needs a label of whole numbers; this pack\'s {label.name} is {label.kind}',
            hint="weights=[...] takes one number per sample",
        )
    # Not checked row by row, which takes 24 s for 1.3 million: a damaged row is found when its sample comes.
    _, classes, counts = np.unique(
        pack.column(label.name)[members(subset)], return_inverse=True, return_counts=True
    )
    return 1.0 / counts[classes]


VERSION = 1
_WORDS = {
    "pack": "was taken from another pack",
    "seed": "has another seed",
    "order": "has another kind of order",
    "detail": "has other weights, positions or window sizes",
    "split": "is of another split",
}


def fingerprint(manifest: Manifest) -> str:
    """Return a pack's fingerprint: from the checksums of its shards, in order."""
    known = (shard.known_by for shard in manifest.shards)
    checks = ",".join(f"{samples}:{size_bytes}:{crc32c:08x}" for samples, size_bytes, crc32c in known)
    return f"{manifest.samples}-{kernel.crc32c(checks.encode()):08x}"


def dump_state(
    pack: str, options: Options, split: Split, order: Order, place: tuple[int, int, int]
) -> dict[str, Any]:
    """Return the state at `place`: epoch, samples given and samples skipped in it, on all ranks together."""
    epoch, samples, skipped = place
    return {
        "version": VERSION,
        "pack": pack,
        "seed": int(options.seed),
        "order": order.kind,
        "detail": order.identity(),
        "split": split.identity(),
        "depth": list(options.depth) if isinstance(options.depth, tuple) else options.depth,
        "epoch": epoch,
        "samples": samples,
        "skipped": skipped,
    }


def check_state(state: Mapping[str, Any], mine: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return (epoch, samples, skipped) of a state that fits this loader.

    Raises:
        UsageError: it does not fit.
    """
    # States of earlier versions do not have these.
    needed = [name for name in mine if name not in ("skipped", "depth")]
    missing = [name for name in needed if name not in state] if isinstance(state, Mapping) else needed
    if missing:
        raise UsageError(f"this is not the state of a feedrate Loader: it lacks {', '.join(missing)}")
    if state["version"] != VERSION:
        raise UsageError(f"the state has version {state['version']!r}; this feedrate reads version {VERSION}")
    for name, words in _WORDS.items():
        if state[name] != mine[name]:
            raise UsageError(f"the state {words}: {state[name]!r} there, {mine[name]!r} here")
    depth = state.get("depth")  # None: no image has asked for one until then
    if depth is not None and depth != mine["depth"]:
        raise UsageError(f"the state has another depth: {depth!r} there, {mine['depth']!r} here")
    epoch, samples, skipped = state["epoch"], state["samples"], state.get("skipped", 0)
    if not all(isinstance(value, int) and value >= 0 for value in (epoch, samples, skipped)):
        raise UsageError(f"the state is damaged: epoch {epoch!r}, samples {samples!r}, skipped {skipped!r}")
    return epoch, samples, skipped
