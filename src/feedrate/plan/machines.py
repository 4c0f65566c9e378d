# SPDX-License-Identifier: Apache-2.0
"""`--machines lab.toml`: the kinds of node that a lab has, ranked for one dataset; and jobs on several nodes.

A kind of node is a change as `--what-if` has them (what_if.py), applied to a node of which nothing is known.
"""

from __future__ import annotations

import difflib
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from feedrate.errors import NotFound, StorageError, UsageError, need, suggest_path
from feedrate.figures import GIVEN, Figure
from feedrate.model.scale import DEFAULT_SHARD_BYTES, at_scale
from feedrate.plan.results import Node, Plan, Ranking, Survey
from feedrate.plan.what_if import KEYS, WhatIf, read_changes
from feedrate.units import format_bytes, format_count, format_percent, format_seconds

_MOST_BYTES = 1_000_000
_MOST_COUNTS = 16
_OF_SOURCE = ("storage", "latency", "total", "net")
_OF_NODE = tuple(key for key in KEYS if key not in ("size", "latency", "total", "storage"))
_NEEDED = ("cores", "mem")
_HINT = "docs/model.md has a file to begin with"
_TIE = math.log(1.02)  # times that differ by less are the same, and fewer GPUs are better


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of node. `counts`: of nodes that a job may take."""

    name: str
    what_if: WhatIf
    counts: tuple[int, ...]


def read_machines(path: str | os.PathLike[str]) -> list[Kind]:
    """Return the kinds of node in a TOML file.

    Raises:
        NotFound: there is no such file.
        UsageError: it is not TOML, or says something that makes no sense; the sentence names the place.
    """
    document = _load(Path(path))
    name = os.fspath(path)
    _check_keys(document, ("source", "nodes"), name)
    source = _read_pairs(
        _table(document.get("source", {}), f"{name}: [source]"), _OF_SOURCE, f"{name} [source]"
    )
    kinds = _table(document.get("nodes", {}), f"{name}: [nodes]")
    if not kinds:
        raise UsageError(f"{name} names no kind of node", hint=f"begin with [nodes.NAME]; {_HINT}")
    return [_read_kind(kind, table, source, f"{name} [nodes.{kind}]") for kind, table in kinds.items()]


def _load(path: Path) -> dict[str, Any]:
    toml = need("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is larger than 1 MB, and no list of machines", hint=_HINT)
        document: dict[str, Any] = toml.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise NotFound(f"no file of machines at {path}", hint=suggest_path(path) or _HINT) from None
    except (toml.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is no TOML: {error}", hint=_HINT) from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    return document


def _read_kind(name: str, table: Any, source: list[tuple[str, str]], label: str) -> Kind:
    table = dict(_table(table, label))
    typed = next((key for key in table if _plain(key) == "nodes"), None)
    counts = _read_counts(1 if typed is None else table.pop(typed), label)
    pairs = _read_pairs(table, _OF_NODE, label)
    keys = {_plain(key) for key, _ in pairs}
    missing = [key for key in _NEEDED if key not in keys]
    if missing:
        examples = ", ".join(f'{key} = "{KEYS[key][1]}"' for key in missing)
        raise UsageError(f"{label} says nothing of {' and '.join(missing)}", hint=f"add {examples}")
    # What is not named is not there.
    pairs += [(key, "none") for key in ("gpu", "scratch") if key not in keys]
    own = [pair for pair in source if _plain(pair[0]) not in keys]
    return Kind(name, read_changes([*pairs, *own], label), counts)


def _read_pairs(table: Mapping[str, Any], known: tuple[str, ...], label: str) -> list[tuple[str, str]]:
    _check_keys(table, known, label)
    pairs = []
    for key, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise UsageError(
                f"{label}: {key} must be a number or a text, got {_describe(value)}",
                hint=f'write it like {key} = "{KEYS[_plain(key)][1]}"',
            )
        pairs.append((key, str(value)))
    return pairs


def _read_counts(value: Any, label: str) -> tuple[int, ...]:
    counts = value if isinstance(value, list) else [value]
    if not 1 <= len(counts) <= _MOST_COUNTS or any(isinstance(c, bool | list | dict) for c in counts):
        raise UsageError(
            f"{label}: nodes must be a number, or up to {_MOST_COUNTS} of them, got {_describe(value)}",
            hint="write it like nodes = 4 or nodes = [1, 2, 4]",
        )
    found = [read_changes([("nodes", str(count))], label).nodes for count in counts]
    return tuple(sorted({count for count in found if count is not None}))


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], label: str) -> None:
    for key in table:
        if _plain(key) not in known:
            near = difflib.get_close_matches(_plain(key), known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"{label}: there is no '{key}'", hint=f"{hint}known: {', '.join(known)}")


def _plain(key: str) -> str:
    return key.strip().lower().replace("_", "-")


def _table(value: Any, label: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{label} must be a table, got {_describe(value)}", hint=_HINT)
    return value


def _describe(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def rank_machines(
    survey: Survey,
    path: str | os.PathLike[str],
    *,
    model: str,
    model_rate: float | None,
    epochs: int,
    plan: Callable[[Survey, Node], Plan],
) -> Ranking:
    """Plan for every kind of node in a file and every number of them; the shortest whole run first.

    Of runs that take about the same time, that on fewer GPUs and nodes comes first. A kind whose rate for the
    model is not known is left out and named.

    Args:
        model: a name of KNOWN_MODELS; empty: `model_rate` says what one GPU trains.

    Raises:
        NotFound, UsageError: as read_machines, or no kind is left.
    """
    plans: list[Plan] = []
    left_out: list[str] = []
    kinds = read_machines(path)
    for kind in kinds:
        changed, node = _make_node(kind, survey, model, model_rate, left_out)
        if node is not None:
            # Its page cache is not this one's.
            cold = replace(changed, resident=0.0)
            plans += [plan(cold, replace(node, nodes=count)) for count in kind.counts]
    if not plans:
        raise UsageError(
            f"{os.fspath(path)}: no kind of node is left. {'. '.join(left_out)}",
            hint="add model-rate = IMAGES_PER_S to its table",
        )
    speeds = ", times core-speed where it is given" if any(k.what_if.core_speed for k in kinds) else ""
    notes = [f"a core is taken to make samples as fast as one of this machine{speeds}", *left_out]
    if any(kind.what_if.net_bytes_per_s is None for kind in kinds):
        notes.append("where no net is given, a node reads the source as fast as this one does")
    return Ranking(survey, epochs, tuple(sorted(plans, key=_order)), tuple(notes))


def _make_node(
    kind: Kind, survey: Survey, model: str, model_rate: float | None, left_out: list[str]
) -> tuple[Survey, Node | None]:
    """Return the dataset and the node as this kind has them; None: its rate is not known."""
    given = None if model_rate is None else Figure.exactly(model_rate, GIVEN, "--model-rate")
    nothing = Figure.exactly(1.0, GIVEN)  # cores and memory are always named
    blank = Node(kind.name, nothing, nothing, "", 0, "", None, model, given, None, None, None, "", None)
    try:
        changed, node = kind.what_if.apply(survey, blank)
    except UsageError as error:
        left_out.append(f"{kind.name} is left out: {error.message}; add it as model-rate")
        return survey, None
    if node.gpus == 0 and kind.what_if.model_rate is None:
        left_out.append(f"{kind.name} is left out: it has no GPU; add what its cores train as model-rate")
        return survey, None
    return changed, node


def _order(plan: Plan) -> tuple[float, int, int, float]:
    seconds = take_time(plan)
    gpus = plan.node.gpus * plan.node.nodes
    return math.floor(math.log(max(seconds, 1e-9)) / _TIE), gpus, plan.node.nodes, seconds


def take_time(plan: Plan) -> float:
    """Return how long the recommended way takes; where nothing is worth doing, reading in place."""
    chosen = next((way for way in plan.ways if way.code == plan.recommended), plan.ways[0])
    return chosen.total_s.value


def describe_scale(survey: Survey, node: Node, batch_size: int) -> list[str]:
    """Return what several nodes are to one dataset, in sentences; of one node there is nothing to say."""
    if node.nodes == 1:
        return []
    source, scratch = survey.source, node.scratch
    written = None if scratch is None else scratch.write_bytes_per_s
    scale = at_scale(
        samples=survey.trained_samples.value,
        size_bytes=survey.total_bytes.value,
        nodes=node.nodes,
        gpus=node.gpus,
        node_bytes_per_s=source.total_bytes_per_s.value,
        store_bytes_per_s=None if source.shared_bytes_per_s is None else source.shared_bytes_per_s.value,
        write_bytes_per_s=math.inf if written is None else written.value,
        batch_size=batch_size,
    )
    each, together = format_bytes(scale.node_bytes_per_s), format_bytes(scale.source_bytes_per_s)
    reading = f"{scale.nodes:,} nodes read {each}/s each, {together}/s together"
    if source.shared_bytes_per_s is None:
        reading += ": what the source gives all is taken to be what one node gets; total=20GB/s would say it"
    said = [reading]
    if scratch is not None:
        waves = f" ({scale.waves:,} waves of {format_count(scale.served, 'node')})" if scale.waves > 1 else ""
        said.append(
            f"a copy of everything on each node takes {format_seconds(scale.stage_s)}{waves}, a part on each "
            f"{format_seconds(scale.slice_s)}; the order is shuffled over the whole dataset, so a part holds "
            f"{format_percent(scale.local_share)} of what its node reads"
        )
    ending = f"an epoch is {format_count(scale.steps, 'step')} of {batch_size:,} samples per rank"
    if scale.shards > 1:
        option = "" if scale.shard_bytes == DEFAULT_SHARD_BYTES else " (feedrate pack --shard-size)"
        ending += (
            f"; {scale.shards:,} shards of {format_bytes(scale.shard_bytes)} suit so many readers{option}"
        )
    return [*said, ending]
