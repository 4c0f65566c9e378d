# SPDX-License-Identifier: Apache-2.0
"""What runs inside the user's processes. This folder is put on their PYTHONPATH; nothing in it may import feedrate."""
