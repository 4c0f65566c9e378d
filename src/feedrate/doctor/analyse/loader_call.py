# SPDX-License-Identifier: Apache-2.0
"""The feedrate.Loader in the place of a script's DataLoader: its arguments, code to paste, what is lost.

What the hook saw (transforms, Pillow's calls, sampler, batches) comes in as steps; each becomes a word of
Loader's, or a sentence that says that it is not carried over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from feedrate.doctor.analyse.call_data import OtherLoader, fit_to_data
from feedrate.doctor.analyse.call_draft import BatchImages, Draft, add_depth, find_images, write_code
from feedrate.doctor.analyse.data_folders import LoaderFacts, Place, find_chosen, share_of
from feedrate.doctor.analyse.metrics import LoaderCall, Measured
from feedrate.doctor.results import Remedy
from feedrate.loader.trial import CROPS
from feedrate.recognise.operations import (
    GEOMETRY,
    LEFT_OUT,
    UNREADABLE,
    Operation,
    is_container,
    read_operations,
    read_prefetcher,
    read_timm_mixing,
)
from feedrate.recognise.pillow import read_pillow

Fact = Mapping[str, Any]
_GRAYING = {"grayscale", "jitter"}  # these convert to gray with Pillow, to mix it in
_COLLATES = ("torch.utils.data._utils.collate.default_collate", "timm.data.loader.fast_collate")
_AS_MANY = "split= takes as many of the pack's samples, and not those that the script drew"
_TORCH_SAMPLERS = ("RandomSampler", "SequentialSampler", "DistributedSampler")


def add_code(m: Measured, remedy: Remedy) -> Remedy:
    """Return a remedy with the code of the Loader that the run's DataLoader becomes, where it is known."""
    call = m.tried.call
    if call is None or call.why_not:
        return remedy
    return replace(remedy, code=call.code, left_out=call.left_out)


def find_call(m: Measured, others: Sequence[OtherLoader] = ()) -> LoaderCall | None:
    """Return the Loader that the run's DataLoader becomes; None where its samples are no image files.

    Args:
        others: the run's loaders that do not feed the training.
    """
    data = m.machine.data
    if data is None or not data.images:
        return None
    parts = [name for _, name in m.samples.cost.parts] if m.samples.cost is not None else []
    loader, on_gpu, place = m.loader, m.training.is_on_gpu, data.place or Place(data.folder)
    facts = LoaderFacts(loader.fact, loader.batch, loader.pipeline)
    timed = [name for kind, name in m.samples.cost.parts if kind == "transform"] if m.samples.cost else []
    call = _recognise(facts, loader.pillow_calls, place, parts=parts, timed=timed, on_gpu=on_gpu)
    if call is None:
        return None
    beside = [
        _recognise(one.facts, one.calls, one.place, on_gpu=on_gpu, was_asked=one.was_asked)
        for one in others[:1]
    ]
    call = fit_to_data(call, place, facts, others, beside[0] if beside else None)
    if m.tried.kernel is not None and m.tried.kernel.deep > 0:
        validation = None if call.validation is None else add_depth(call.validation)
        call = replace(call, options=add_depth(call.options), validation=validation)
    return replace(call, code=write_code(call.options, call.validation, has_own_pack=bool(call.packs)))


def _recognise(facts: LoaderFacts, calls: Sequence[Fact], place: Place, **told: Any) -> LoaderCall | None:
    classes = "the class folders" if place.table is None else f"the classes in {place.table.path}"
    return recognise_call(facts.loader, facts.batch, facts.pipeline, calls, classes=classes, **told)


def recognise_call(
    loader: Fact,
    batch: Fact,
    pipeline: Fact,
    calls: Sequence[Fact] = (),
    *,
    parts: Sequence[str] = (),
    timed: Sequence[str] = (),
    on_gpu: bool = False,
    was_asked: bool = True,
    classes: str = "the class folders",
) -> LoaderCall | None:
    """Return the Loader for a run whose samples are image files; None where its batches hold no images.

    Args:
        loader, batch, pipeline: the facts of these kinds of the run's DataLoader.
        calls: the facts of Pillow's calls, of all processes that made its samples.
        parts: names of what a sample's time was spent in: "cv2.imread".
        timed: names of the transforms among them.
        was_asked: for a batch; else `batch` is another loader's, and only its steps tell the size of images.
        classes: what a pack of the files numbers as labels.
    """
    image = find_images(batch)
    if image is None or not pipeline or loader.get("pack") or loader.get("iterable"):
        return None
    draft = Draft(image)
    layers = [one for one in pipeline.get("layers") or () if isinstance(one, Mapping)]
    steps = _list_steps(layers, pipeline, calls, draft)
    for step in steps:
        draft.take(step)
    named = {step.name for step in steps}
    unseen = [name for name in timed if name not in named and "." not in name]
    for name in unseen:
        draft.leave(f"{name} is not carried over: it was timed, and how the script calls it was not seen")
    crop = next((name for name in unseen if any(word in name for word in CROPS)), None)
    why_not = "" if crop is None or draft.has_size else (
        f"no code is given: {crop} was timed, and what it does to an image was not seen"
    )  # fmt: skip
    if not (was_asked or draft.trust_steps()):
        return None
    draft.finish_geometry()
    draft.finish_values()
    if any(part in ("cv2.imread", "cv2.imdecode") for part in parts) and "cv2.cvtColor" not in parts:
        draft.leave("OpenCV decodes to BGR; these are RGB")
    _take_labels(layers, draft, classes, is_pillow=bool(calls))
    _take_order(layers, pipeline, draft)
    split = {} if (chosen := find_chosen(pipeline)) is None else {"split": (0, share_of(*chosen))}
    options = {**_loader_options(loader, batch, pipeline), **split, **draft.options()}
    fields = _take_form(batch, image, draft)
    if fields:
        options["fields"] = fields
    if on_gpu:
        options["device"] = "cuda"
    left_out = tuple(dict.fromkeys(draft.left_out))
    code, dropped = write_code(options), tuple(dict.fromkeys(draft.dropped))
    return LoaderCall(options, code, left_out, dropped=dropped, why_not=why_not)


