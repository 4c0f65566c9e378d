# SPDX-License-Identifier: Apache-2.0
"""Other loaders at the same task, one file each, as their documentation has it. See benchmarks/peers.py.

They run in environments that hold the peer and not feedrate: nothing here may need more than the standard
library, the peer itself, and the parts of `feedrate.bench` that have no dependencies.
"""
