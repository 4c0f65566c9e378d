# SPDX-License-Identifier: Apache-2.0
"""torchvision in small: see ../README.md."""
