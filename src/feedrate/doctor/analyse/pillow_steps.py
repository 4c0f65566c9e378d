# SPDX-License-Identifier: Apache-2.0
"""What plain Pillow code in `__getitem__` does to images, from the calls that the hook saw in some samples.

Calls tell sizes, boxes and filters, not the code that chose them. A place counts as drawn where the sample
had used a random generator before the crop, and differs from the others'; that it is a guess is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from feedrate.doctor.analyse.transform_steps import LEFT_OUT, Step, read_filter

Call = Mapping[str, Any]
_FLIP_LEFT_RIGHT = 0
_LEAST_SAMPLES = 4  # fewer say nothing about what is drawn
_FEWEST_FLIPPED, _MOST_FLIPPED = 0.2, 0.8  # of samples that are flipped by a half's chance
_USUAL_SCALE, _USUAL_RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
_OWN_PLACES = "Image.crop at places of the script's own"
_PASSED_OVER = ("PIL.Image.open", "PIL.tobytes")
_METHODS = (
    "rotate", "filter", "transform", "reduce", "thumbnail", "point", "quantize", "paste", "transpose",
)  # fmt: skip


def read_pillow_steps(facts: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Return what the samples have in common, in order."""
    samples = [sample for fact in facts for sample in fact.get("samples") or () if sample]
    if len(samples) < _LEAST_SAMPLES:
        return []
    opened = max(sum(call["call"] == "PIL.Image.open" for call in sample) for sample in samples)
    if opened > 1:
        return [Step(LEFT_OUT, f"a sample made of {opened} image files", is_own=True)]
    cleaned = [_without_asides(sample) for sample in samples]
    flipped = sum(any(_is_flip(call) for call in sample) for sample in cleaned)
    plain = [[call for call in sample if not _is_flip(call)] for sample in cleaned]
    usual, _ = Counter(tuple(call["call"] for call in sample) for sample in plain).most_common(1)[0]
    alike = [sample for sample in plain if tuple(call["call"] for call in sample) == usual]
    seldom = {call["call"] for sample in plain for call in sample} - set(usual)
    steps = _read_usual([list(calls) for calls in zip(*alike, strict=True)])
    steps += [Step(LEFT_OUT, _shown(name), is_own=True) for name in sorted(seldom)]
    return steps + ([_flip(flipped, len(samples))] if flipped else [])


def _without_asides(sample: Sequence[Call]) -> list[Call]:
    """Return the calls without those on images that an ImageEnhance makes for itself, to mix them in."""
    kept: list[Call] = []
    for call in sample:
        while call["call"] == "PIL.enhance" and kept and kept[-1]["call"] in ("PIL.convert", "PIL.filter"):
            kept.pop()
        if call["call"] not in _PASSED_OVER:
            kept.append(call)
    return kept


def _is_flip(call: Call) -> bool:
    if call["call"] == "PIL.mirror":
        return True
    return bool(call["call"] == "PIL.transpose" and _number(_given(call, 0, "method")) == _FLIP_LEFT_RIGHT)


def _flip(flipped: int, samples: int) -> Step:
    share = flipped / samples
    is_half = _FEWEST_FLIPPED <= share <= _MOST_FLIPPED
    p = 0.5 if is_half else 1.0 if flipped == samples else round(share, 2)
    remark = f"flip={p}: {flipped} of {samples} samples that were looked at were mirrored"
    return Step("flip", "Image.transpose", p=p, remarks=(remark,) if p < 1 else ())


def _read_usual(columns: list[list[Call]]) -> list[Step]:
    """Read what all samples do; a column holds one call of each."""
    steps: list[Step] = []
    at = 0
    while at < len(columns):
        column, name = columns[at], columns[at][0]["call"]
        following = columns[at + 1] if at + 1 < len(columns) else None
        if name == "PIL.crop" and following and following[0]["call"] == "PIL.resize":
            boxes = [_given(call, 0, "box") for call in column]
            steps += _read_resized(column, boxes, following)
            at += 1
        elif name == "PIL.crop":
            steps.append(_read_crop(column))
        elif name == "PIL.resize":
            steps += _read_resized(column, [_given(call, 2, "box") for call in column], column)
        elif name == "PIL.fit":
            steps += _read_fit(column)
        else:
            steps.append(_read_other(name, column))
        at += 1
    return steps


