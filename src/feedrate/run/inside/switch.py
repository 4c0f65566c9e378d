# SPDX-License-Identifier: Apache-2.0
"""Whether JPEGs that are opened at this moment stay recipes: only while a loader that was proved fetches."""

from __future__ import annotations

is_on = False
