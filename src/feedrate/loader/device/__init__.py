# SPDX-License-Identifier: Apache-2.0
"""Batches on their way to a GPU."""
