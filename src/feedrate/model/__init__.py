# SPDX-License-Identifier: Apache-2.0
"""The one cost model: rates of a training loop's parts in, times and speed-ups out. Pure functions."""
