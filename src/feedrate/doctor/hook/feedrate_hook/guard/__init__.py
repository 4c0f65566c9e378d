# SPDX-License-Identifier: Apache-2.0
"""Holds back what a run would write once it is spoilt."""
