# SPDX-License-Identifier: Apache-2.0
"""Makes this process ready for recipes: Pillow is patched once the script imported them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedrate.run.inside import images, selftest

_JPEG = "PIL.JpegImagePlugin"


def arm(settings: dict[str, Any], watch: Any, note: Callable[[dict[str, Any]], None]) -> str:
    """Wait for Pillow; return why it has to be left alone, as far as that is known now."""
    del settings
    problems: list[str] = []

    def begin_images(_: Any) -> None:
        problem = images.install(selftest.run())
        if problem:
            problems.append(f"Pillow is left alone: {problem}")
            note({"kind": "bare", "why": problems[-1]})
        else:
            note({"kind": "patched", "names": list(images.patches)})

    watch.add(_JPEG, begin_images)
    return "".join(problems[:1])
