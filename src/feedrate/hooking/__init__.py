# SPDX-License-Identifier: Apache-2.0
"""Starts a command of the user's with a hook of ours inside each of its Python processes."""
