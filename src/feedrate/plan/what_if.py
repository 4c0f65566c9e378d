# SPDX-License-Identifier: Apache-2.0
"""`--what-if cores=32 mem=500G gpu=4xA100`: this dataset on a node that is not this one.

What a user says is `given`; what follows from the name of a GPU or a storage is `assumed`, with its source.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from feedrate.errors import UsageError
from feedrate.figures import ASSUMED, GIVEN, Figure
from feedrate.machine.gpu import describe_gpus
from feedrate.machine.results import StoreSpeed
from feedrate.model.gpus import GPUS, find_gpu, find_model_rate
from feedrate.plan.results import Node, Survey
from feedrate.units import format_bytes, parse_bytes, parse_rate

_MOST_GPUS = 64  # of one node
_OPTION = "--what-if"


class Preset(NamedTuple):
    """A kind of storage that was not measured, as one node sees it: seconds, files and bytes per second."""

    source: str
    file_s: float
    read_s: float
    create_s: float
    files_per_s: float
    stream_bytes_per_s: float
    total_bytes_per_s: float
    write_bytes_per_s: float
    within: float = 1.5  # of bytes per second; of the others, a factor of two

    def describe(self, kind: str, path: str) -> StoreSpeed:
        figures: dict[str, Any] = {
            name: Figure.within(
                value, self.within if "bytes" in name else 2.0, ASSUMED, f"{kind}: {self.source}"
            )
            for name, value in self._asdict().items()
            if name.endswith("_s")
        }
        return StoreSpeed(path, kind, streams=16, keeps_pages=True, **figures)


# A file, a read, a new file; files per second; bytes per second of a stream, in all, and of writing.
# Rates are those of data sheets. A file costs its directory entry, its inode and its first bytes: some two
# waits for a disk or a network.
STORAGE = {
    # 3,500 and 2,300 MB/s, 370,000 reads of 4 KB per second; one read alone waits some 0.1 ms for the flash.
    "nvme": Preset(
        "data sheet of a Samsung 970 PRO", 0.2e-3, 0.1e-3, 0.1e-3, 50_000, 2.0e9, 3.5e9, 2.3e9
    ),
    # 560 and 530 MB/s, 98,000 reads of 4 KB per second.
    "ssd": Preset(
        "data sheet of a Samsung 870 EVO", 0.25e-3, 0.12e-3, 0.1e-3, 20_000, 0.5e9, 0.56e9, 0.53e9
    ),
    # 270 MB/s on the outer tracks and half on the inner ones; 4.16 ms until the sector comes round, a seek
    # before; 152 random reads per second and actuator (304 of the 2X14 with two).
    "hdd": Preset(
        "data sheets of Seagate Exos X18 and 2X14", 18e-3, 12e-3, 5e-3, 100, 0.2e9, 0.2e9, 0.2e9
    ),
    # Amazon EFS, performance specifications: about 1 ms per read, 2.7 ms per write, 500 MiB/s per client,
    # 35,000 reads per second; two calls to open a file, one to read it.
    "nfs": Preset(
        "Amazon EFS's specifications, a managed NFS",
        2e-3, 1e-3, 2.7e-3, 10_000, 0.25e9, 0.52e9, 0.52e9, within=2.0,
    ),
    # Amazon FSx for Lustre: "sub-millisecond latencies". Rates are orders of magnitude: a stream reads one
    # storage target, a node has a link of 40 Gbit/s.
    "lustre": Preset(
        "Amazon FSx for Lustre's latency; rates by order of magnitude",
        1.5e-3, 0.7e-3, 1.5e-3, 10_000, 1.0e9, 5.0e9, 3.0e9, within=2.0,
    ),
    # Measured on a tmpfs, 2-core virtual machine (AMD EPYC), November 2026.
    "memory": Preset(
        "a tmpfs, measured on a 2-core AMD EPYC", 5e-6, 3e-6, 50e-6, 200_000, 4.8e9, 9.0e9, 2.6e9
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What is changed; None and empty: nothing.

    Attributes:
        text: as the user wrote it.
        net_bytes_per_s: what one node reads of the source; `total_bytes_per_s`: what the source gives all
            nodes together.
        latency_s: of one call to the source; opening a file and reading its first bytes are two.
        size_bytes: of a dataset that is larger or smaller, of the same samples.
        scratch_bytes: 0: there is none.
        core_speed: what a core does, in units of one of this machine.
    """

    text: str = ""
    cores: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    gpu: str = ""
    model_rate: float | None = None
    nodes: int | None = None
    storage: str = ""
    net_bytes_per_s: float | None = None
    total_bytes_per_s: float | None = None
    latency_s: float | None = None
    size_bytes: int | None = None
    scratch_bytes: int | None = None
    scratch_storage: str = ""
    core_speed: float | None = None

    def apply(self, survey: Survey, node: Node) -> tuple[Survey, Node]:
        """Return dataset and node with the changes.

        Raises:
            UsageError: no rate of the node's model is known for the GPU.
        """
        return self._change_survey(survey), self._change_node(node)

    def check_gpu(self, model: str) -> None:
        """Refuse a GPU of which no rate of a model is known, before anything is looked at.

        Raises:
            UsageError: it is none of this node's, whose rates may be stored, and nothing was published of it.
        """
        if not (self.gpu or self.gpus) or self.model_rate is not None or not model:
            return
        facts = find_gpu(self.gpu)
        is_any = not self.gpu
        if not any(is_any or (facts and facts is find_gpu(gpu.name)) for gpu in describe_gpus()):
            self._find_published(model)

    def _find_published(self, model: str) -> Figure:
        rate = find_model_rate(self.gpu, model)
        if rate is None:
            known = ", ".join(gpu.name for gpu in GPUS if gpu.published)
            raise UsageError(
                f"no rate of {model} is known for "
                + (f"the GPU '{self.gpu}'" if self.gpu else "GPUs without a name"),
                hint=f"give it as model-rate=IMAGES_PER_S, or take one of {known}",
            )
        return rate

    def _change_survey(self, survey: Survey) -> Survey:
        source, notes = self._change_source(survey.source), list(survey.notes)
        if self.size_bytes is not None:
            survey = _resize(survey, self.size_bytes)
            notes.append(f"{format_bytes(self.size_bytes)} of samples like these are given, not seen")
        if self.core_speed is not None:
            note = f"--what-if: cores of {self.core_speed:g} times the speed"
            times = ("pillow_s", "feedrate_s", "whole_s", "cached_s", "pack_s")
            known = {name: figure for name in times if (figure := getattr(survey, name)) is not None}
            faster = {name: one.scaled(1 / self.core_speed).assumed(note) for name, one in known.items()}
            survey = replace(survey, **faster)
        if self.storage:
            notes.append(f"storage={self.storage} is assumed: {STORAGE[self.storage].source}")
        if self.is_other_store:
            survey = replace(survey, pillow_wait_s=None, pillow_read_s=None, server_s=0.0)
        # Another store, or other nodes: what is in this node's page cache says nothing of theirs.
        if self.storage or (self.nodes or 1) > 1:
            survey = replace(survey, resident=0.0)
        return replace(survey, source=source, notes=tuple(notes))

    @property
    def is_other_store(self) -> bool:
        """Whether what was tried on the dataset's own store says nothing of the one that is meant."""
        return bool(self.storage) or self.latency_s is not None or self.net_bytes_per_s is not None

    def _change_source(self, source: StoreSpeed) -> StoreSpeed:
        if self.storage:
            source = STORAGE[self.storage].describe(self.storage, source.path)
        if self.is_other_store:
            source = replace(source, copy_bytes_per_s=None)
        if self.latency_s is not None:
            call = _given(self.latency_s, "latency")
            most = min(source.files_per_s.value, source.streams / (2 * self.latency_s))
            source = replace(
                source, read_s=call, file_s=call.scaled(2), stat_s=call,
                files_per_s=Figure.within(most, 1.5, ASSUMED, f"{source.streams} readers with that latency"),
            )  # fmt: skip
        if self.net_bytes_per_s is not None:
            source = _change_rate(source, _given(self.net_bytes_per_s, "net"))
        if self.total_bytes_per_s is not None:
            source = replace(source, shared_bytes_per_s=_given(self.total_bytes_per_s, "total"))
        return source

    def _change_node(self, node: Node) -> Node:
        node = self._change_scratch(self._change_gpus(node))
        if self.cores is not None:
            node = replace(node, cores=_given(self.cores))
        if self.memory_bytes is not None:
            memory = _given(self.memory_bytes)
            node = replace(
                node, memory_bytes=memory, machine_memory_bytes=memory, memory_origin="--what-if mem"
            )
        if self.storage or self.size_bytes is not None:
            # What is free beside the dataset that is here says nothing of another store.
            node = replace(node, pack_free_bytes=None)
        name = f"what if: {self.text}" if self.text else node.name
        return replace(node, name=name, nodes=node.nodes if self.nodes is None else self.nodes)

    def _change_gpus(self, node: Node) -> Node:
        count = (max(node.gpus, 1) if self.gpu else node.gpus) if self.gpus is None else self.gpus
        facts = find_gpu(self.gpu)
        is_same = not self.gpu or (facts is not None and facts is find_gpu(node.gpu_name))
        node = replace(
            node, gpus=count,
            model_rate=self._find_rate(node, is_same=is_same and node.gpus > 0, count=count),
        )  # fmt: skip
        if is_same and count:
            return node
        return replace(
            node,
            gpu_name=facts.name if facts else self.gpu,
            gpu_memory_bytes=facts.memory_bytes if facts else None,
            to_device_bytes_per_s=facts.to_device_bytes_per_s if facts else None,
            gpu_decode_images_per_s=None,
        )

    def _find_rate(self, node: Node, *, is_same: bool, count: int) -> Figure | None:
        if self.model_rate is not None:
            return _given(self.model_rate, "model-rate")
        if self.gpus is None and not self.gpu:
            return node.model_rate
        if count == 0:  # what the model would take on the cores is not known
            return node.model_rate if node.gpus == 0 else None
        if is_same or (node.model_rate is not None and node.model_rate.origin == GIVEN):
            return node.model_rate
        return self._find_published(node.model) if node.model else None

    def _change_scratch(self, node: Node) -> Node:
        if self.scratch_bytes == 0:
            return replace(node, scratch=None, scratch_path="", scratch_free_bytes=None)
        path, store = node.scratch_path or "/scratch", node.scratch
        if self.scratch_bytes is not None:
            node = replace(node, scratch_free_bytes=_given(self.scratch_bytes, "scratch"), scratch_path=path)
        elif self.scratch_storage and store is None:
            raise UsageError(
                f"scratch-storage={self.scratch_storage} of a node without scratch",
                hint="say how much is free, too: scratch=2T",
            )
        kind = self.scratch_storage or ("nvme" if store is None and self.scratch_bytes else "")
        if not kind:
            return node
        notes = (*node.notes, f"scratch is assumed to be {kind}: {STORAGE[kind].source}")
        return replace(node, scratch=STORAGE[kind].describe(kind, path), notes=notes)


