# SPDX-License-Identifier: Apache-2.0
"""Every remedy that the doctor can judge; one that a run says nothing about is left out."""

from __future__ import annotations

from collections.abc import Callable

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.findings import (
    remedies_caching,
    remedies_dataset,
    remedies_feed,
    remedies_loader,
    remedies_loop,
    remedies_machine,
    remedies_pack,
)
from feedrate.doctor.results import Remedy

Make = Callable[[Measured], Remedy | None]

_OF_WORKERS: tuple[Make, ...] = (
    remedies_feed.replace_loader,
    remedies_loader.change_workers,
    remedies_loader.persist_workers,
    remedies_loader.unpin_workers,
    remedies_loader.lighten_handover,
    remedies_loader.decode_faster,
    remedies_loader.normalise_images,
    remedies_loader.pack_files,
    remedies_loader.stage_to_scratch,
    remedies_caching.cache_in_memory,
    remedies_caching.read_from_memory,
    remedies_loader.vectorise_transform,
    remedies_caching.preprocess_once,
    remedies_dataset.feed_all_workers,
    remedies_dataset.clone_views,
)
ALL: tuple[Make, ...] = (
    *_OF_WORKERS,
    remedies_dataset.decode_side_by_side,
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
    remedies_pack.use_more_threads,
    remedies_pack.normalise_pack,
    remedies_pack.cache_samples,
    remedies_pack.stage_pack,
    remedies_pack.load_to_device,
)
# What makes no sense for a feedrate.Loader, which has threads and reads a pack already, nor for other loaders
# without workers.
_OF_DATALOADER = {
    *_OF_WORKERS,
    remedies_loop.move_to_workers,
    remedies_loop.pin_memory,
    remedies_loop.move_to_cores,
}


def remedies_of(m: Measured) -> dict[str, Remedy]:
    """Return every remedy that can be judged from this run, by name."""
    left_out = _OF_DATALOADER if m.is_pack_loader or m.opaque else set()
    left_out = left_out | {remedies_pack.load_to_device} if m.opaque else left_out
    made = (make(m) for make in ALL if make not in left_out)
    return {remedy.name: remedy for remedy in made if remedy is not None}