def _list_steps(
    layers: Sequence[Fact], pipeline: Fact, calls: Sequence[Fact], draft: Draft
) -> list[Operation]:
    """Return what is done to a sample, from the file to the batch."""
    steps, is_bare = _list_transforms(layers, draft)
    by_pillow = _read(read_pillow, calls, "what Pillow does")
    if any(step.kind in GEOMETRY for step in steps):
        # A transform of a library that is called by itself is seen twice: as it is stored, and in Pillow.
        for step in by_pillow:
            if step.kind in GEOMETRY and not is_bare:
                draft.leave(f"{step.name} before the transform is not carried over")
        others = dict.fromkeys(step.name for step in by_pillow if step.kind == LEFT_OUT)
        if others and is_bare:
            draft.leave(
                f"{', '.join(others)} was seen, which may be the transforms' or the script's own: "
                "the script's own is not carried over"
            )
        kept = {"gray", "flip", LEFT_OUT}
        if is_bare:
            kinds = {step.kind for step in steps}
            kept -= {LEFT_OUT, *(("gray",) if kinds & _GRAYING else ()), *kinds}
        by_pillow = [step for step in by_pillow if step.kind in kept]
    if any(step.kind not in ("nothing", LEFT_OUT) for step in by_pillow):
        for step in steps:
            if step.is_own:
                draft.leave(f"{step.name}, the script's own, is carried over as far as Pillow does it")
        steps = [step for step in steps if not step.is_own]
    steps = [*by_pillow, *steps]
    if pipeline.get("prefetcher") is not None:
        steps += _read(read_prefetcher, pipeline["prefetcher"], "PrefetchLoader")
    return [*steps, *_list_mixing(pipeline.get("collate"), draft)]


def _read(reader: Callable[[Any], list[Operation]], given: Any, name: str) -> list[Operation]:
    try:
        return reader(given)
    except UNREADABLE:
        return [Operation(LEFT_OUT, name)]


def _list_transforms(layers: Sequence[Fact], draft: Draft) -> tuple[list[Operation], bool]:
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
        others = [name for name in found if name != first]
        if others:
            draft.leave(
                f"the dataset has other transforms than {first}, which are left out: {', '.join(others)}"
            )
    return steps, is_bare


def _list_mixing(collate: Any, draft: Draft) -> list[Operation]:
    if not isinstance(collate, Mapping):
        return []
    name = str(collate.get("function") or collate.get("class") or "")
    if name in _COLLATES:
        return []
    if name == "timm.data.mixup.FastCollateMixup":
        return _read(read_timm_mixing, collate.get("held"), name.rpartition(".")[2])
    mixing = [
        step
        for one in collate.get("uses") or ()
        for step in _inside_choice(one)
        if step.kind in ("mixup", "cutmix")
    ]
    shown = name.removeprefix("__main__.")
    kept = f" but for its {' and '.join(step.name for step in mixing)}" if mixing else ""
    draft.leave(f"collate_fn ({shown}) is not carried over{kept}")
    return mixing


def _inside_choice(described: Any) -> list[Operation]:
    """torchvision's recipe is RandomChoice([CutMix, MixUp]); so do we, where both are given."""
    held = described.get("held") if isinstance(described, Mapping) else None
    if held and str(described.get("class", "")).endswith("._container.RandomChoice"):
        return [step for one in held.get("transforms") or () for step in read_operations(one)]
    return read_operations(described)


