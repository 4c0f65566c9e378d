# SPDX-License-Identifier: Apache-2.0
"""What runs inside the user's processes. The folder is put on their PYTHONPATH; it never imports feedrate."""
