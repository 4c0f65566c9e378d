# SPDX-License-Identifier: Apache-2.0
"""Run a training command, find out where its time goes, and predict what each remedy would give."""
