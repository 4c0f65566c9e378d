# SPDX-License-Identifier: Apache-2.0
"""The sample cache: its store, the table, what processes share, what stays for the next job."""
