"""The right answers, from PyTorch: what kernels are checked against, in tests and before anything is timed."""

from __future__ import annotations

import torch

from tilewise.ops import GroupedConvProblem


def conv_forward(p: GroupedConvProblem, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``conv(x, w)`` in fp32 on operands widened to fp32; exact only with ``torch.backends.cudnn.allow_tf32 = False``.

    Args:
        p: the problem.
        x: (N, Di, Hi, Wi, C).
        w: (K, Z, Y, X, C / G).

    Returns:
        (N, Do, Ho, Wo, K), contiguous.
    """
    x32 = x.float().permute(0, 4, 1, 2, 3)
    w32 = w.float().permute(0, 4, 1, 2, 3)
    stride, pad = (p.stride_d, p.stride_h, p.stride_w), (p.pad_d, p.pad_h, p.pad_w)
    dilation = (p.dilation_d, p.dilation_h, p.dilation_w)
    if p.ndim == 2:  # the 2D routines are the faster ones
        x32, w32 = x32.squeeze(2), w32.squeeze(2)
        y = torch.nn.functional.conv2d(x32, w32, None, stride[1:], pad[1:], dilation[1:], p.G).unsqueeze(2)
    else:
        y = torch.nn.functional.conv3d(x32, w32, None, stride, pad, dilation, p.G)
    return y.permute(0, 2, 3, 4, 1).contiguous()
