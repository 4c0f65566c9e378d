# SPDX-License-Identifier: Apache-2.0
"""The order of findings: by weight, except that a cause stands before all that it explains."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def rank(
    weights: Mapping[str, float],
    explains: Mapping[str, Collection[str]],
    *,
    outside: Collection[str] = (),
    after: Mapping[str, Collection[str]] | None = None,
) -> list[str]:
    """Return the codes of `weights` in order; of equal ones, the one that `weights` names first.

    Args:
        explains: what each code is the reason of; no circles. It weighs as much as the heaviest of them.
        outside: codes that weigh no more for what they explain.
        after: further codes that one has to stand behind.
    """

    def pull(code: str) -> float:
        own = weights[code]
        return own if code in outside else max([own, *(pull(other) for other in explains.get(code, ()))])

    before = {code: {reason for reason in weights if code in explains.get(reason, ())} for code in weights}
    for code, others in (after or {}).items():
        before.setdefault(code, set()).update(others)
    left, ordered = list(weights), []
    while left:
        ready = [code for code in left if before[code].isdisjoint(left)]
        ordered.append(max(ready, key=pull))
        left.remove(ordered[-1])
    return ordered
