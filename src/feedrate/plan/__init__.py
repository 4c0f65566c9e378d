# SPDX-License-Identifier: Apache-2.0
"""`feedrate plan` and `feedrate estimate`: a dataset and a machine in, ways to train out."""
