# SPDX-License-Identifier: Apache-2.0
"""What a plan says: the dataset, the node, the ways to train on the one with the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from feedrate.figures import Figure
from feedrate.machine.results import StoreSpeed

PACK, STAGE, FIRST, LATER = "pack", "stage", "first", "later"  # parts of a run


@dataclass(frozen=True, slots=True)
class Survey:
    """What a sample of a dataset tells of all of it.

    Attributes:
        kind: what it arrives as: `folders`, `pack`, `tar`, `zip`, ... (`SourceKind`).
        files: files to open in an epoch that reads it in place (of a pack or tar: its shards).
        formats: which share of the samples is `jpeg`, `png`, ...
        decoded_bytes: of one sample, as height x width x channels of bytes.
        factor: decoded by encoded size: K of the guides.
        pillow_s, feedrate_s: CPU time for one sample on one core, from memory, a random crop of `crop`
            pixels: Pillow as DataLoader workers use it (collating included), and our kernel from a pack's
            entry points. None: no images, or it could not be tried, which a note says.
        pillow_wait_s: what Pillow waits for the file system in opening and decoding a file that is not in
            memory, beside that CPU time; None: not measured, since all of it is in memory, or no files.
        pillow_read_s, server_s: CPU time that such a file takes more than one in memory: of who reads it, and
            of a process that serves the file system on this node.
        whole_s, cached_s: CPU time of our kernel to decode a whole image, and to cut a crop out of one that
            is decoded. None: not measured.
        pillow_cores, feedrate_cores: what all `cores` of this machine gave, divided by what one gave.
        pack_s: CPU time to pack one sample: read from memory, scan, checksum, write.
        resident: the share of the bytes that is in the page cache; None: the file system does not tell.
        list_s: listing all of it, in seconds.
        source: how its file system answers.
        is_partial: folders were sampled, the rest is extrapolated; `how` says in words what was looked at.
        took_s: how long looking took.
        busy: what other processes took of the cores meanwhile, where it was much: times are less sure.
        deep_share: of the images that were looked at, those that are gray of more than 8 bits.
        notes: sentences about what is odd: damaged samples, folders that cannot be listed.
        parts: of the dataset (`train`, `val`), and how many samples each has; empty: it has none.
        trained: the part that an epoch is; empty: an epoch is all of it.
    """

    dataset: str
    kind: str
    samples: Figure
    files: Figure
    folders: Figure
    sample_bytes: Figure
    total_bytes: Figure
    formats: Mapping[str, float]
    width: float
    height: float
    decoded_bytes: Figure
    factor: Figure
    pillow_s: Figure | None
    feedrate_s: Figure | None
    cores: float
    pillow_cores: float
    feedrate_cores: float
    pack_s: Figure
    resident: float | None
    list_s: Figure
    source: StoreSpeed
    is_partial: bool
    how: str
    took_s: float
    pillow_wait_s: Figure | None = None
    pillow_read_s: Figure | None = None
    server_s: float = 0.0
    whole_s: Figure | None = None
    cached_s: Figure | None = None
    notes: tuple[str, ...] = ()
    busy: str = ""
    crop: int = 224
    deep_share: float = 0.0
    parts: Mapping[str, Figure] = field(default_factory=dict)
    trained: str = ""

    @property
    def trained_share(self) -> float:
        """Which share of the samples an epoch is."""
        whole = math.fsum(part.value for part in self.parts.values())
        return self.parts[self.trained].value / whole if self.trained and whole else 1.0

    @property
    def trained_samples(self) -> Figure:
        return self.parts[self.trained] if self.trained else self.samples

    @property
    def has_images(self) -> bool:
        return self.pillow_s is not None or self.feedrate_s is not None


@dataclass(frozen=True, slots=True)
class Node:
    """One kind of node, as far as it decides how fast a dataset is trained on.

    Attributes:
        cores: that the job may use; `memory_bytes`: that it may use, by the tightest limit.
        memory_origin: whose limit that is: "this Slurm job's --mem", "the machine's memory".
        model: a name of KNOWN_MODELS, or empty; `model_rate`: images per second that one GPU trains on; None:
            nobody knows, so the device limits nothing and says so.
        to_device_bytes_per_s, gpu_decode_images_per_s: per GPU; None: no GPU, or unknown.
        scratch: None: there is none, or none was named; `scratch_free_bytes` is this user's.
        nodes: of this kind that the job takes.
        machine_memory_bytes: what a larger --mem could ask for; None: no limit but the machine's own.
        pack_folder: where a pack would be made, and what is free there.
    """

    name: str
    cores: Figure
    memory_bytes: Figure
    memory_origin: str
    gpus: int
    gpu_name: str
    gpu_memory_bytes: Figure | None
    model: str
    model_rate: Figure | None
    to_device_bytes_per_s: Figure | None
    gpu_decode_images_per_s: Figure | None
    scratch: StoreSpeed | None
    scratch_path: str
    scratch_free_bytes: Figure | None
    nodes: int = 1
    machine_memory_bytes: Figure | None = None
    pack_folder: str = ""
    pack_free_bytes: Figure | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Way:
    """One way to train, and what it costs.

    Attributes:
        name: as it is shown; `code`: as programs and options name it.
        before_s: until training can start.
        timeline: PACK, STAGE, FIRST and LATER epochs, as far as there are, in seconds.
        disk_bytes: `pack_bytes` on the disk where the pack is made, and `copy_bytes` on scratch.
        limit: what most of the later epochs wait for: a code of model/limits.py.
        pays_after: epochs after which it has caught up with reading in place; None: never.
        gpu_hours_saved: over all epochs and GPUs, against reading in place.
        why_not: why it cannot be done here, or not in this job; empty: it fits.
        needs: what it asks of the user beside time: an edit, rights, quality; in words.
        commands: to type, in order.
        workers: of the DataLoader; `kept`: which share of the samples a cache holds.
        is_smaller: the images are made smaller, so that training sees others.
    """

    code: str
    name: str
    before_s: Figure
    first_epoch_s: Figure
    later_epoch_s: Figure
    total_s: Figure
    disk_bytes: Figure
    memory_bytes: Figure
    limit: str
    needs: str
    timeline: tuple[tuple[str, float], ...]
    gpu_hours_saved: Figure
    pays_after: float | None = None
    why_not: str = ""
    commands: tuple[str, ...] = ()
    workers: int = 0
    kept: float = 0.0
    pack_bytes: float = 0.0
    copy_bytes: float = 0.0
    is_smaller: bool = False

    @property
    def fits(self) -> bool:
        return not self.why_not

    @property
    def gpu_s(self) -> float:
        """How long the GPUs are taken: packing needs none, a job without them can do it."""
        return math.fsum(seconds for part, seconds in self.timeline if part != PACK)


@dataclass(frozen=True, slots=True)
class Plan:
    """`recommended`: the code of a way; empty: nothing is worth doing, and `reason` says why."""

    survey: Survey
    node: Node
    epochs: int
    workers: int
    ways: tuple[Way, ...]
    recommended: str
    reason: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The answers to a one-line question, with the figures that they are made of.

    Attributes:
        answers: by what they are an answer for, in words ("from a pack"); empty words: there is one.
        unit: of the answers: `s` or `bytes`.
        figures: by what they are, in words; with the unit: `s`, `bytes`, `bytes/s`, `files/s`, any
            word, or empty.
        commands: to type next, in order.
    """

    question: str
    answers: Mapping[str, Figure]
    unit: str
    figures: Mapping[str, tuple[Figure, str]]
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
