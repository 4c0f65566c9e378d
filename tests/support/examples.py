# SPDX-License-Identifier: Apache-2.0
"""How many examples a property is tried on: a few in `make test`, all of them in `make test-slow`."""

from __future__ import annotations

from hypothesis import settings

FEWER = 5  # times


def examples(count: int) -> int:
    """Return `count` under the profile of the slow tier, else a fifth of it."""
    return count if settings.get_current_profile_name() == "thorough" else max(5, count // FEWER)