def _given(value: float, key: str = "") -> Figure:
    return Figure.exactly(value, GIVEN, f"{_OPTION} {key}".rstrip())


def _change_rate(source: StoreSpeed, rate: Figure) -> StoreSpeed:
    stream, total = source.stream_bytes_per_s, source.total_bytes_per_s
    if stream.value > 0.7 * total.value:  # one reader had the whole link, and would have the other
        stream = Figure.within(rate.value, 1.5, ASSUMED, rate.note)
    elif stream.value > rate.value:
        stream = rate
    return replace(source, stream_bytes_per_s=stream, total_bytes_per_s=rate)


def _resize(survey: Survey, size_bytes: int) -> Survey:
    factor = size_bytes / max(survey.total_bytes.value, 1.0)
    return replace(
        survey,
        samples=_scale_count(survey.samples, factor),
        files=_scale_count(survey.files, factor),
        folders=_scale_count(survey.folders, factor),
        parts={name: _scale_count(part, factor) for name, part in survey.parts.items()},
        total_bytes=Figure.exactly(size_bytes, GIVEN, "size"),
        list_s=survey.list_s.scaled(factor).assumed("by size"),
        # What is in memory is of the dataset that is here.
        resident=None if survey.resident is None else survey.resident / max(factor, 1.0),
    )


