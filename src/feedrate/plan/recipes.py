# SPDX-License-Identifier: Apache-2.0
"""The ways to train, as the parts that each is made of; what a user types for one, and why it may not fit."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass

from feedrate.plan.results import Node, Survey, Way
from feedrate.units import format_bytes, shell_quote

RESIZE = 256
MARGIN = 0.9  # of a memory limit: the rest is left to what nobody counted
GPU_CACHE_SHARE = 0.5  # of a GPU's memory: the model comes first
_ENOUGH_ROOM = 0.98
_LEAST_KEPT = 0.1


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way.

    Attributes:
        packed: the dataset becomes a pack, on the source's file system, or on scratch (`on_scratch`).
        staged: a copy on scratch comes first; `live`: it is made while training.
        cache: `ram`, `disk` or `gpu`: where decoded images are kept.
        resized: the pack's images are made smaller.
    """

    code: str
    name: str
    packed: bool = False
    on_scratch: bool = False
    staged: bool = False
    live: bool = False
    cache: str = ""
    best_workers: bool = False
    more_memory: bool = False
    gpu_decode: bool = False
    resized: bool = False

    @property
    def is_local(self) -> bool:
        """Whether samples are read from scratch."""
        return self.staged or self.live or self.on_scratch

    @property
    def needs(self) -> str:
        """What it asks of the user beside time and room, in words."""
        if self == IN_PLACE:
            return ""
        if self.more_memory:
            return "a job with more memory"
        if not self.packed:
            return "another path in the script" if self.staged else "another number of workers in the script"
        loader = "feedrate.Loader in place of the script's DataLoader"
        return loader + ("; images are re-encoded" if self.resized else "")


IN_PLACE = Recipe("in-place", "read in place")
_SMALL = f"pack --resize {RESIZE}"
# The simplest first: of ways that take about the same time, the first is recommended.
RECIPES = (
    IN_PLACE,
    Recipe("workers", "more workers", best_workers=True),
    Recipe("memory", "more memory for the page cache", more_memory=True),
    Recipe("stage", "stage the files", staged=True, best_workers=True),
    Recipe("pack", "pack", packed=True),
    Recipe("pack-scratch", "pack onto scratch", packed=True, on_scratch=True),
    Recipe("pack-stage", "pack, stage", packed=True, staged=True),
    Recipe("pack-live", "pack, train while staging", packed=True, live=True),
    Recipe("gpu-decode", "pack, decode on the GPU", packed=True, gpu_decode=True),
    Recipe(
        "live-gpu-decode", "pack, train while staging, decode on the GPU", True, live=True, gpu_decode=True
    ),
    Recipe("ram", "pack, cache in memory", packed=True, cache="ram"),
    Recipe("gpu", "pack, cache on the GPU", packed=True, cache="gpu"),
    Recipe("disk", "pack, cache on scratch", packed=True, cache="disk"),
    Recipe("live-ram", "pack, train while staging, cache in memory", packed=True, live=True, cache="ram"),
    Recipe("live-gpu", "pack, train while staging, cache on the GPU", packed=True, live=True, cache="gpu"),
    Recipe("resize", _SMALL, packed=True, resized=True),
    Recipe("resize-live", f"{_SMALL}, train while staging", packed=True, live=True, resized=True),
)


def is_made_for(recipe: Recipe, survey: Survey, node: Node) -> bool:
    """Return whether a way is one for this dataset and node at all; one that does not fit is still shown."""
    is_image, is_pack = survey.has_images, survey.kind == "pack"
    if recipe.on_scratch and node.nodes > 1:  # a pack is made by one node, and the others do not see its disk
        return False
    if recipe.gpu_decode or recipe.cache == "gpu":
        return is_image and node.gpus > 0
    if recipe.resized:
        return is_image and not is_pack and shrink_of(survey) < 0.9
    if recipe.cache:
        return is_image
    if is_pack:
        return recipe == IN_PLACE or (recipe.packed and recipe.is_local and not recipe.on_scratch)
    return not recipe.more_memory or survey.source.keeps_pages is not False


def shrink_of(survey: Survey) -> float:
    """Return which part of an image's pixels is left when its shorter side becomes RESIZE."""
    shorter = min(survey.width, survey.height)
    return 1.0 if shorter <= RESIZE else (RESIZE / shorter) ** 2


