# SPDX-License-Identifier: Apache-2.0
"""What `scripts/reference` records: data, commands, packs, batches, the doctor's recorded runs."""
