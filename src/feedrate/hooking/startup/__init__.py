# SPDX-License-Identifier: Apache-2.0
"""This folder is on the PYTHONPATH of the command: its Pythons begin with it. It never imports feedrate."""