def explain_misfit(recipe: Recipe, way: Way, survey: Survey, node: Node, workers: int) -> str:
    """Return why a way cannot be gone here, in words; empty: it fits."""
    if recipe.is_local or recipe.cache == "disk":
        free = node.scratch_free_bytes
        if node.scratch is None or free is None:
            return "no scratch disk is known: name one with --scratch DIR"
        if way.copy_bytes > free.value * _ENOUGH_ROOM:
            return f"needs {format_bytes(way.copy_bytes)} of scratch, {format_bytes(free.value)} are free"
        if node.scratch.is_memory and (why := _explain_no_memory(recipe, way, node)):
            return why
    free = node.pack_free_bytes
    if free is not None and way.pack_bytes > free.value * _ENOUGH_ROOM:
        return f"the pack needs {format_bytes(way.pack_bytes)}, {format_bytes(free.value)} are free"
    if recipe.more_memory:
        most, wanted = node.machine_memory_bytes or node.memory_bytes, way.memory_bytes.value / MARGIN
        if wanted <= node.memory_bytes.value:
            return "the page cache holds all of it as it is"
        if wanted > most.value:
            has = f"{format_bytes(most.value)} are free"
            if node.machine_memory_bytes is not None:
                has = f"the node has {format_bytes(most.value)}"
            return f"needs {format_bytes(wanted)}, {has}"
    if recipe.cache == "gpu" and node.gpu_memory_bytes is None:
        return "how much memory this GPU has is not known"
    if recipe.cache and way.kept < _LEAST_KEPT:
        return f"only {way.kept:.1%} of the decoded images would fit"
    if recipe.gpu_decode and survey.formats.get("jpeg", 0.0) < 0.5:
        return "the GPU decodes JPEG files only"
    if recipe.gpu_decode and node.gpu_decode_images_per_s is None:
        return "what this GPU decodes is not known: feedrate bench machine"
    if recipe.code == "workers" and way.workers <= workers:
        return f"{workers} are enough"
    return ""


def _explain_no_memory(recipe: Recipe, way: Way, node: Node) -> str:
    """Return why a copy on scratch that is memory cannot be had; empty: it can."""
    if recipe.cache == "disk":
        return f"{node.scratch_path}, which is memory, is no disk for a cache"
    needed, free = way.memory_bytes.value / MARGIN, node.memory_bytes.value
    copy = f"a copy of {format_bytes(way.copy_bytes)} on {node.scratch_path}, which is memory,"
    left = f"{format_bytes(free)} are left ({node.memory_origin})"
    if 2 * way.copy_bytes > free:  # as `feedrate stage` has it
        return f"{copy} would be more than half of it: {left}"
    return f"{copy} needs {format_bytes(needed)} with the training beside it: {left}" if needed > free else ""


def list_commands(recipe: Recipe, way: Way, survey: Survey, node: Node, batch_size: int) -> tuple[str, ...]:
    """Return what to type, in order."""
    if recipe == IN_PLACE:
        return ()
    if recipe.code == "workers":
        return (f"DataLoader(..., num_workers={way.workers})",)
    if recipe.more_memory:
        return (f"sbatch --mem={math.ceil(way.memory_bytes.value / MARGIN / 1e9)}G ...",)
    lines, pack = [], survey.dataset
    if recipe.packed and survey.kind != "pack":
        folder = node.scratch_path if recipe.on_scratch else node.pack_folder
        pack = os.path.join(folder, _name_pack(survey.dataset))
        options = f" --resize {RESIZE}" if recipe.resized else ""
        options += " --entries gpu" if recipe.gpu_decode else ""
        lines.append(f"feedrate pack {shell_quote(survey.dataset)} {shell_quote(pack)}{options}")
    if recipe.staged:
        scratch = shell_quote(node.scratch_path)
        # Exported, since the script asks for it in its environment.
        lines.append(f'export DATA="$(feedrate stage {shell_quote(pack)} --scratch {scratch})"')
    if not recipe.packed:
        dataset = 'YourDataset(os.environ["DATA"], ...)'
        return (*lines, f"DataLoader({dataset}, ..., num_workers={way.workers})")
    arguments = [
        'os.environ["DATA"]' if recipe.staged else repr(pack),
        f"batch_size={min(batch_size, max(int(survey.trained_samples.value), 1))}",
    ]
    arguments += [f'split="{survey.trained or "all"}"'] if survey.parts else []
    if survey.has_images:
        arguments += [f"image=feedrate.RandomResizedCrop({survey.crop})", "flip=True"]
    arguments += ['device="cuda"'] if node.gpus else []
    arguments += ['decode="gpu"'] if recipe.gpu_decode else []
    arguments += [f"scratch={node.scratch_path!r}"] if recipe.live else []
    arguments += [f"cache=feedrate.Cache({_name_cache(recipe.cache, node)})"] if recipe.cache else []
    if survey.deep_share:
        # On the GPU, pixels of 8 bits are made and kept.
        is_narrow = recipe.gpu_decode or recipe.cache == "gpu"
        arguments.append("depth=(0, 65535)" if is_narrow else 'depth="uint16"')
    choice = '  # or another depth: "uint16", (low, high), "clip"' if survey.deep_share else ""
    return (*lines, f"loader = feedrate.Loader({', '.join(arguments)}){choice}")


def _name_pack(dataset: str) -> str:
    """Return a name after a folder or file; after a pattern's folder, where it begins with a wildcard."""
    folder, name = os.path.split(dataset.rstrip("/"))
    words = (re.split(r"[.*?{\[]", part)[0].rstrip("-_") for part in (name, os.path.basename(folder)))
    return next(filter(None, words), "data") + ".pack"


def _name_cache(cache: str, node: Node) -> str:
    if cache == "gpu" and node.gpu_memory_bytes is not None:
        return f'gpu="{int(node.gpu_memory_bytes.value * GPU_CACHE_SHARE / 1e9)}GB"'
    return f"disk={node.scratch_path!r}" if cache == "disk" else 'ram="auto"'
