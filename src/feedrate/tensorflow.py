# SPDX-License-Identifier: Apache-2.0
"""Batches of a loader as a tf.data.Dataset. TensorFlow is imported when it is asked for, not before."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from feedrate.errors import MissingExtra, UsageError
from feedrate.format.fields import Kind
from feedrate.format.pack import Pack
from feedrate.loader.loader import Loader, open_for
from feedrate.loader.options import Wanted
from feedrate.loader.ranks import ALONE, Rank

if TYPE_CHECKING:
    import tensorflow as tf

PREFETCH = 2


def dataset(pack: str | os.PathLike[str] | Pack | Loader, **options: Any) -> tf.data.Dataset:
    """Return a tf.data.Dataset of batches; each pass over it is the loader's next epoch.

    A batch is a tuple in the order of `fields`: images as uint8 N,H,W,C (uint16 where `depth` says so),
    numbers and arrays as they are, keys, texts, bytes and JSON (its text) as strings, boxes as a ragged
    tensor.

    Args:
        pack: the pack's folder; or a `Loader` with `output="numpy"`, whose state you want to save.
        options: what `Loader` takes. Where the strategy in scope, or $TF_CONFIG, names several workers and no
            `rank` is given, each worker gets its part, and TensorFlow's own sharding is off.

    Raises:
        MissingExtra: TensorFlow is not installed.
        UsageError: a field has no tensors: arrays that differ in shape; or the loader gives torch tensors.
    """
    tf = _import_tensorflow()
    loader = open_for("tf.distribute", _find_rank(tf), pack, options)
    if loader.has_functions:
        raise UsageError(
            "transform and collate decide what a batch is, so its tensors are not known",
            hint="map the dataset instead: feedrate.tensorflow.dataset(pack).map(function)",
        )
    columns = [_column(tf, wanted) for wanted in loader.wanted]

    def batches() -> Iterator[tuple[Any, ...]]:
        for batch in loader:
            yield tuple(convert(values) for (_, convert), values in zip(columns, batch, strict=True))

    made = tf.data.Dataset.from_generator(batches, output_signature=tuple(spec for spec, _ in columns))
    if loader is not pack and options.get("on_bad_sample", "raise") == "raise":
        # Nobody can have loaded a state that leaves only the rest of an epoch, or skip a whole batch.
        made = made.apply(tf.data.experimental.assert_cardinality(len(loader)))
    if loader.ranks.look() != ALONE:
        # Otherwise each worker would get its part of its part.
        policy = tf.data.Options()
        policy.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        made = made.with_options(policy)
    return made.prefetch(PREFETCH)


def _find_rank(tf: Any) -> Rank | None:
    """Return which worker this process is, as its strategy or $TF_CONFIG says; None: there are no others."""
    strategy = tf.distribute.get_strategy()
    resolver = strategy.cluster_resolver
    if resolver is None:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    elif not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return None  # with TPUs or parameter servers, one process feeds all workers
    jobs = resolver.cluster_spec().as_dict()
    first = len(jobs.get("chief", ()))
    world = first + len(jobs.get("worker", ()))
    if world < 2 or "ps" in jobs or resolver.task_type not in ("chief", "worker"):
        return None
    return resolver.task_id + (first if resolver.task_type == "worker" else 0), world


def _column(tf: Any, wanted: Wanted) -> tuple[Any, Callable[[Any], Any]]:
    """Return the signature of a field, and what makes tensors of its values."""
    field = wanted.field
    if wanted.name == "number":
        return tf.TensorSpec((None,), tf.int64), np.asarray
    if field is None or field.kind is Kind.TEXT:
        return tf.TensorSpec((None,), tf.string), _encode
    if field.has_pixels:
        assert wanted.out_size is not None
        channels = (wanted.channels,) if field.kind is Kind.IMAGE else ()
        return tf.TensorSpec((None, *wanted.out_size, *channels), tf.as_dtype(wanted.dtype)), np.asarray
    if field.kind is Kind.NUMBER:
        return tf.TensorSpec((None,), tf.as_dtype(field.dtype)), np.asarray
    if field.kind is Kind.BYTES:
        return tf.TensorSpec((None,), tf.string), list
    if field.kind is Kind.JSON:
        return tf.TensorSpec((None,), tf.string), lambda values: [json.dumps(value) for value in values]
    if field.kind is Kind.BOXES:
        spec = tf.RaggedTensorSpec((None, None, None), tf.float32, ragged_rank=1)
        return spec, lambda values: _stack_rows(tf, values)
    if field.shape is None or field.dtype is None:
        raise UsageError(
            f"arrays of field '{field.name}' differ in shape or type, so they are no tensor",
            hint="leave the field out: fields=('image', 'label')",
        )
    return tf.TensorSpec((None, *field.shape), tf.as_dtype(np.dtype(field.dtype).newbyteorder("="))), _native


def _encode(values: list[str]) -> list[bytes]:
    return [value.encode("utf-8", "surrogateescape") for value in values]


def _native(values: Any) -> Any:
    array = np.asarray(values)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _stack_rows(tf: Any, values: list[Any]) -> Any:
    return tf.RaggedTensor.from_row_lengths(np.concatenate(values), [len(rows) for rows in values])


def _import_tensorflow() -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingExtra(
            f"feedrate.tensorflow needs TensorFlow, which cannot be imported ({error})",
            hint="pip install 'feedrate[tensorflow]'",
        ) from error
    return tf