def _take_labels(layers: Sequence[Fact], draft: Draft, classes: str, *, is_pillow: bool) -> None:
    """Say where labels, or the way that images are opened, are not those of a pack of the files."""
    for layer in layers:
        held = layer.get("held") or {}
        target, opener = held.get("target_transform"), held.get("loader")
        if target is not None:
            draft.leave(
                f"target_transform ({_named(target)}) is not carried over: labels are the pack's numbers"
            )
        is_known = is_pillow or _named(opener) == "torchvision.datasets.folder.default_loader"
        if opener is not None and not is_known:
            draft.leave(f"loader ({_named(opener)}) is not carried over: images are decoded to RGB")
        mode = held.get("input_img_mode")
        if isinstance(mode, str) and mode not in ("RGB", "L"):
            draft.leave(f"input_img_mode={mode!r} is not carried over: images are decoded to RGB")
    known = next((layer for layer in layers if "are_sorted" in layer), None)
    if known is None:
        draft.leave(f"labels are the script's own: the pack numbers {classes} by name, see loader.classes")
    elif not known["are_sorted"]:
        draft.leave(f"labels have another order: the pack numbers {classes} by name, see loader.classes")


def _named(described: Any) -> str:
    name = (
        described.get("function") or described.get("class") if isinstance(described, Mapping) else described
    )
    return str(name).removeprefix("__main__.")


def _take_order(layers: Sequence[Fact], pipeline: Fact, draft: Draft) -> None:
    """Say which samples the run had and in which order, where a Loader has others."""
    is_share = find_chosen(pipeline) is not None
    for layer in layers[:-1]:
        kind = str(layer.get("class"))
        if layer is layers[0] and kind.endswith(".Subset") and is_share:
            draft.leave(f"Subset: {_AS_MANY}")
        elif kind.endswith(".Subset") and "samples" in layer:
            draft.leave(
                f"Subset is not carried over: {layer['samples']:,} samples are used, and the pack has all "
                "of them; see split="
            )
        elif "datasets" in layer:
            draft.leave(
                f"{kind.rpartition('.')[2]} of {layer['datasets']} datasets: pack one, "
                "then feedrate append the others"
            )
        else:
            draft.leave(f"{kind.removeprefix('__main__.')} around the dataset is not carried over")
    sampler = pipeline.get("sampler") or {}
    module, _, name = str(sampler.get("class") or "").rpartition(".")
    is_plain = name in _TORCH_SAMPLERS and module.startswith("torch.utils.data")
    if name == "SubsetRandomSampler" and is_share:
        draft.leave(f"{name}: {_AS_MANY}")
    elif name == "WeightedRandomSampler":
        draft.leave(
            'WeightedRandomSampler is not carried over: weights="balanced", or weights=[...] by sample'
        )
    elif sampler.get("replacement") is True or sampler.get("_num_samples") is not None:
        draft.leave(
            f"{name} with replacement or num_samples is not carried over: each sample comes once an epoch"
        )
    elif not is_plain and name not in ("NoneType", ""):
        draft.leave(f"sampler {name} is not carried over: see order= and weights=")
    batches = str(pipeline.get("batch_sampler") or "")
    if not batches.startswith(("torch.utils.data.", "builtins.")):
        draft.leave(f"batch_sampler {batches.rpartition('.')[2]} is not carried over")


def _loader_options(loader: Fact, batch: Fact, pipeline: Fact) -> dict[str, Any]:
    size = loader.get("batch_size") or batch.get("samples")  # a batch sampler of the script's own has none
    options: dict[str, Any] = {"batch_size": int(size)} if size else {}
    options["shuffle"] = loader.get("shuffle") is not False
    if loader.get("drop_last"):
        options["drop_last"] = True
    seed = pipeline.get("seed")
    if isinstance(seed, int) and seed > 0:
        options["seed"] = seed
    return options


def _take_form(batch: Fact, images: BatchImages, draft: Draft) -> list[str] | None:
    """Say where batches are put together otherwise; return the fields where they are not image and label."""
    form, tensors = batch.get("form"), batch.get("tensors") or ()
    if form == "tensor":
        return ["image"]
    if isinstance(form, Mapping):
        draft.leave(f"batches were dicts ({', '.join(map(str, form))}); these are tuples: images, labels")
        return None
    if isinstance(form, list) and len(form) == 1:
        return ["image"]
    if not isinstance(form, list) or form[:2] != ["tensor", "tensor"] or len(form) != 2:
        many = f"{len(form)} values" if isinstance(form, list) else f"{_named(form)} objects"
        draft.leave(f"batches were {many}; these are tuples of two: images, labels")
        return None
    label = tensors[1 - images.at] if len(tensors) == 2 and images.at < 2 else {}
    if draft.mixes:
        return None
    if images.at != 0:
        draft.leave("batches had the images second; here they come first")
    if label.get("dtype") != "int64" or len(label.get("shape") or ()) != 1:
        draft.leave(
            f"labels were {label.get('dtype')} of shape {label.get('shape')}; these are int64, one a sample"
        )
    return None
