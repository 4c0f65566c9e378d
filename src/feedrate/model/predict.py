# SPDX-License-Identifier: Apache-2.0
"""Speed-ups with intervals: a changed pipeline against the present one, and against what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from feedrate.model.pipeline import Pipeline

# Half of an interval, as a factor: what predictions were seen to err by (benchmarks/README.md), whether they
# were modelled, counted, or tried for a few seconds. It keeps high / low below 1.5.
WIDTH = 1.224


@dataclass(frozen=True, slots=True)
class Prediction:
    """A factor on samples per second, with bounds; `next_limit` as Pipeline.slowest says it."""

    speedup: float
    low: float
    high: float
    next_limit: str


def predict_change(now: Pipeline, then: Pipeline, measured_s: float) -> Prediction:
    """Predict what changing `now` into `then` gives, where a step of `now` was measured to take `measured_s`.

    The model is wrong by some factor today and by a like factor afterwards, so that their ratio is right; but
    the more the change takes away, the more the step is what was measured by itself: the absolute value
    then counts up to a third.
    """
    if then == now:
        return Prediction(1.0, 1.0, 1.0, then.slowest)
    ratio, error = now.gain_of(then), measured_s / now.like(then).step_s
    weight = min(abs(math.log(ratio)) / math.log(2), 1.0) / 3
    return around(ratio * error**weight, then.slowest)


def around(speedup: float, next_limit: str = "") -> Prediction:
    """Return an interval around a speed-up, narrower near 1: where little changes, little can err."""
    # A remedy that takes nothing away cannot lose more than noise does.
    change = abs(math.log(max(speedup, 1e-6)))
    half = math.exp(min(math.log(WIDTH), 0.03 + change))
    return Prediction(speedup, speedup / half, speedup * half, next_limit)


def without(share: float, *, kept: float = 0.0) -> float:
    """Return the speed-up from leaving out a share of the time, of which `kept` stays."""
    return 1.0 / max(1.0 - share * (1.0 - kept), 1e-3)
