# SPDX-License-Identifier: Apache-2.0
"""From a pack to batches: order, random draws, image operations, the pipeline, Loader and Dataset."""
