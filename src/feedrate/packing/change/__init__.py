# SPDX-License-Identifier: Apache-2.0
"""Packs that grow: append, merge, split, columns, entry points."""
