# SPDX-License-Identifier: Apache-2.0
"""The doctor's hook: standard library only, Python 3.8 and later, silent, harmless when anything fails."""
