# SPDX-License-Identifier: Apache-2.0
"""Whether JPEGs that this thread opens now stay recipes: only while it fetches for a proved loader."""

from __future__ import annotations

import threading


class _Here(threading.local):
    is_on: bool = False


here = _Here()  # each thread's own
is_proof = False  # in a child that makes samples for a proof: nothing is proved there
