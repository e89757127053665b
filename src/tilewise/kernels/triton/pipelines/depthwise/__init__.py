"""The pipelines that filter channels without a matrix product."""

from __future__ import annotations

from tilewise.kernels.triton.pipelines.depthwise._depth import DEPTH
from tilewise.kernels.triton.pipelines.depthwise._lanes import LANES
from tilewise.kernels.triton.pipelines.depthwise._strip import STRIP

__all__ = ["DEPTH", "LANES", "STRIP"]
