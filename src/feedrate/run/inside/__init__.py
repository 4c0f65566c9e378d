# SPDX-License-Identifier: Apache-2.0
"""What runs inside the user's processes under `feedrate run`: images that stay recipes, and their proof."""
