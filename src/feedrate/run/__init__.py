# SPDX-License-Identifier: Apache-2.0
"""Runs a command as it is, with images that decode only the pixels that it looks at."""
