"""Drop-in ``conv2d``, ``conv3d`` and ``matmul`` for PyTorch, computed by the kernels that dispatchers select.

Signatures and results are PyTorch's, with gradients of any order, under ``torch.compile`` and autocast. PyTorch itself
computes whatever has no kernel (docs/running.md). Needs torch and triton. Used by applications.
"""

from __future__ import annotations

from tilewise.torch._functional import conv2d, conv3d, matmul
from tilewise.torch._serving import use

__all__ = [
    "conv2d",
    "conv3d",
    "matmul",
    "use",
]
