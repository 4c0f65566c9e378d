# SPDX-License-Identifier: Apache-2.0
"""What is noted of the user's processes: fetches, samples, training, loaders, stacks."""
