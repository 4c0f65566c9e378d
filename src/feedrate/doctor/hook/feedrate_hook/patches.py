# SPDX-License-Identifier: Apache-2.0
"""All patches by the module they wait for, and what happens to them when a process forks or ends."""

from __future__ import annotations

import os
from typing import Any

from . import (
    calls,
    catalogue,
    draws,
    fetching,
    imports,
    loader,
    loaders,
    opens,
    parts,
    pipeline,
    savers,
    stacks,
    tracebacks,
    training,
    views,
)  # fmt: skip
from .describe import describe_torch
from .device import device
from .session import session


def install() -> None:
    """Put the finder in place, with every patch waiting for its module."""
    add = imports.finder.add
    add("torch.utils.data._utils.fetch", fetching.patch_fetch)
    add("torch.utils.data._utils.worker", fetching.patch_worker)
    add("torchdata.stateful_dataloader.worker", fetching.patch_worker)
    add("torch.utils.data._utils.pin_memory", loader.patch_pinning)
    add("torch.utils.data.dataloader", loader.patch_dataloader)
    add("torchdata.stateful_dataloader.stateful_dataloader", loader.patch_stateful)
    add("feedrate.load.iteration", loader.patch_pack_iterator)
    add("feedrate.load.loader", loader.patch_pack_loader)
    add("nvidia.dali.plugin.pytorch", loader.patch_dali)
    add("timm.data.loader", pipeline.patch_prefetcher)
    add("torch._utils", tracebacks.patch_utils)
    add("torch.optim.optimizer", training.patch_optimizer)
    add("torch.autograd", training.patch_autograd)
    add("torch", _patch_torch)
    for name in ("tensorflow", "jax"):
        add(name, _note_framework)
    for name in catalogue.PARTS:
        add(name, _patch_parts)
    for name in savers.SAVERS:
        add(name, savers.patch_savers)
    imports.install_finder()


def _patch_parts(module: Any) -> None:
    parts.patch_parts(module, catalogue.PARTS.get(module.__name__, []))


def _note_framework(module: Any) -> None:
    """Another framework that may train; nothing of it is changed."""
    session.facts("framework", module=module.__name__, version=str(getattr(module, "__version__", "")))


def _patch_torch(module: Any) -> None:
    training.patch_torch(module)
    savers.patch_savers(os)


def after_fork() -> None:
    """Forget what belongs to the parent."""
    for part in (stacks, draws, opens, calls, fetching, loaders, training, views):
        part.after_fork()
    device.after_fork()


def at_exit() -> None:
    """The program is over: read the last events, and ask torch what could not be asked before."""
    stacks.stop()
    training.note_alone()
    if session.torch is not None and session.role != "worker":
        device.collect()
        loaders.loaders.passes.flush()
        session.facts("torch", **describe_torch(is_over=session.role == "main"))
