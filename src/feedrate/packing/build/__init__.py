# SPDX-License-Identifier: Apache-2.0
"""From a source to a pack: listing, plan, shards, engines, pack.json."""
