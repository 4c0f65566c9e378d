# SPDX-License-Identifier: Apache-2.0
"""Packs that grow: append, split, columns, entry points."""
