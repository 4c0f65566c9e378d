# SPDX-License-Identifier: Apache-2.0
"""Bytes that are somewhere else: addresses, connections, ranges, retry, the copier, packs read from there."""
