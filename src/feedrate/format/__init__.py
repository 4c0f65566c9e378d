# SPDX-License-Identifier: Apache-2.0
"""What a pack is on disk: fields and their kinds, manifest, index parts, tar members, and how to open one."""
