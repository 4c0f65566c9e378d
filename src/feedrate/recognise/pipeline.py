# SPDX-License-Identifier: Apache-2.0
"""What is done to a sample from the file to the batch: datasets' transforms, Pillow's calls, collating.

It comes in as the hook describes it. What is no operation is said in a sentence beside the list.

Calls of Pillow in some samples, by plain code in `__getitem__`, tell sizes, boxes and filters, not the code
that chose them. A place counts as drawn where the sample had used a random generator before the crop, and
differs from the others'; that it is a guess is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .operations import (
    GEOMETRY,
    LEFT_OUT,
    UNREADABLE,
    Operation,
    is_container,
    plain,
    read_filter,
    read_operations,
    read_prefetcher,
    read_size,
    read_timm_mixing,
)  # fmt: skip

Fact = Mapping[str, Any]
_GRAYING = {"grayscale", "jitter"}  # these convert to gray with Pillow, to mix it in
_COLLATES = ("torch.utils.data._utils.collate.default_collate", "timm.data.loader.fast_collate")
Box = tuple[float, ...]  # left, top, right, bottom
_LEAST_SAMPLES = 4  # fewer say nothing about what is drawn
_FEWEST_FLIPPED, _MOST_FLIPPED = 0.2, 0.8  # of samples that are flipped by a half's chance
_USUAL_SCALE, _USUAL_RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
_OWN_PLACES = "Image.crop at places of the script's own"
_PASSED_OVER = ("PIL.Image.open", "PIL.tobytes")
_METHODS = (
    "rotate", "filter", "transform", "reduce", "thumbnail", "point", "quantize", "paste", "transpose",
)  # fmt: skip
# Arguments by place behind the image; those that are called otherwise are read by name.
_PLACES = {"box": 0, "mode": 0, "size": 0, "method": 0, "resample": 1, "bleed": 2, "centering": 3}


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


def read_pillow(facts: Sequence[Mapping[str, Any]]) -> list[Operation]:
    """Return what the samples have in common, in order."""
    samples = [sample for fact in facts for sample in fact.get("samples") or () if sample]
    if len(samples) < _LEAST_SAMPLES:
        return []
    opened = max(sum(call["call"] == "PIL.Image.open" for call in sample) for sample in samples)
    if opened > 1:
        return [_own(f"a sample made of {opened} image files")]
    cleaned = [_without_asides(sample) for sample in samples]
    flipped = sum(any(_is_flip(call) for call in sample) for sample in cleaned)
    plain = [[call for call in sample if not _is_flip(call)] for sample in cleaned]
    usual, _ = Counter(tuple(call["call"] for call in sample) for sample in plain).most_common(1)[0]
    alike = [sample for sample in plain if tuple(call["call"] for call in sample) == usual]
    seldom = {call["call"] for sample in plain for call in sample} - set(usual)
    steps = _read_usual([list(calls) for calls in zip(*alike, strict=True)])
    steps += [_own(_shown(name)) for name in sorted(seldom)]
    return steps + ([_flip(flipped, len(samples))] if flipped else [])


def _own(name: str) -> Operation:
    return Operation(LEFT_OUT, name, is_own=True)


def _shown(name: str) -> str:
    function = name.removeprefix("PIL.")
    return f"Image.{function}" if function in _METHODS else f"PIL's {function}"


def _without_asides(sample: Sequence[Fact]) -> list[Fact]:
    """Return the calls without those on images that an ImageEnhance makes for itself, to mix them in."""
    kept: list[Fact] = []
    for call in sample:
        while call["call"] == "PIL.enhance" and kept and kept[-1]["call"] in ("PIL.convert", "PIL.filter"):
            kept.pop()
        if call["call"] not in _PASSED_OVER:
            kept.append(call)
    return kept


def _is_flip(call: Fact) -> bool:
    # 0: Image.Transpose.FLIP_LEFT_RIGHT
    is_turned = call["call"] == "PIL.transpose" and plain(_given(call, "method")) == 0
    return bool(call["call"] == "PIL.mirror" or is_turned)


def _flip(flipped: int, samples: int) -> Operation:
    share = flipped / samples
    is_half = _FEWEST_FLIPPED <= share <= _MOST_FLIPPED
    p = 0.5 if is_half else 1.0 if flipped == samples else round(share, 2)
    remark = f"flip={p}: {flipped} of {samples} samples that were looked at were mirrored"
    return Operation("flip", "Image.transpose", p=p, remarks=(remark,) if p < 1 else ())


def _read_usual(columns: list[list[Fact]]) -> list[Operation]:
    """Read what all samples do; a column holds one call of each."""
    steps: list[Operation] = []
    names = [column[0]["call"] for column in columns] + [""]
    for at, column in enumerate(columns):
        name = names[at]
        if name == "PIL.resize" and at and names[at - 1] == "PIL.crop":
            continue  # was read with the crop
        if name == "PIL.crop" and names[at + 1] == "PIL.resize":
            steps += _read_resized(column, [_given(call, "box") for call in column], columns[at + 1])
        elif name == "PIL.crop":
            steps.append(_read_crop(column))
        elif name == "PIL.resize":
            steps += _read_resized(column, [_given(call, "box", 2) for call in column], column)
        elif name == "PIL.fit":
            steps += _read_fit(column)
        elif name == "PIL.convert":
            steps.append(_read_convert(column))
        elif name == "PIL.grayscale":
            steps.append(Operation("gray", "ImageOps.grayscale"))
        elif name == "PIL.exif_transpose":
            steps.append(_own("exif_transpose (feedrate pack --normalise stores images upright)"))
        else:
            steps.append(_own(_shown(name)))
    return steps


def _read_convert(column: list[Fact]) -> Operation:
    modes = {_given(call, "mode") for call in column}
    if modes == {"RGB"}:
        return Operation("nothing", "convert")
    return Operation("gray" if modes == {"L"} else LEFT_OUT, f"Image.convert({modes.pop()!r})", is_own=True)


def _read_crop(column: list[Fact]) -> Operation:
    placed = [(call["size"], box) for call in column if (box := _box(_given(call, "box"))) is not None]
    if len(placed) < len(column):
        return _own("Image.crop")
    sizes = {(box[3] - box[1], box[2] - box[0]) for _, box in placed}
    if len(sizes) > 1:
        return _own(_OWN_PLACES)
    size = read_size(sizes.pop())
    if all(_is_central(*one) for one in placed):
        return Operation("center-crop", "Image.crop", {"size": size})
    if len({(box[0], box[1]) for _, box in placed}) == 1 or not _are_drawn(column):
        return _own(_OWN_PLACES)
    remark = f"drawn by RandomCrop's rule; {len(column)} samples that were looked at had other places"
    return Operation("random-crop", "Image.crop", {"size": size}, remarks=(remark,))


def _are_drawn(column: list[Fact]) -> bool:
    """Return whether most samples had drawn a random number by then: else boxes are of the data's own."""
    return 2 * sum(call.get("drawn") is True for call in column) > len(column)