def _read_other(name: str, column: list[Call]) -> Step:
    if name == "PIL.convert":
        modes = {_given(call, 0, "mode") for call in column}
        if modes == {"RGB"}:
            return Step("nothing", "convert")
        return Step("gray" if modes == {"L"} else LEFT_OUT, f"Image.convert({modes.pop()!r})", is_own=True)
    if name == "PIL.grayscale":
        return Step("gray", "ImageOps.grayscale")
    if name == "PIL.exif_transpose":
        return Step(LEFT_OUT, "exif_transpose (feedrate pack --normalise stores images upright)", is_own=True)
    return Step(LEFT_OUT, _shown(name), is_own=True)


def _read_crop(column: list[Call]) -> Step:
    found = [(call["size"], _box(_given(call, 0, "box"))) for call in column]
    if any(box is None for _, box in found):
        return Step(LEFT_OUT, "Image.crop", is_own=True)
    placed = [(size, box) for size, box in found if box is not None]
    sizes = {(box[3] - box[1], box[2] - box[0]) for _, box in placed}
    if len(sizes) == 1:
        size = _square(sizes.pop())
        if all(_is_central(*one) for one in placed):
            return Step("center-crop", "Image.crop", {"size": size})
        if len({(box[0], box[1]) for _, box in placed}) > 1 and _are_drawn(column):
            remark = f"drawn by RandomCrop's rule; {len(column)} samples that were looked at had other places"
            return Step("random-crop", "Image.crop", {"size": size}, remarks=(remark,))
        return Step(LEFT_OUT, _OWN_PLACES, is_own=True)
    return Step(LEFT_OUT, _OWN_PLACES, is_own=True)


def _are_drawn(column: list[Call]) -> bool:
    """Return whether most samples had drawn a random number by then: else boxes are of the data's own."""
    return 2 * sum(call.get("drawn") is True for call in column) > len(column)


def _read_resized(crops: list[Call], boxes: list[Any], resizes: list[Call]) -> list[Step]:
    """Read a resize of the whole image or of a box of it."""
    given = {_filter(call) for call in resizes}
    filter_ = given.pop() if len(given) == 1 else None
    targets = [_given(call, 0, "size") for call in resizes]
    sources = [call["size"] for call in crops]
    if not all(_is_pair(one) for one in (*targets, *sources)):
        return [Step(LEFT_OUT, "Image.resize", is_own=True)]
    is_fixed = len({tuple(one) for one in targets}) == 1
    if all(box is None for box in boxes):
        if is_fixed and len({tuple(one) for one in sources}) > 1:
            return [_resize(targets[0], filter_)]
        return [_read_whole(targets, sources, filter_)]
    placed = [(size, _box(box)) for size, box in zip(sources, boxes, strict=True)]
    whole = [(size, box) for size, box in placed if box is not None]
    if not is_fixed or len(whole) < len(placed):
        return [Step(LEFT_OUT, "Image.crop", is_own=True)]
    width, height = targets[0]
    if width == height and all(_is_central_square(*one) for one in whole):
        short = Step("resize-short", "Image.resize", {"size": width, "interpolation": filter_})
        return [short, Step("center-crop", "Image.crop", {"size": width})]
    if not _are_drawn(crops):
        return [Step(LEFT_OUT, _OWN_PLACES, is_own=True)]
    return [_drawn_crop(whole, _square((height, width)), filter_)]


def _read_whole(targets: list[Any], sources: list[Any], filter_: str | None) -> Step:
    """Read a resize of whole images: to one shorter side, or to one size."""
    shorter = {min(one) for one in targets}
    is_kept = all(
        abs(max(target) - max(source) * min(target) / min(source)) <= 1
        for target, source in zip(targets, sources, strict=True)
    )
    if len(shorter) == 1 and is_kept:
        return Step("resize-short", "Image.resize", {"size": shorter.pop(), "interpolation": filter_})
    if len({tuple(one) for one in targets}) == 1:
        return _resize(targets[0], filter_)
    return Step(LEFT_OUT, "Image.resize", is_own=True)


