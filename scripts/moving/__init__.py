# SPDX-License-Identifier: Apache-2.0
"""What `scripts/move` is made of."""
