# SPDX-License-Identifier: Apache-2.0
"""The ways to train on a dataset, side by side, and the one to recommend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from feedrate.figures import ASSUMED, MEASURED, Figure, vary
from feedrate.model.limits import LIMITS
from feedrate.model.ways import DEFAULT_SHARD_BYTES, choose_shard_bytes, count_epochs_to_pay, share
from feedrate.plan.outcome import Case, complete_store, complete_survey
from feedrate.plan.recipes import (
    IN_PLACE,
    RECIPES,
    Recipe,
    explain_misfit,
    is_made_for,
    list_commands,
)
from feedrate.plan.results import Node, Plan, Survey, Way
from feedrate.units import format_bytes, format_count, format_percent, format_seconds

# What the formulas themselves err by when every figure in them is right (benchmarks/README.md).
MODEL_ERROR = Figure.within(1.0, 1.12, MEASURED, "the model's own error")
_WORTH = 0.93  # of the time in place: what saves less is not worth typing
_NEARLY = 1.05  # of the shortest run: a simpler way may take so much longer
_LEAST_SAVED_S = 60.0  # of a whole run: a script is not edited in less


def make_plan(
    survey: Survey,
    node: Node,
    *,
    epochs: int = 90,
    workers: int = 4,
    batch_size: int = 256,
    notes: Sequence[str] = (),
) -> Plan:
    """Lay the ways side by side; `workers` and `batch_size`: of the script's DataLoader as it is now."""
    recipes = [recipe for recipe in RECIPES if is_made_for(recipe, survey, node)]

    def evaluate(survey: Survey, node: Node, error: Figure) -> list[Way]:
        case = Case(survey, node, error, workers=workers, batch_size=batch_size, epochs=epochs)
        ways = [case.evaluate(recipe) for recipe in recipes]
        per_s, taken_s = node.gpus * node.nodes / 3600, ways[0].gpu_s
        saved = [Figure.exactly((taken_s - way.gpu_s) * per_s) for way in ways]
        return [replace(way, gpu_hours_saved=hours) for way, hours in zip(ways, saved, strict=True)]

    scratch = node.scratch and complete_store(node.scratch)
    found = vary(evaluate, complete_survey(survey), replace(node, scratch=scratch), find_error(survey.busy))

    def describe(recipe: Recipe, way: Way) -> Way:
        now = found[0].first_epoch_s.value, found[0].later_epoch_s.value
        before, first, later = way.before_s, way.first_epoch_s, way.later_epoch_s
        pays = count_epochs_to_pay(before.value, first.value, later.value, now, epochs)
        name = way.name.removeprefix("pack, ") if survey.kind == "pack" else way.name
        return replace(
            way, name=f"{name} ({way.workers})" if recipe.code == "workers" else name,
            pays_after=None if math.isinf(pays) or recipe == IN_PLACE else pays,
            why_not=explain_misfit(recipe, way, survey, node, workers),
            commands=list_commands(recipe, way, survey, node, batch_size),
        )  # fmt: skip

    ways = tuple(map(describe, recipes, found))
    recommended, reason = recommend(ways, epochs, is_loading_alone=node.model_rate is None)
    of_node = [*node.notes, *describe_nodes(survey, node, batch_size), *_note_no_rate(node)]
    said = [*survey.notes, *of_node, *notes, *_note_resize(ways, recommended)]
    return Plan(survey, node, epochs, workers, ways, recommended, reason, tuple(said))


def find_error(busy: str = "") -> Figure:
    """Return the factor on times that nobody can tell; `busy`: what others took while they were measured."""
    # What was timed beside others may be done in half the time.
    return Figure(1.0, MODEL_ERROR.low / 2, MODEL_ERROR.high, ASSUMED, busy) if busy else MODEL_ERROR


