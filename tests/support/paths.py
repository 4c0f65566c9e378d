# SPDX-License-Identifier: Apache-2.0
"""Where things are, however deep the test stands that asks."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
DATA = TESTS / "data"
