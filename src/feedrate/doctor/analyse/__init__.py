# SPDX-License-Identifier: Apache-2.0
"""From a run folder to numbers: records, timeline, machine, samples, metrics."""
