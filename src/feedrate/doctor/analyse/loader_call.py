# SPDX-License-Identifier: Apache-2.0
"""The feedrate.Loader in the place of a script's DataLoader: its arguments, code to paste, what is lost.

Each operation that recognise/ finds becomes a word of Loader's, or a sentence that says that it is not
carried over. A pack has all images of its folder: code that would train on more of them than the script did,
or on other ones without a word, is not given.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedrate.doctor.analyse.call_draft import (
    TRAIN_PACK,
    VALIDATION_PACK,
    BatchImages,
    Draft,
    add_depth,
    find_images,
    write_code,
)
from feedrate.doctor.analyse.data_folders import LoaderFacts, Place, find_place, list_images, list_opened
from feedrate.doctor.analyse.metrics import LoaderCall, Measured
from feedrate.doctor.analyse.records import Fact, Process, Recording
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.results import Remedy
from feedrate.lab.trial import CROPS
from feedrate.recognise.pipeline import list_operations

_AS_MANY = "split= takes as many of the pack's samples, and not those that the script drew"
_TORCH_SAMPLERS = ("RandomSampler", "SequentialSampler", "DistributedSampler")
_BESIDE_TRAINING = ("val", "valid", "validation", "test", "dev")


@dataclass(frozen=True)
class OtherLoader:
    """A loader of the run that does not feed the training."""

    facts: LoaderFacts
    place: Place
    was_asked: bool = True  # for a batch; else it was only made, as those for validation are that comes later

    @property
    def shown_place(self) -> str:
        return self.place.folder or "images of another place"


def list_others(recording: Recording, main: Process, loaders: Sequence[str]) -> list[OtherLoader]:
    """Return the other loaders that were asked for batches and read images, in the order of their use.

    Where there is none, those that were made for datasets of class folders and not asked by the end.
    """
    others = []
    for name in dict.fromkeys(main.name(one) for one in main.of(layout.WAIT, phase=layout.REAL)["name"]):
        if name not in loaders and (paths := list_images(list_opened(recording, [name]))):
            workers = main.workers_of([name])
            made_by = [main, *(process for process in recording.processes if process.pid in workers)]
            facts = LoaderFacts.of(main, name, made_by)
            others.append(OtherLoader(facts, find_place(paths, facts)))
    if others or not loaders:
        return others
    asked = LoaderFacts.of(main, loaders[0])
    for fact in main.facts_of("unasked"):
        facts = LoaderFacts(fact["told"], asked.batch, fact["pipeline"])
        place = find_place((), facts) if facts.root else Place("")
        if place.folder and facts.get("made_at") != asked.get("made_at"):
            others.append(OtherLoader(facts, place, was_asked=False))
    return others


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
    on_gpu, place = m.training.is_on_gpu, data.place or Place(data.folder)
    call = recognise_call(m.loader, place, parts=list(m.samples.cost.parts), on_gpu=on_gpu)
    if call is None:
        return None
    beside = [
        recognise_call(one.facts, one.place, on_gpu=on_gpu, was_asked=one.was_asked) for one in others[:1]
    ]
    call = fit_to_data(call, place, m.loader, others, beside[0] if beside else None)
    if m.tried.kernel is not None and m.tried.kernel.deep > 0:
        validation = None if call.validation is None else add_depth(call.validation)
        call = replace(call, options=add_depth(call.options), validation=validation)
    return replace(call, code=write_code(call.options, call.validation, has_own_pack=bool(call.packs)))


def recognise_call(
    facts: LoaderFacts,
    place: Place | None = None,
    *,
    parts: Sequence[tuple[str, str]] = (),
    on_gpu: bool = False,
    was_asked: bool = True,
) -> LoaderCall | None:
    """Return the Loader for a run whose samples are image files; None where its batches hold no images.

    Args:
        place: what a pack of the files is made of.
        parts: kinds and names of what a sample's time was spent in: ("decode", "cv2.imread").
        was_asked: for a batch; else its batch is another loader's: its steps alone tell the images' size.
    """
    image, pipeline = find_images(facts.batch), facts.pipeline
    if image is None or not pipeline or facts.get("pack") or facts.get("iterable"):
        return None
    draft = Draft(image)
    steps, left_out = list_operations(pipeline, facts.calls)
    draft.left_out += left_out
    for step in steps:
        draft.take(step)
    named = {step.name for step in steps}
    timed = [name for kind, name in parts if kind == "transform" and name not in named and "." not in name]
    for name in timed:
        draft.leave(f"{name} is not carried over: it was timed, and how the script calls it was not seen")
    crop = next((name for name in timed if any(word in name for word in CROPS)), None)
    why_not = "" if crop is None or draft.has_size else (
        f"no code is given: {crop} was timed, and what it does to an image was not seen"
    )  # fmt: skip
    if not (was_asked or draft.trust_steps()):
        return None
    draft.finish_geometry()
    draft.finish_values()
    names = {name for _, name in parts}
    if names & {"cv2.imread", "cv2.imdecode"} and "cv2.cvtColor" not in names:
        draft.leave("OpenCV decodes to BGR; these are RGB")
    table = None if place is None else place.table
    classes = "the class folders" if table is None else f"the classes in {table.path}"
    _take_labels(facts.layers, draft, classes, is_pillow=bool(facts.calls))
    _take_order(facts, draft)
    split = {} if facts.chosen is None else {"split": (0, share_of(*facts.chosen))}
    options = {**_loader_options(facts), **split, **draft.options()}
    fields = _take_form(facts.batch, image, draft)
    if fields:
        options["fields"] = fields
    if on_gpu:
        options["device"] = "cuda"
    left_out, dropped = list(dict.fromkeys(draft.left_out)), tuple(dict.fromkeys(draft.dropped))
    return LoaderCall(options, write_code(options), tuple(left_out), dropped=dropped, why_not=why_not)


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


def _take_order(facts: LoaderFacts, draft: Draft) -> None:
    """Say which samples the run had and in which order, where a Loader has others."""
    layers, pipeline, is_share = facts.layers, facts.pipeline, facts.chosen is not None
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


def _loader_options(facts: LoaderFacts) -> dict[str, Any]:
    size = facts.get("batch_size") or facts.batch.get(
        "samples"
    )  # a batch sampler of the script's own has none
    options: dict[str, Any] = {"batch_size": int(size)} if size else {}
    options["shuffle"] = facts.get("shuffle") is not False
    if facts.get("drop_last"):
        options["drop_last"] = True
    seed = facts.pipeline.get("seed")
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


def share_of(samples: int, of: int) -> float:
    """Return the share for `split=` that is exactly so many samples, in as few digits as that takes."""
    shares = (round(samples / of, digits) for digits in range(2, 16))
    return next((share for share in shares if round(share * of) == samples), samples / of)


def name_difference(facts: LoaderFacts, place: Place) -> str:
    """Say why a pack of the place has other samples than the dataset; empty: it has not, or is unknown."""
    wanted, samples, table = facts.samples, place.samples, place.table
    if samples is None or wanted is None or samples == wanted:
        return ""
    held = f"{place.folder} holds {samples:,} images"
    if table is not None:
        if samples > wanted:
            return (
                f"no code is given: the script takes {wanted:,} of the {samples:,} rows of {table.path} "
                "(a fold?), and a pack of the table has all; with the paths of the training's rows in "
                "train.txt, 'feedrate split PACK --file train=train.txt validation=rest' makes the parts"
            )
        held = f"{table.path} names {samples:,} files"
    return (
        f"no code is given: the script's dataset has {wanted:,} samples, and {held}, "
        "all of which a Loader without split= would take; 'feedrate split' makes parts of a pack"
    )


def fit_to_data(
    call: LoaderCall, place: Place, facts: LoaderFacts, others: Sequence[OtherLoader],
    other_call: LoaderCall | None,
) -> LoaderCall:  # fmt: skip
    """Return a call for the samples that the training loader has, and with one for validation beside it.

    Args:
        others: loaders of the run besides the training's.
        other_call: the Loader that the first of them becomes, where it is known.
    """
    if why := name_difference(facts, place):
        return replace(call, why_not=why, reads_others=True)
    if place.samples is None and facts.samples is not None:
        call = _add(
            call, f"the images were not counted: the pack must have the script's {facts.samples:,} samples"
        )
    if place.is_unlabelled:
        call = _add(
            call, f"labels: {place.folder} has no class folders; TABLE is a .csv of file names and labels"
        )
    if not others:
        return _without_validation(call, place.folder, facts.chosen)
    for more in others[1:]:
        call = _add(call, f"another loader of the run reads {more.shown_place}: it is left as it is")
    other, folder = others[0], place.folder
    if (other.place.folder, other.place.table) != (folder, place.table):
        is_known = other_call is not None and other.place.folder and folder
        if other_call is None or not is_known or name_difference(other.facts, other.place):
            return _add(call, f"validation reads {other.shown_place}: it needs a pack of its own")
        packs = ((place, TRAIN_PACK), (other.place, VALIDATION_PACK))
        return _join(replace(call, packs=packs), other, other_call)
    chosen, held_out = facts.chosen, other.facts.chosen
    if chosen is None and facts.chooser:
        return replace(call, reads_others=True, why_not=(
            f"no code is given: {facts.chooser} chooses the script's samples, and another loader of the run "
            f"reads {folder}, too: a Loader without split= would take its samples as well"
        ))  # fmt: skip
    if chosen is None or held_out is None or other_call is None:
        return _add(call, f"another loader of the run reads {folder}, too: it is left as it is")
    (first, of), both = chosen, chosen[0] + held_out[0]
    if both > of or held_out[1] != of:
        shared = "the loaders' subsets share samples, or come from different ones: see feedrate split"
        return _add(call, shared)
    split = share_of(first, of), 1 if both == of else share_of(both, of)
    return _join(call, other, other_call, split=split)


def _without_validation(call: LoaderCall, folder: str, chosen: tuple[int, int] | None) -> LoaderCall:
    if chosen is not None:
        rest = f"split=({share_of(*chosen)}, 1)"
        return _add(call, f"validation, where the script has some, takes the rest: {rest}")
    above, name = os.path.split(folder)
    beside = [os.path.join(above, one) for one in _BESIDE_TRAINING] if name.startswith("train") else []
    for found in filter(os.path.isdir, beside):
        command = f"feedrate pack {shlex.quote(found)} {VALIDATION_PACK}"
        return _add(call, f"{found} was not read by then: for validation {command}, and a Loader of that")
    return call


def _join(call: LoaderCall, other: OtherLoader, its_call: LoaderCall, **more: Any) -> LoaderCall:
    """Return a call with another loader's for validation beside it, and what that leaves out."""
    options = {name: value for name, value in {**its_call.options, **more}.items() if name != "seed"}
    left_out = [f"validation: {text}" for text in its_call.left_out if text not in call.left_out]
    name = str(other.facts.get("loader") or "")
    return _add(replace(call, validation=options, validates=name), *left_out)


def _add(call: LoaderCall, *sentences: str) -> LoaderCall:
    return replace(call, left_out=(*call.left_out, *sentences))
