# SPDX-License-Identifier: Apache-2.0
"""timm in small: see ../README.md."""
