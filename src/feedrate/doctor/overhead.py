# SPDX-License-Identifier: Apache-2.0
"""What watching costs the watched run."""

from __future__ import annotations

import math
from statistics import variance

from feedrate.doctor.timeline import Loop
from feedrate.results.doctor import Overhead
from feedrate.stats import median


def measure_overhead(loop: Loop) -> Overhead | None:
    """Compare probed steps with those left alone; medians, since a checkpoint may fall on either."""
    usual = [step for step in loop.steps if not step.is_first]
    probed = [step.own_s - step.wait_s for step in usual if step.is_probed]
    bare = [step.own_s - step.wait_s for step in usual if not step.is_probed]
    if len(probed) < 5 or len(bare) < 5:
        return None
    cost = median(probed) - median(bare)
    # A difference within twice its error is none that can be seen.
    error = 1.25 * math.sqrt(variance(probed) / len(probed) + variance(bare) / len(bare))
    cost = cost if cost > 2 * error else 0.0
    step_s = loop.seconds / len(loop.steps)
    return Overhead(cost, cost / step_s, len(probed), len(bare))
