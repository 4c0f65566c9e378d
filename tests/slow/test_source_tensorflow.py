# SPDX-License-Identifier: Apache-2.0
"""TFRecord files that real TensorFlow wrote.

It runs in an environment of its own, whose Python FEEDRATE_TENSORFLOW_PYTHON names.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from feedrate import PackOptions, pack
from support.sources import jpeg, read_pack

pytestmark = pytest.mark.slow

WRITE = """
import sys
import tensorflow as tf

folder, kind = sys.argv[1:]
def feature(**values):
    return tf.train.Feature(**values)
with tf.io.TFRecordWriter(f"{folder}/d.tfrecord", kind) as writer:
    for n in range(6):
        image = open(f"{folder}/{n}.jpg", "rb").read()
        features = {
            "image/encoded": feature(bytes_list=tf.train.BytesList(value=[image])),
            "image/class/label": feature(int64_list=tf.train.Int64List(value=[n - 3])),
            "image/class/text": feature(bytes_list=tf.train.BytesList(value=["\\u017e".encode()])),
            "image/object/bbox/xmin": feature(float_list=tf.train.FloatList(value=[0.25] * (n % 3))),
            "large": feature(int64_list=tf.train.Int64List(value=[2**62 + n, -(2**63)])),
            "empty": feature(bytes_list=tf.train.BytesList(value=[])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        writer.write(example.SerializeToString())
"""


@pytest.mark.parametrize("kind", ["", "GZIP"])
def test_what_tensorflow_wrote_is_packed_whole(tmp_path: Path, kind: str) -> None:
    python = os.environ.get("FEEDRATE_TENSORFLOW_PYTHON")
    if not python:
        pytest.skip("FEEDRATE_TENSORFLOW_PYTHON names no Python with TensorFlow")
    for n in range(6):
        (tmp_path / f"{n}.jpg").write_bytes(jpeg(n))
    environment = {"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([python, "-c", WRITE, str(tmp_path), kind], check=True, env=environment)
    result = pack(tmp_path / "d.tfrecord", tmp_path / "p", PackOptions(workers=1))
    assert (result.rejected, result.samples) == ((), 6)
    for n, sample in enumerate(read_pack(tmp_path / "p").values()):
        assert sample == {
            "image": jpeg(n), "label": n - 3, "image_class_text": "ž",
            "image_object_bbox_xmin": [0.25] * (n % 3), "large": [2**62 + n, -(2**63)],
        }  # fmt: skip
