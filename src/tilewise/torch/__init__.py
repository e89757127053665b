"""Drop-in ``conv2d``, ``conv3d`` and ``matmul`` for PyTorch, on the kernels that tilewise's dispatchers select.

Same signatures and results as PyTorch's, with gradients (of any order), under ``torch.compile`` and autocast. What is
not served here PyTorch computes itself; see docs/running.md. Needs torch and triton.
"""

from tilewise.torch.functional import conv2d, conv3d, matmul
from tilewise.torch.serving import use

__all__ = ["conv2d", "conv3d", "matmul", "use"]
