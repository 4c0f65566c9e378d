# SPDX-License-Identifier: Apache-2.0
"""Measure loaders against each other, on any folder of images and on data made here."""
