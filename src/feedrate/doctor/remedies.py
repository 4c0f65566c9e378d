# SPDX-License-Identifier: Apache-2.0
"""Every remedy that the doctor can judge; one that a run says nothing about is left out."""

from __future__ import annotations

from collections.abc import Callable

from feedrate.doctor import remedies_kept, remedies_loader, remedies_loop, remedies_machine
from feedrate.doctor.measured import Measured
from feedrate.results.doctor import Remedy

ALL: tuple[Callable[[Measured], Remedy | None], ...] = (
    remedies_loader.change_workers,
    remedies_loader.persist_workers,
    remedies_loader.unpin_workers,
    remedies_loader.lighten_handover,
    remedies_loader.decode_faster,
    remedies_loader.normalise_images,
    remedies_loader.pack_files,
    remedies_loader.stage_to_scratch,
    remedies_kept.cache_in_memory,
    remedies_kept.read_from_memory,
    remedies_loader.vectorise_transform,
    remedies_kept.preprocess_once,
    remedies_loop.evaluate_less,
    remedies_loop.save_less,
    remedies_loop.write_less,
    remedies_loop.speed_up_main,
    remedies_loop.move_to_workers,
    remedies_loop.remove_syncs,
    remedies_loop.keep_on_device,
    remedies_loop.pin_memory,
    remedies_loop.transfer_bytes,
    remedies_loop.halve_precision,
    remedies_loop.lay_channels_last,
    remedies_loop.enlarge_batch,
    remedies_loop.move_to_cores,
    remedies_loop.balance_ranks,
    remedies_machine.stop_others,
    remedies_machine.use_less_memory,
    remedies_machine.use_gpu,
)


def remedies_of(m: Measured) -> dict[str, Remedy]:
    """Return every remedy that can be judged from this run, by name."""
    made = (make(m) for make in ALL)
    return {remedy.name: remedy for remedy in made if remedy is not None}
