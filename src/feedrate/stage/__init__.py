# SPDX-License-Identifier: Apache-2.0
"""Copies on scratch: bring a source there, say what lies there, clear it away. Functions return results and
print nothing."""

import sys
import types
from typing import Any

from feedrate.stage.nodes import stage_on_nodes
from feedrate.stage.scratch import collect_garbage, list_everywhere, list_scratch, remove_copies
from feedrate.stage.staging import stage

__all__ = ["collect_garbage", "list_everywhere", "list_scratch", "remove_copies", "stage", "stage_on_nodes"]


class _Callable(types.ModuleType):
    """`feedrate.stage` is this package, and for users a function: `feedrate.stage(...)`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return stage(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
