# SPDX-License-Identifier: Apache-2.0
"""The only door to the C++ kernel: typed, and everything is checked before a pointer crosses.

What the kernel does not decode goes through Pillow (pillow.py) in the same call, and is counted.
"""

from __future__ import annotations

from feedrate.kernel.binding import *  # noqa: F403
from feedrate.kernel.decoding import *  # noqa: F403
from feedrate.kernel.members import *  # noqa: F403
from feedrate.kernel.recipes import *  # noqa: F403
