# SPDX-License-Identifier: Apache-2.0
"""How far apart the entry points of JPEGs stand in an index: the words for it, its limits, how it is stored.

Any decoder of this format takes any distance. The CPU kernel gains nothing from close ones; a decoder that
gives every stretch between two of them to a thread of its own does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedrate.errors import UsageError

# Bytes of JPEG data from one entry point to the next. AUTO is the kernel's own choice (native/jpeg.h). On 250
# photographs of 109 KB, entry points take 0.54 % of the data by AUTO, 2.9 % by GPU.
AUTO, GPU = 1000, 150
# Closer than LEAST, next to every block would have one; further than MOST, each row of blocks has one anyway.
LEAST, MOST = 16, 1_000_000
# What a row of an index takes beside its entry points, about.
ROW_BYTES = 200
_WORDS = {"auto": AUTO, "gpu": GPU}
_HINT = f"say auto ({AUTO:,}), gpu ({GPU}), or a number of bytes from {LEAST} to {MOST:,}"


def parse_entries(value: str | int) -> int:
    """Return the bytes from one entry point to the next.

    Args:
        value: `auto`, `gpu`, or a number of bytes.

    Raises:
        UsageError: it is none of these, or outside of the limits.
    """
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if not isinstance(number, int) or isinstance(number, bool):
        raise UsageError(f"entries={value!r} is neither a word that is known nor a whole number", hint=_HINT)
    if number < LEAST:
        raise UsageError(
            f"entries={number} is below {LEAST}: next to every block would get an entry point", hint=_HINT
        )
    if number > MOST:
        raise UsageError(
            f"entries={number} is above {MOST:,}: every row of blocks has an entry point anyway", hint=_HINT
        )
    return number


def estimate_share(entries: int) -> float:
    """Return at most which part of its JPEGs' size an index takes for their entry points."""
    # Photographs of 109 KB, measured: 0.5 % by 1000, 1.3 % by 400, 2.9 % by 150, 6.0 % by 60, 10.5 % by 16.
    return 0.004 + min(6 / entries, 0.12)


def find_entries(settings: Mapping[str, Any]) -> int:
    """Return how far apart the settings of a pack, or the metadata of an index part, say that they are.

    What nobody could have asked for counts as not said: anybody may have written it.
    """
    said = settings.get("entries", AUTO)
    is_sound = isinstance(said, int) and not isinstance(said, bool) and LEAST <= said <= MOST
    return said if is_sound else AUTO


def dump_entries(entries: int) -> dict[str, int]:
    """Return the setting as it is stored: AUTO is not, as it was before there was a choice."""
    return {} if entries == AUTO else {"entries": entries}