def _scale_count(count: Figure, factor: float) -> Figure:
    low, value, high = (float(max(round(n * factor), 1)) for n in (count.low, count.value, count.high))
    return Figure(value, low, high, GIVEN, "by size")


def parse_what_if(words: Sequence[str]) -> WhatIf:
    """Return the changes in `cores=32 mem=500G`; commas may stand for spaces. No words: no changes.

    Raises:
        UsageError: a key is unknown or said twice, or a value makes no sense.
    """
    pairs = []
    for word in (part.strip() for text in words for part in text.split(",")):
        key, equals, value = word.partition("=")
        if word and not (equals and value):
            raise UsageError(
                f"--what-if: '{word}' is no change", hint="write KEY=VALUE, like cores=32; " + LIST_OF_KEYS
            )
        if word:
            pairs.append((key, value))
    if words and not pairs:
        raise UsageError("--what-if says nothing to change", hint=LIST_OF_KEYS)
    found: dict[str, Any] = {}
    for typed, value in pairs:
        key = typed.strip().lower().replace("_", "-")
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"--what-if: there is no '{typed}'", hint=hint + LIST_OF_KEYS)
        parse, example, name = KEYS[key]
        if name in found:
            raise UsageError(f"--what-if: {key} is given twice", hint="leave one out")
        try:
            found[name] = parse(value.strip())
        except UsageError as error:
            hint = f"write it like {key}={example}"
            raise UsageError(f"--what-if {key}: {error.message}", hint=hint) from error
    gpus, gpu = found.pop("gpu", (None, ""))
    return WhatIf(" ".join(f"{key}={value}" for key, value in pairs), gpus=gpus, gpu=gpu, **found)


