# SPDX-License-Identifier: Apache-2.0
"""Copies on scratch: bring a source there, say what lies there, clear it away."""
