# SPDX-License-Identifier: Apache-2.0
"""The only place that draws: text, JSON documents, progress. Sees `results` and `units`, nothing else."""