def _read_resized(crops: list[Fact], boxes: list[Any], resizes: list[Fact]) -> list[Operation]:
    """Read a resize of the whole image or of a box of it."""
    given = {_filter(call) for call in resizes}
    filter_ = given.pop() if len(given) == 1 else ""
    targets = [_given(call, "size") for call in resizes]
    sources = [call["size"] for call in crops]
    if not all(_is_pair(one) for one in (*targets, *sources)):
        return [_own("Image.resize")]
    is_fixed = len({tuple(one) for one in targets}) == 1
    if all(box is None for box in boxes):
        return [_read_whole(targets, sources, filter_, is_fixed)]
    placed = [(size, box) for size, one in zip(sources, boxes, strict=True) if (box := _box(one)) is not None]
    if not is_fixed or len(placed) < len(boxes):
        return [_own("Image.crop")]
    width, height = targets[0]
    if width == height and all(_is_central_square(*one) for one in placed):
        return _square("Image.resize", width, filter_, "Image.crop")
    if not _are_drawn(crops):
        return [_own(_OWN_PLACES)]
    return [_drawn_crop(placed, read_size((height, width)), filter_)]


def _square(name: str, side: int, filter_: str, crop: str) -> list[Operation]:
    short = Operation("resize-short", name, {"size": side, "interpolation": filter_})
    return [short, Operation("center-crop", crop, {"size": side})]


