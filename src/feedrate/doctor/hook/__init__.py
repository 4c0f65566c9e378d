# SPDX-License-Identifier: Apache-2.0
"""What runs inside the user's processes: this folder is on their PYTHONPATH. It never imports feedrate."""
