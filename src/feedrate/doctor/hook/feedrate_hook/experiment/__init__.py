# SPDX-License-Identifier: Apache-2.0
"""The experiments on a running loop: drain, replay, other workers, channels-last."""
