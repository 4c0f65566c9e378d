# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels without a build step: compiled by NVRTC where they run, launched through the driver."""

from __future__ import annotations

from feedrate.kernel.cuda.launcher import Module, compile_source, why_not

__all__ = ["Module", "compile_source", "why_not"]
