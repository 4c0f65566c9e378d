# SPDX-License-Identifier: Apache-2.0
"""What times parts of a dataset's way to a model: a device, a child process, images to time them on."""
