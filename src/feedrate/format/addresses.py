# SPDX-License-Identifier: Apache-2.0
"""Which addresses may stand in pack.json: plain ones, that hold no secret."""

from __future__ import annotations

import re

# No chains (zip://...::https://...), no control characters; `where` ends in no slash.
_ADDRESS = re.compile(
    r"[a-zA-Z][a-zA-Z0-9+.-]*://(?P<who>[^/@]*@)?(?!.*::)(?P<where>[^/\x00-\x20@][^\x00-\x1f]*(?<!/))"
)


def find_address_problem(address: str) -> str | None:
    """Return why an address must not stand in pack.json, in words that repeat no secret; None: it may."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return "is not of the form SCHEME://PLACE/FOLDER"
    _, _, port = match["where"].partition("/")[0].partition(":")
    if ":" in (match["who"] or "") or not (port.isdecimal() or not port):
        return "has a password in it"
    if "?" in match["where"] or "#" in match["where"]:
        return "has a query behind '?', as signed addresses have"
    if any(part in (".", "..") for part in match["where"].split("/")):
        return "has '..' in it"
    return None
