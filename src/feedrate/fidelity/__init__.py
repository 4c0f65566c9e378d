# SPDX-License-Identifier: Apache-2.0
"""What the loader would feed, against Pillow, on a sample of the user's own images."""
