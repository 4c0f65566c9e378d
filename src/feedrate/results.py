# SPDX-License-Identifier: Apache-2.0
"""What passes between the layers: frozen dataclasses that commands return and `report` draws."""

from __future__ import annotations
