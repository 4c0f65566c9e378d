# SPDX-License-Identifier: Apache-2.0
"""Which steps, or in a worker which fetches, are probed."""

from __future__ import annotations

from . import clock

# Of each eight steps (in a worker: fetches) the last ones are left alone, so that the cost of probing shows;
# once much was seen of short steps, all but one are, so that it hardly adds up.
_BLOCK = 8
_MANY_OF_BLOCK = 6
_STRIDE = 3  # the one is another in each block: a loop may do every fourth step what it does in no other
_SEEN_ENOUGH = 128
_SHORT_NS = 50_000_000


class Turns:
    """Asked for each step in turn."""

    def __init__(self) -> None:
        self.are_short = False  # and much was seen of them
        self._since_ns = 0

    def is_probed(self, number: int) -> bool:
        if number % _SEEN_ENOUGH == 0:
            now = clock.wall_ns()
            self.are_short = number > 0 and now - self._since_ns < _SHORT_NS * _SEEN_ENOUGH
            self._since_ns = now
        block, place = divmod(number, _BLOCK)
        return place == block * _STRIDE % _BLOCK if self.are_short else place < _MANY_OF_BLOCK
