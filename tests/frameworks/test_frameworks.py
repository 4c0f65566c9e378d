# SPDX-License-Identifier: Apache-2.0
"""Batches for TensorFlow and JAX are those of the loader."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import feedrate.jax
import feedrate.tensorflow
from feedrate import Loader, Resize
from feedrate.errors import MissingExtra, UsageError
from support.frameworks import run_with
from support.packs import write_everything, write_images

BATCHES = """
import sys
import numpy as np
import tensorflow as tf
import feedrate.tensorflow
from feedrate import Loader, Resize

fields = ("image", "mask", "label", "weight", "points", "caption", "meta", "blob", "boxes", "key", "number")
options = dict(batch_size=5, image=Resize(16), fields=fields, seed=4)
dataset = feedrate.tensorflow.dataset(sys.argv[1], **options)
assert dataset.cardinality() == 3, dataset.cardinality()
assert dataset.element_spec[0].shape == (None, 16, 16, 3)
loader = Loader(sys.argv[1], output="numpy", **options)
orders = []
for epoch in range(2):
    numbers = []
    for ours, theirs in zip(loader, dataset, strict=True):
        for name, a, b in zip(fields, ours, theirs, strict=True):
            if name in ("caption", "key"):
                assert a == [v.decode() for v in b.numpy()], name
            elif name == "blob":
                assert list(a) == b.numpy().tolist(), name
            elif name == "meta":
                assert a == [eval(v) for v in b.numpy()], name
            elif name == "boxes":
                assert [boxes.tolist() for boxes in a] == b.to_list(), name
            else:
                assert a.dtype == b.numpy().dtype and (a == b.numpy()).all(), name
        numbers += ours[-1].tolist()
    orders.append(numbers)
assert sorted(orders[0]) == sorted(orders[1]) == list(range(12))
assert orders[0] != orders[1]
"""

KEPT = """
import sys
import feedrate.tensorflow
dataset = feedrate.tensorflow.dataset(sys.argv[1], batch_size=3, shuffle=False)
kept = list(dataset)
again = list(dataset)
assert len(kept) == len(again) == 7
for (a, _), (b, _) in zip(kept, again, strict=True):
    assert (a.numpy() == b.numpy()).all()
"""

TRAIN = """
import sys
import tensorflow as tf
import feedrate.tensorflow
from feedrate import RandomResizedCrop

dataset = feedrate.tensorflow.dataset(sys.argv[1], batch_size=4, image=RandomResizedCrop(16), flip=True)
model = tf.keras.Sequential([
    tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Flatten(), tf.keras.layers.Dense(3),
])
model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(dataset, epochs=2, verbose=0)
assert len(history.history["loss"]) == 2
"""

CLUSTER = """
import json, os, sys
cluster = {"chief": ["localhost:1"], "worker": ["localhost:2"], "evaluator": ["localhost:3"]}
import tensorflow as tf
import feedrate.tensorflow
from feedrate import Loader

options = dict(batch_size=4, fields=("number",), shuffle=False)
def numbers_of(kind, source, **options):
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})
    dataset = feedrate.tensorflow.dataset(source, **options)
    numbers = [n for (batch,) in dataset for n in batch.numpy().tolist()]
    return numbers, dataset.options().experimental_distribute.auto_shard_policy

parts = [numbers_of(kind, sys.argv[1], **options) for kind in ("chief", "worker")]
assert sorted(len(numbers) for numbers, _ in parts) == [10, 11], parts
assert sorted(parts[0][0] + parts[1][0]) == list(range(21)), parts
# TensorFlow must not divide once more what the loader has divided.
assert {policy for _, policy in parts} == {tf.data.experimental.AutoShardPolicy.OFF}
with Loader(sys.argv[1], output="numpy", **options) as loader:
    assert numbers_of("worker", loader) == parts[1]
assert numbers_of("evaluator", sys.argv[1], **options)[0] == list(range(21))
assert numbers_of("worker", sys.argv[1], rank=0, world_size=1, **options)[0] == list(range(21))
"""

JAX = """
import sys
import jax
import numpy as np
import feedrate.jax
from feedrate import Loader, Resize

options = dict(batch_size=4, image=Resize(16), fields=("image", "label", "key"), seed=2)
kept = list(feedrate.jax.batches(sys.argv[1], ahead=3, **options))
with Loader(sys.argv[1], output="numpy", **options) as loader:
    for (images, labels, keys), ours in zip(kept, loader, strict=True):
        assert isinstance(images, jax.Array) and images.dtype == np.uint8 and images.shape[1:] == (16, 16, 3)
        assert (np.asarray(images) == ours[0]).all()
        assert np.asarray(labels).tolist() == ours[1].tolist()
        assert keys == ours[2]
    # The next epoch, on a device that was named, left early.
    first = next(iter(feedrate.jax.batches(loader, device=jax.devices()[0])))
    assert first[2] != kept[0][2]
step = jax.jit(lambda images: images.astype("float32").mean())
assert 0 < float(step(kept[0][0])) < 255
"""


@pytest.mark.slow
def test_dataset_of_tensorflow_gives_the_batches_of_the_loader(tmp_path: Path) -> None:
    run_with("tensorflow", BATCHES, write_everything(tmp_path / "pack"))


@pytest.mark.slow
def test_tensors_that_are_kept_stay_what_they_were(tmp_path: Path) -> None:
    run_with("tensorflow", KEPT, write_images(tmp_path / "pack"))


@pytest.mark.slow
def test_keras_trains_on_the_dataset(tmp_path: Path) -> None:
    run_with("tensorflow", TRAIN, write_images(tmp_path / "pack", side=None))


@pytest.mark.slow
def test_each_worker_of_a_tensorflow_cluster_gets_its_part_once(tmp_path: Path) -> None:
    run_with("tensorflow", CLUSTER, write_images(tmp_path / "pack", count=21))


@pytest.mark.slow
def test_jax_arrays_are_the_batches_of_the_loader(tmp_path: Path) -> None:
    run_with("jax", JAX, write_images(tmp_path / "pack"))


@pytest.mark.parametrize(
    ("module", "make"), [("tensorflow", feedrate.tensorflow.dataset), ("jax", feedrate.jax.batches)]
)
def test_missing_framework_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, make: object
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=f"feedrate.{module} needs") as caught:
        make(write_images(tmp_path / "pack"))  # type: ignore[operator]
    assert caught.value.hint == f"pip install 'feedrate[{module}]'"


def test_loader_for_jax_must_give_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(process_count=lambda: 1))
    with (
        Loader(write_images(tmp_path / "pack"), output="torch") as loader,
        pytest.raises(UsageError, match="gives torch tensors"),
    ):
        feedrate.jax.batches(loader)
    with (
        Loader(write_images(tmp_path / "pack"), output="numpy") as loader,
        pytest.raises(UsageError, match="the loader is made already; give it image itself"),
    ):
        feedrate.jax.batches(loader, image=Resize(8))
