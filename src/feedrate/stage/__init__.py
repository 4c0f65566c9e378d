# SPDX-License-Identifier: Apache-2.0
"""Copies on scratch: bring a source there. The functions return results and print nothing."""

import sys
import types
from typing import Any

from feedrate.stage.nodes import stage_on_nodes
from feedrate.stage.staging import stage

__all__ = ["stage", "stage_on_nodes"]


class _Callable(types.ModuleType):
    """`feedrate.stage` is this package, and for users a function: `feedrate.stage(...)`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return stage(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
