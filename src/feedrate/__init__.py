# SPDX-License-Identifier: Apache-2.0
"""feedrate feeds the GPU: pack a dataset once, then read it at the machine's speed."""
