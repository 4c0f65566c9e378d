# SPDX-License-Identifier: Apache-2.0
"""What the loaders for other frameworks have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from feedrate.errors import UsageError
from feedrate.format.pack import Pack
from feedrate.loader.loader import Loader
from feedrate.loader.ranks import Rank

_NAMES = {
    "tf.distribute": (
        "feedrate.tensorflow",
        "map the dataset: .map(function); TensorFlow places its tensors",
    ),
    "jax": ("feedrate.jax", "do it to the batch, in your jitted function; device= is jax.device_put's"),
}


def open_for(
    framework: str,
    rank: Rank | None,
    pack: str | os.PathLike[str] | Pack | Loader,
    options: Mapping[str, Any],
) -> Loader:
    """Return a loader of numpy arrays: a new one, or that of the user, who then has given it its options.

    Args:
        rank: (rank, world size) as the framework knows them; None: it knows of one process, and the loader
            looks for others itself.

    Raises:
        UsageError: the loader gives torch tensors, is asked to work on them, or took itself for another rank.
    """
    if not isinstance(pack, Loader):
        ours, instead = _NAMES[framework]
        for name in ("device", "dtype", "normalize", "on_device"):
            if options.get(name) is not None:
                raise UsageError(f"{name}= works on torch tensors, and {ours} gives none", hint=instead)
        has_rank = {"rank", "world_size"} & options.keys()
        known = {} if rank is None or has_rank else {"rank": rank[0], "world_size": rank[1]}
        return Loader(pack, **{**known, **options, "output": "numpy"})
    if options:
        raise UsageError(f"the loader is made already; give it {', '.join(options)} itself")
    if pack.output != "numpy":
        raise UsageError('this loader gives torch tensors; make it with output="numpy"')
    pack.ranks.adopt(rank, framework)
    return pack