def recommend(ways: Sequence[Way], epochs: int, *, is_loading_alone: bool = False) -> tuple[str, str]:
    """Return the code of the way to go, and why; no code: nothing is worth doing."""
    now = ways[0]
    possible = [way for way in ways[1:] if way.fits and not way.is_smaller]
    best = min((way.total_s.value for way in possible), default=math.inf)
    taken_s = now.total_s.value
    taken = f"{'loading alone' if is_loading_alone else 'the whole run'} takes"
    if taken_s < _LEAST_SAVED_S:
        return "", f"as it is, {taken} {format_seconds(taken_s)}"
    if best > taken_s * _WORTH:
        waiting = "loading" if is_loading_alone else "training"
        smaller = (way.total_s.value for way in ways if way.fits and way.is_smaller)
        keeping = " that keeps the images as they are" if min(smaller, default=math.inf) < best else ""
        reason = f"{waiting} waits for {LIMITS[now.limit].noun}, and no other way{keeping} would be 7% faster"
        return "", reason
    if taken_s - best < _LEAST_SAVED_S:
        saved, of = format_seconds(taken_s - best), format_seconds(taken_s)
        share = format_percent(1 - best / taken_s)
        fastest = next(way.name for way in possible if way.total_s.value == best)
        return "", f"{fastest} would save {saved}, {share} of the {of} that {taken}: less than a minute"
    chosen = next(way for way in possible if way.total_s.value <= best * _NEARLY)
    run = f"{format_count(epochs, 'epoch')}{' of loading alone' if is_loading_alone else ''}"
    run += " is" if epochs == 1 else " are"
    then = f"then the limit is {LIMITS[chosen.limit].noun}"
    if not (now.total_s.is_known and chosen.total_s.is_known):
        return chosen.code, f"{run} likely to be faster than in place, by how much is not known; {then}"
    pays = math.ceil(chosen.pays_after or 1)
    paid = f", and it has paid for itself after {format_count(pays, 'epoch')}" if pays > 1 else ""
    return chosen.code, f"{run} {taken_s / chosen.total_s.value:.1f} times as fast as in place{paid}; {then}"


def _note_resize(ways: Sequence[Way], recommended: str) -> list[str]:
    chosen = next(way for way in ways if way.code == (recommended or IN_PLACE.code))
    smaller = [way for way in ways if way.fits and way.is_smaller]
    best = min(smaller, key=lambda way: way.total_s.value, default=chosen)
    gain = chosen.total_s.value / best.total_s.value
    text = f"{best.name} would be {gain:.1f} times faster still, but changes the images (pack says how much)"
    is_worth = chosen.total_s.value - best.total_s.value >= _LEAST_SAVED_S
    is_worth = is_worth and chosen.total_s.is_known and best.total_s.is_known
    return [text] if gain > 1.25 and is_worth else []


def _note_no_rate(node: Node) -> list[str]:
    if node.model_rate is not None:
        return []
    what = f"how fast {node.model} trains here" if node.model else "how fast the model trains"
    how = "give --model-rate" + (", or measure it: feedrate bench machine" if node.model else "")
    return [f"{what} is not known, so times are what loading alone takes; {how}"]


def describe_nodes(survey: Survey, node: Node, batch_size: int) -> list[str]:
    """Return what several nodes are to one dataset, in sentences; of one node there is nothing to say."""
    if node.nodes == 1:
        return []
    nodes, total, shared = node.nodes, survey.source.total_bytes_per_s, survey.source.shared_bytes_per_s
    each = share(total.value, None if shared is None else shared.value, nodes)
    reading = f"{nodes:,} nodes read {format_bytes(each)}/s each, {format_bytes(each * nodes)}/s together"
    if shared is None:
        reading += ": what the source gives all is taken to be what one node gets; total=20GB/s would say it"
    said = [reading]
    if node.scratch is not None:
        written = node.scratch.write_bytes_per_s
        copy_s = survey.total_bytes.value / min(each, math.inf if written is None else written.value)
        said.append(
            f"a copy of everything on each node takes {format_seconds(copy_s)}, a part on each "
            f"{format_seconds(copy_s / nodes)}; the order is shuffled over the whole dataset, so a part "
            f"holds {format_percent(1 / nodes)} of what its node reads"
        )
    steps = math.ceil(survey.trained_samples.value / (nodes * max(node.gpus, 1) * batch_size))
    ending = f"an epoch is {format_count(steps, 'step')} of {batch_size:,} samples per rank"
    shard_bytes = choose_shard_bytes(survey.total_bytes.value, nodes)
    if survey.total_bytes.value > shard_bytes:
        shards = math.ceil(survey.total_bytes.value / shard_bytes)
        option = "" if shard_bytes == DEFAULT_SHARD_BYTES else " (feedrate pack --shard-size)"
        ending += f"; {shards:,} shards of {format_bytes(shard_bytes)} suit so many readers{option}"
    return [*said, ending]
