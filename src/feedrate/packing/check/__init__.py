# SPDX-License-Identifier: Apache-2.0
"""What a pack holds: verify, unpack, quality, describe, warm."""
