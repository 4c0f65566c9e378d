# SPDX-License-Identifier: Apache-2.0
"""From numbers to what is said: causes, remedies, the diagnosis."""
