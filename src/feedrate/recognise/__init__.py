# SPDX-License-Identifier: Apache-2.0
"""What a script does to its images, as a list of operations. Standard library alone: it may be used inside of
the script's own process."""
