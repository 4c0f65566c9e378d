# SPDX-License-Identifier: Apache-2.0
"""Files and folders of this machine: atomic write, tree walk, permissions. The one home of each."""
