# SPDX-License-Identifier: Apache-2.0
"""Whether JPEGs that this thread opens now stay recipes: only while it fetches for a proved loader.

`is_on` is read and set as an attribute of this module, and is each thread's own.
"""

from __future__ import annotations

import sys
import threading
import types

_mine = threading.local()
is_on: bool
is_proof = False  # in a child that makes samples for a proof: nothing is proved there


class _Switch(types.ModuleType):
    @property
    def is_on(self) -> bool:
        return getattr(_mine, "is_on", False)

    @is_on.setter
    def is_on(self, is_on: bool) -> None:
        _mine.is_on = is_on


sys.modules[__name__].__class__ = _Switch
