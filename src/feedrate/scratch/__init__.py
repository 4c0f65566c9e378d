# SPDX-License-Identifier: Apache-2.0
"""Copies on scratch: folders, markers, leases, staging, live copies, eviction, listings."""
