# SPDX-License-Identifier: Apache-2.0
"""Imported by each Python process at start, through PYTHONPATH: begins the hooks that were asked for, then
goes on to the sitecustomize that would have been found without us. Any Python may read it, also Python 2: no
functions."""

import os
import sys

# A variable that is set to the folder of a run: the module whose begin() is called.
_hooks = {"FEEDRATE_DOCTOR": "feedrate_hook.start", "FEEDRATE_RUN": "feedrate_run"}

if sys.version_info >= (3, 8):  # noqa: UP036
    for _variable in _hooks:
        try:
            if os.environ.get(_variable):
                import importlib

                importlib.import_module(_hooks[_variable]).begin()
        except Exception:
            pass

try:
    from importlib import machinery, util

    _here = os.path.dirname(os.path.abspath(__file__))
    _others = [p for p in sys.path if os.path.abspath(p or ".") != _here]
    _spec = machinery.PathFinder.find_spec("sitecustomize", _others)
except Exception:
    _spec = None
if _spec is not None and _spec.loader is not None:
    # In our place in sys.modules, and with its errors left as they are: site reports them as it always does.
    _module = util.module_from_spec(_spec)
    sys.modules["sitecustomize"] = _module
    _spec.loader.exec_module(_module)
