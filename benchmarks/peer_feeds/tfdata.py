# SPDX-License-Identifier: Apache-2.0
"""tf.data: files, decode_and_crop_jpeg (decodes only the crop), an antialiased resize, in threads."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from feedrate.lab.child import Readings
from peer_feeds.task import RATIO, SCALE, TRIES, Stream, Task, drain


def draw_window(data: Any) -> Any:
    """Return top, left, height, width of a random crop by RandomResizedCrop's rule.

    tf.image.sample_distorted_bounding_box would be shorter; it draws smaller crops, which is less work.
    """
    height, width = tf.unstack(tf.cast(tf.io.extract_jpeg_shape(data)[:2], tf.float32))
    area = height * width * tf.random.uniform([TRIES], *SCALE)
    ratio = tf.exp(tf.random.uniform([TRIES], *map(math.log, RATIO)))
    # What fits always stands last.
    last_h = tf.minimum(height, tf.round(width / RATIO[0]))
    last_w = tf.minimum(width, tf.round(height * RATIO[1]))
    heights = tf.concat([tf.round(tf.sqrt(area / ratio)), [last_h]], 0)
    widths = tf.concat([tf.round(tf.sqrt(area * ratio)), [last_w]], 0)
    chosen = tf.argmax(tf.logical_and(heights <= height, widths <= width))
    h, w = heights[chosen], widths[chosen]
    top = tf.floor(tf.random.uniform([]) * (height - h + 1))
    left = tf.floor(tf.random.uniform([]) * (width - w + 1))
    return tf.cast(tf.stack([top, left, h, w]), tf.int32)


def load(path: Any, label: Any, side: int) -> Any:
    data = tf.io.read_file(path)
    image = tf.io.decode_and_crop_jpeg(data, draw_window(data), channels=3, dct_method="INTEGER_ACCURATE")
    image = tf.image.resize(image, [side, side], method="bilinear", antialias=True)
    image = tf.image.random_flip_left_right(image)
    return tf.cast(tf.round(image), tf.uint8), label


def run(task: dict[str, Any], epochs: int) -> Readings:
    asked = Task(**task)
    samples = asked.list_samples()
    tf.config.threading.set_intra_op_parallelism_threads(1)  # the images are the parallelism

    def make() -> Stream:
        paths, labels = map(list, zip(*samples, strict=True))
        dataset = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths)).repeat()
        dataset = dataset.map(
            lambda path, label: load(path, label, asked.side),
            num_parallel_calls=asked.threads,
            deterministic=False,
        )
        options = tf.data.Options()
        options.autotune.enabled = False  # the number of threads is given
        dataset = dataset.batch(asked.batch_size).prefetch(2).with_options(options)
        return Stream(dataset.as_numpy_iterator(), len(samples))

    return drain(make, epochs)
