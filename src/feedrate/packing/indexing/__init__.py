# SPDX-License-Identifier: Apache-2.0
"""An index of files that stay where they are: on this machine, or behind an address."""
