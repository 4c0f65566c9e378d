# SPDX-License-Identifier: Apache-2.0
"""What the user may ask of the doctor. Apart from the results, so that `--help` need not load them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from feedrate.errors import NotFound, UsageError

WARMUP_STEPS = 10
DEFAULT_STEPS = WARMUP_STEPS + 100
LEAST_STEPS = 10  # of fewer, one odd step would be the verdict


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Of one examination.

    Attributes:
        steps: training steps to see before the experiments, warm-up included.
        passive: watch the whole run, change nothing, make no experiments.
        seconds: the longest that the steps may take, once 20 of them were seen.
        ends_standstill: end a command that does nothing for so long, also before.
        scratch: a folder on a local disk, to predict what staging the data there would give.
    """

    steps: int = DEFAULT_STEPS
    passive: bool = False
    seconds: float = 45.0
    scratch: Path | None = None
    ends_standstill: bool = False

    def __post_init__(self) -> None:
        if self.steps < LEAST_STEPS:
            raise UsageError(f"--steps must be at least {LEAST_STEPS}, got {self.steps}")
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise UsageError(f"--seconds must be above 0, got {self.seconds:g}")
        if self.scratch is not None:
            if not self.scratch.is_dir():
                raise NotFound(f"no folder at {self.scratch} (--scratch)")
            if not os.access(self.scratch, os.W_OK | os.X_OK):
                raise UsageError(f"cannot write to {self.scratch} (--scratch)")

    @property
    def warmup_steps(self) -> int:
        """Ten, or a third of the steps where the user asked for few."""
        return min(WARMUP_STEPS, self.steps // 3)
