# SPDX-License-Identifier: Apache-2.0
"""This folder is on the PYTHONPATH of the command: it holds what begins `feedrate run` there."""