def _read_whole(targets: list[Any], sources: list[Any], filter_: str, is_fixed: bool) -> Operation:
    """Read a resize of whole images: to one size, or to one shorter side."""
    shorter = {min(one) for one in targets}
    is_kept = all(
        abs(max(target) - max(source) * min(target) / min(source)) <= 1
        for target, source in zip(targets, sources, strict=True)
    )
    are_many = len({tuple(one) for one in sources}) > 1
    is_short = len(shorter) == 1 and is_kept and not (is_fixed and are_many)
    if not is_short and not is_fixed:
        return _own("Image.resize")
    size = shorter.pop() if is_short else read_size(targets[0][::-1])
    kind = "resize-short" if is_short else "resize"
    return Operation(kind, "Image.resize", {"size": size, "interpolation": filter_})


def _drawn_crop(placed: list[tuple[Any, Box]], size: Any, filter_: str) -> Operation:
    """Return a crop with the boxes' shares and ratios, or the usual ones where these fit."""
    areas = [(box[2] - box[0]) * (box[3] - box[1]) / (size[0] * size[1]) for size, box in placed]
    ratios = [(box[2] - box[0]) / (box[3] - box[1]) for _, box in placed]
    low, high, flattest, widest = min(areas), max(areas), min(ratios), max(ratios)
    # Within what everybody draws from, and spread over it.
    is_usual = (
        _USUAL_SCALE[0] * 0.95 <= low < 0.4
        and high > 0.6
        and _USUAL_RATIO[0] * 0.95 <= flattest < 0.9
        and 1.1 < widest <= _USUAL_RATIO[1] * 1.05
    )
    seen = (
        f"boxes of {len(placed)} samples that were looked at had {low:.0%} to {high:.0%} of the image, "
        f"at {flattest:.2f} to {widest:.2f} of width over height"
    )
    scale, ratio = _USUAL_SCALE, _USUAL_RATIO
    if not is_usual:
        scale = (max(0.01, round(low, 2)), 1.0 if high > 0.95 else round(high, 2))
        ratio = (round(flattest, 2), round(widest, 2))
    values = {"size": size, "scale": scale, "ratio": ratio, "interpolation": filter_}
    remark = f"drawn by RandomResizedCrop's rule; {seen}"
    return Operation("resized-crop", "Image.crop", values, remarks=(remark,))


def _read_fit(column: list[Fact]) -> list[Operation]:
    targets = {tuple(_given(call, "size") or ()) for call in column}
    size = targets.pop() if len(targets) == 1 else ()
    is_central = all(
        not _given(call, "bleed") and _given(call, "centering") in (None, [0.5, 0.5]) for call in column
    )
    if len(size) != 2 or size[0] != size[1] or not is_central:
        return [_own("ImageOps.fit")]
    return _square("ImageOps.fit", size[0], _filter(column[0]), "ImageOps.fit")


def _filter(call: Fact) -> str:
    """Return the filter's word, empty where there is none such; Pillow's own default is bicubic."""
    value = _given(call, "method" if call["call"] == "PIL.fit" else "resample", 1)
    word = "bicubic" if value is None else read_filter(plain(value))
    return word if isinstance(word, str) else ""


def _given(call: Fact, name: str, at: int | None = None) -> Any:
    """Return an argument, by its place behind the image or by its name."""
    args, place = call.get("args") or [], _PLACES[name] if at is None else at
    return args[place] if len(args) > place else (call.get("named") or {}).get(name)


def _is_pair(value: Any) -> bool:
    is_two = isinstance(value, list) and len(value) == 2
    return is_two and all(isinstance(one, int) and one > 0 for one in value)


def _box(value: Any) -> Box | None:
    is_four = isinstance(value, list) and len(value) == 4
    box = tuple(value) if is_four and all(isinstance(one, (int, float)) for one in value) else None
    return box if box is not None and box[2] > box[0] and box[3] > box[1] else None


def _is_central(size: Any, box: Box) -> bool:
    return bool(abs(box[0] + box[2] - size[0]) <= 2 and abs(box[1] + box[3] - size[1]) <= 2)


def _is_central_square(size: Any, box: Box) -> bool:
    side = min(size)
    is_whole = abs(box[2] - box[0] - side) <= 1 and abs(box[3] - box[1] - side) <= 1
    return is_whole and _is_central(size, box)
