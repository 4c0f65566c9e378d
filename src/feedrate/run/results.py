# SPDX-License-Identifier: Apache-2.0
"""What `feedrate run` returns: how the command ended, what of it was taken, and the time that this saved."""

from __future__ import annotations

from dataclasses import dataclass, field

from feedrate.figures import Figure


@dataclass(frozen=True, slots=True)
class LoaderReport:
    """One DataLoader, of all ranks together.

    Attributes:
        number: in the order in which the script asked for batches.
        dataset: the name of its class; `samples`: its length, None where it has none.
        is_taken: it ran with recipes; every other ran bare.
        verdict: how its proof ended, as a stable word; `why`: in words, with the sample where samples
            differ.
        proved: samples that were made both ways.
        gain: CPU time a sample, bare over with recipes, as the proof saw it; `gain_first`: while entry points
            are looked for.
        seconds: training waited for its batches and used them.
        images: made by the kernel; `left`: left to Pillow, by reason in words.
    """

    number: int
    dataset: str
    samples: int | None
    workers: int
    batch_size: int | None
    is_taken: bool
    verdict: str
    why: str
    proved: int
    gain: float
    gain_first: float
    batches: int
    seconds: float
    images: int
    left: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a command went.

    Attributes:
        exit_code: what a shell would report: 128 + n after signal n.
        seconds_bare: how long it would have taken without feedrate; None: not known.
        processes: of Python, that were reached; `ranks`: that trained.
        bare: why something ran without recipes, beside what the loaders say.
        notes: what else to know: entry points that could not be kept.
        patched: full names of all that was replaced in the user's processes.
        is_strict_end: --strict ended it.
    """

    command: tuple[str, ...]
    exit_code: int
    seconds: float
    seconds_bare: Figure | None
    processes: int
    ranks: int
    loaders: tuple[LoaderReport, ...]
    bare: tuple[str, ...]
    notes: tuple[str, ...]
    patched: tuple[str, ...] = ()
    is_strict_end: bool = False
