# SPDX-License-Identifier: Apache-2.0
"""What is needed later, loaded while there is work outside of Python."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Sequence


def load_meanwhile(names: Sequence[str]) -> None:
    """Load modules in a thread: who is about to read folders need not wait for them later."""

    def load() -> None:
        for name in names:
            # Who needs it says so, in words.
            with contextlib.suppress(ImportError):
                importlib.import_module(name)

    threading.Thread(target=load).start()