def _whole(most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
            raise UsageError(f"a whole number from 1 to {most:,} is needed, got '{text}'")
        return int(text)

    return parse


def _real(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        is_number = re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", text)
        if not is_number or not least <= float(text) <= most:
            raise UsageError(f"a number from {least:g} to {most:,.0f} is needed, got '{text}'")
        return float(text)

    return parse


def _parse_storage(text: str) -> str:
    if text.lower() not in STORAGE:
        raise UsageError(f"'{text}' is none of {', '.join(STORAGE)}")
    return text.lower()


# A number, a name, or both: 8, A100, 4xA100. Names begin with a letter, or are like 3090 and 2080 Ti.
_GPU = re.compile(
    r"(?P<only>[0-9]{1,3})|(?:(?P<count>[1-9][0-9]{0,2}) *[x*] *)?(?P<name>([A-Za-z]|[0-9]{4}).*)"
)


def _parse_gpu(text: str) -> tuple[int | None, str]:
    """Return how many GPUs, None where that was not said, and their name."""
    if text.lower() == "none":
        return 0, ""
    match = _GPU.fullmatch(text)
    count = None if match is None else match["only"] or match["count"]
    if match is None or int(count or 0) > _MOST_GPUS:
        raise UsageError(f"a number of GPUs up to {_MOST_GPUS} and a name are needed, got '{text}'")
    return None if count is None else int(count), match["name"] or ""


def _parse_scratch(text: str) -> int:
    return 0 if text.lower() == "none" else parse_bytes(text)


def _parse_latency(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(us|µs|ms|s)", text.lower())
    units = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
    seconds = float(match[1]) * units[match[2]] if match else 0.0
    if not 1e-7 <= seconds <= 60:
        raise UsageError(f"a time from 0.1us to 60s is needed, got '{text}'")
    return seconds


# The words on the left: how their values are read, an example, and the field; GPUs are two of them.
KEYS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "cores": (_whole(1024), "32", "cores"),
    "mem": (parse_bytes, "500G", "memory_bytes"),
    "gpu": (_parse_gpu, "4xA100", "gpu"),
    "model-rate": (_real(0.001, 1e7), "1200", "model_rate"),
    "nodes": (_whole(100_000), "4", "nodes"),
    "storage": (_parse_storage, "nvme", "storage"),
    "net": (parse_rate, "1.2GB/s", "net_bytes_per_s"),
    "total": (parse_rate, "20GB/s", "total_bytes_per_s"),
    "latency": (_parse_latency, "2ms", "latency_s"),
    "scratch": (_parse_scratch, "2T", "scratch_bytes"),
    "scratch-storage": (_parse_storage, "nvme", "scratch_storage"),
    "core-speed": (_real(0.05, 20), "1.3", "core_speed"),
    "size": (parse_bytes, "1PB", "size_bytes"),
}
LIST_OF_KEYS = "known: " + ", ".join(f"{key}={example}" for key, (_, example, _) in KEYS.items())
