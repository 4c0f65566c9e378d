# SPDX-License-Identifier: Apache-2.0
"""Facts about the machine; no opinions, no printing."""
