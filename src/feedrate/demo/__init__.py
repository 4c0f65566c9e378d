# SPDX-License-Identifier: Apache-2.0
"""`feedrate demo`: make images, train on the files, pack them, train on the pack, compare."""
