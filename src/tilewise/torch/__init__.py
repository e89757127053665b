"""Drop-in functions and layers for PyTorch, computed by the kernels that dispatchers select.

Signatures and results are PyTorch's, with gradients of any order, under ``torch.compile`` and autocast. PyTorch itself
computes whatever has no kernel (docs/running.md). :func:`optimize` replaces layers of a network where that pays, by
predictions or after :func:`measure` (docs/pytorch.md). Needs torch and triton. Used by applications.
"""

from __future__ import annotations

from tilewise.torch._functional import conv2d, conv3d, linear, matmul
from tilewise.torch._layers import Conv2d, Conv3d, ConvTranspose2d, ConvTranspose3d, Linear
from tilewise.torch._optimize import Optimized, measure, optimize
from tilewise.torch._serving import use
from tilewise.torch._transposed import conv_transpose2d, conv_transpose3d
from tilewise.torch.decision import HostCost, LayerReport, OptimizeReport, PassReport

__all__ = [
    "Conv2d",
    "Conv3d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "HostCost",
    "LayerReport",
    "Linear",
    "OptimizeReport",
    "Optimized",
    "PassReport",
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "conv_transpose3d",
    "linear",
    "matmul",
    "measure",
    "optimize",
    "use",
]
