# SPDX-License-Identifier: Apache-2.0
"""Run the user's command: launch it, supervise it, sample the machine meanwhile, leave nothing behind."""
