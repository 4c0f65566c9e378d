# SPDX-License-Identifier: Apache-2.0
"""What is done to a sample from the file to the batch: datasets' transforms, Pillow's calls, collating.

It comes in as the hook describes it. What is no operation is said in a sentence beside the list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .operations import (
    GEOMETRY,
    LEFT_OUT,
    UNREADABLE,
    Operation,
    is_container,
    read_operations,
    read_prefetcher,
    read_timm_mixing,
)  # fmt: skip
from .pillow import read_pillow

Fact = Mapping[str, Any]
_GRAYING = {"grayscale", "jitter"}  # these convert to gray with Pillow, to mix it in
_COLLATES = ("torch.utils.data._utils.collate.default_collate", "timm.data.loader.fast_collate")


def list_operations(pipeline: Fact, calls: Sequence[Fact]) -> tuple[list[Operation], list[str]]:
    """Return the operations in order, and sentences on what is not carried over because it is none.

    Args:
        pipeline: the fact of a DataLoader; calls: those of Pillow's functions in some of its samples.
    """
    left: list[str] = []
    layers = [one for one in pipeline.get("layers") or () if isinstance(one, Mapping)]
    steps, is_bare = _list_transforms(layers, left)
    by_pillow = _read(read_pillow, calls, "what Pillow does")
    if any(step.kind in GEOMETRY for step in steps):
        # A transform of a library that is called by itself is seen twice: as it is stored, and in Pillow.
        kept = {"gray", "flip", LEFT_OUT}
        if is_bare:
            kinds = {step.kind for step in steps}
            others = dict.fromkeys(step.name for step in by_pillow if step.kind == LEFT_OUT)
            if others:
                left.append(
                    f"{', '.join(others)} was seen, which may be the transforms' or the script's own: "
                    "the script's own is not carried over"
                )
            kept -= {LEFT_OUT, *(("gray",) if kinds & _GRAYING else ()), *kinds}
        else:
            before = [step.name for step in by_pillow if step.kind in GEOMETRY]
            left += [f"{name} before the transform is not carried over" for name in before]
        by_pillow = [step for step in by_pillow if step.kind in kept]
    if any(step.kind not in ("nothing", LEFT_OUT) for step in by_pillow):
        own = [step.name for step in steps if step.is_own]
        left += [f"{name}, the script's own, is carried over as far as Pillow does it" for name in own]
        steps = [step for step in steps if not step.is_own]
    steps = [*by_pillow, *steps]
    if pipeline.get("prefetcher") is not None:
        steps += _read(read_prefetcher, pipeline["prefetcher"], "PrefetchLoader")
    return [*steps, *_list_mixing(pipeline.get("collate"), left)], left


def _read(reader: Callable[[Any], list[Operation]], given: Any, name: str) -> list[Operation]:
    try:
        return reader(given)
    except UNREADABLE:
        return [Operation(LEFT_OUT, name)]


def _list_transforms(layers: Sequence[Fact], left: list[str]) -> tuple[list[Operation], bool]:
    """Return the steps of the datasets' transforms, and whether some are single ones, not composed."""
    steps: list[Operation] = []
    is_bare = False
    for layer in reversed(layers):  # the innermost dataset is asked first
        held = layer.get("held") or {}
        named = {name: one for name, one in held.items() if isinstance(one, Mapping)}
        for name in ("target_transform", "loader"):
            named.pop(name, None)
        found = named or {f"transform {at}": one for at, one in enumerate(layer.get("uses") or (), 1)}
        composed = [name for name, one in found.items() if is_container(one)]
        first = "transform" if "transform" in found else composed[0] if composed else None
        if first is None:
            is_bare = is_bare or bool(found)
            steps += [step for one in found.values() for step in read_operations(one)]
            continue
        # Inside of a Compose the hook knows whose calls Pillow's are; torch.nn's Sequential it does not see.
        is_timed = is_container(found[first]) and not str(found[first]["class"]).startswith("torch.nn.")
        is_bare = is_bare or not is_timed
        steps += read_operations(found[first])
        if others := [name for name in found if name != first]:
            names = ", ".join(others)
            left.append(f"the dataset has other transforms than {first}, which are left out: {names}")
    return steps, is_bare


def _list_mixing(collate: Any, left: list[str]) -> list[Operation]:
    if not isinstance(collate, Mapping):
        return []
    name = str(collate.get("function") or collate.get("class") or "")
    if name in _COLLATES:
        return []
    if name == "timm.data.mixup.FastCollateMixup":
        return _read(read_timm_mixing, collate.get("held"), name.rpartition(".")[2])
    inner = [step for one in collate.get("uses") or () for step in _inside_choice(one)]
    mixing = [step for step in inner if step.kind in ("mixup", "cutmix")]
    kept = f" but for its {' and '.join(step.name for step in mixing)}" if mixing else ""
    left.append(f"collate_fn ({name.removeprefix('__main__.')}) is not carried over{kept}")
    return mixing


def _inside_choice(described: Any) -> list[Operation]:
    """torchvision's recipe is RandomChoice([CutMix, MixUp]); so do we, where both are given."""
    held = described.get("held") if isinstance(described, Mapping) else None
    if held and str(described.get("class", "")).endswith("._container.RandomChoice"):
        return [step for one in held.get("transforms") or () for step in read_operations(one)]
    return read_operations(described)
