# SPDX-License-Identifier: Apache-2.0
"""What passes between the layers: frozen dataclasses that commands return and `report` draws.

A module for each kind; import from those, so that a command loads only what it returns.
"""
