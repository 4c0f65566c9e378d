# SPDX-License-Identifier: Apache-2.0
"""Whether JPEGs that are opened at this moment stay recipes: only while a loader that was proved fetches."""

from __future__ import annotations

is_on = False
is_proof = False  # in a child that makes samples for a proof: nothing is proved there
