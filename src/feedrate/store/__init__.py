# SPDX-License-Identifier: Apache-2.0
"""Where bytes are and how they come near: places, scratch copies, leases, remote ranges, the cache."""