def _resize(target: Any, filter_: str | None) -> Step:
    width, height = target
    return Step("resize", "Image.resize", {"size": _square((height, width)), "interpolation": filter_})


def _drawn_crop(placed: list[tuple[Any, tuple[float, ...]]], size: Any, filter_: str | None) -> Step:
    """Return a crop with the boxes' shares and ratios, or the usual ones where these fit."""
    areas, ratios = [], []
    for (width, height), (left, top, right, bottom) in placed:
        areas.append((right - left) * (bottom - top) / (width * height))
        ratios.append((right - left) / (bottom - top))
    low, high = min(areas), max(areas)
    # Within what everybody draws from, and spread over it.
    is_usual = (
        _USUAL_SCALE[0] * 0.95 <= low < 0.4
        and high > 0.6
        and _USUAL_RATIO[0] * 0.95 <= min(ratios) < 0.9
        and 1.1 < max(ratios) <= _USUAL_RATIO[1] * 1.05
    )
    seen = (
        f"boxes of {len(placed)} samples that were looked at had {low:.0%} to {high:.0%} of the image, "
        f"at {min(ratios):.2f} to {max(ratios):.2f} of width over height"
    )
    scale, ratio = _USUAL_SCALE, _USUAL_RATIO
    if not is_usual:
        scale = (max(0.01, round(low, 2)), 1.0 if high > 0.95 else round(high, 2))
        ratio = (round(min(ratios), 2), round(max(ratios), 2))
    values = {"size": size, "scale": scale, "ratio": ratio, "interpolation": filter_}
    return Step("resized-crop", "Image.crop", values, remarks=(f"drawn by RandomResizedCrop's rule; {seen}",))


def _read_fit(column: list[Call]) -> list[Step]:
    targets = {tuple(_given(call, 0, "size") or ()) for call in column}
    size = targets.pop() if len(targets) == 1 else ()
    is_central = all(
        not _given(call, 2, "bleed") and _given(call, 3, "centering") in (None, [0.5, 0.5]) for call in column
    )
    if len(size) != 2 or size[0] != size[1] or not is_central:
        return [Step(LEFT_OUT, "ImageOps.fit", is_own=True)]
    short = Step("resize-short", "ImageOps.fit", {"size": size[0], "interpolation": _filter(column[0])})
    return [short, Step("center-crop", "ImageOps.fit", {"size": size[0]})]


def _filter(call: Call) -> str | None:
    """Return the filter's word; Pillow's own default is bicubic."""
    name = "method" if call["call"] == "PIL.fit" else "resample"
    value = _given(call, 1, name)
    word = "bicubic" if value is None else read_filter(_number(value))
    return word if isinstance(word, str) else None


def _given(call: Call, at: int, name: str) -> Any:
    """Return an argument, by its place behind the image or by its name."""
    args = call.get("args") or []
    return args[at] if len(args) > at else (call.get("named") or {}).get(name)


def _number(value: Any) -> Any:
    return value.get("value") if isinstance(value, Mapping) else value


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and all(isinstance(one, int) and one > 0 for one in value)
    )


def _box(value: Any) -> tuple[float, ...] | None:
    is_box = (
        isinstance(value, list) and len(value) == 4 and all(isinstance(one, (int, float)) for one in value)
    )
    box = tuple(value) if is_box else None
    return box if box is not None and box[2] > box[0] and box[3] > box[1] else None


def _is_central(size: Any, box: tuple[float, ...]) -> bool:
    width, height = size
    return bool(abs(box[0] + box[2] - width) <= 2 and abs(box[1] + box[3] - height) <= 2)


def _is_central_square(size: Any, box: tuple[float, ...]) -> bool:
    side = min(size)
    is_whole = abs(box[2] - box[0] - side) <= 1 and abs(box[3] - box[1] - side) <= 1
    return is_whole and _is_central(size, box)


def _square(size: tuple[float, float]) -> int | tuple[int, int]:
    height, width = int(size[0]), int(size[1])
    return height if height == width else (height, width)


def _shown(name: str) -> str:
    function = name.removeprefix("PIL.")
    return f"Image.{function}" if function in _METHODS else f"PIL's {function}"
