# SPDX-License-Identifier: Apache-2.0
"""The standard models that feedrate knows by name: what `speedtest` trains and `plan` reckons with."""

from __future__ import annotations

from feedrate.errors import UsageError

KNOWN_MODELS = ("resnet18", "resnet50", "densenet121", "vit_b_16")


def check_model(name: str) -> str:
    """Return the name of a known model.

    Raises:
        UsageError: there is none of that name.
    """
    if name in KNOWN_MODELS:
        return name
    import difflib

    # People write ResNet-50 and vit-b-16.
    plain = {known.replace("_", ""): known for known in KNOWN_MODELS}
    typed = "".join(c for c in name.lower() if c.isalnum())
    near = difflib.get_close_matches(typed, plain, n=1)
    hint = f"did you mean '{plain[near[0]]}'? " if near else ""
    raise UsageError(f"there is no model '{name}'", hint=f"{hint}known: {', '.join(KNOWN_MODELS)}")
