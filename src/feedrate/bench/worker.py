# SPDX-License-Identifier: Apache-2.0
"""`python -m feedrate.bench.worker MODULE:FUNCTION`: call a function in a fresh process, JSON in, JSON out.

Arguments come on standard input. The result goes to what was standard output at the start; what the function
itself prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def main() -> None:
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, function = sys.argv[1].partition(":")
    arguments = json.load(sys.stdin)
    readings = getattr(importlib.import_module(module), function)(**arguments)
    with results:
        json.dump(readings, results)


if __name__ == "__main__":
    main()
