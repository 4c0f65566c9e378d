# SPDX-License-Identifier: Apache-2.0
"""What a dataset holds that somebody arrives with: folders, tables, archives, record files."""
