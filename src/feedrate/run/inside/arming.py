# SPDX-License-Identifier: Apache-2.0
"""Makes this process ready for recipes: Pillow and torchvision are patched once the script imported them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedrate.run.inside import entries, images, last_steps, selftest

_JPEG = "PIL.JpegImagePlugin"


def arm(settings: dict[str, Any], watch: Any, note: Callable[[dict[str, Any]], None]) -> str:
    """Wait for Pillow and torchvision; return why they have to be left alone, as far as that is known now."""
    cache = entries.open_cache(settings.get("cache") or None, lambda why: note({"kind": "cache", "why": why}))
    problems: list[str] = []

    def begin_images(_: Any) -> None:
        problem = images.install(selftest.run(), cache)
        if problem:
            problems.append(f"Pillow is left alone: {problem}")
            note({"kind": "bare", "why": problems[-1]})
        else:
            note({"kind": "patched", "names": list(images.patches)})

    def begin_tail(module: Any) -> None:
        name = last_steps.install(module)
        if name:
            note({"kind": "patched", "names": [name]})

    watch.add(_JPEG, begin_images)
    for name in last_steps.MODULES:
        watch.add(name, begin_tail)
    return "".join(problems[:1])
