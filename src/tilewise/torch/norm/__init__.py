"""Batch normalisation in training, fused with the addition and the activation after it.

Used by ``tilewise.torch.optimize``. Needs torch and triton.
"""

from __future__ import annotations

from tilewise.torch.norm._layers import NORMS, BatchNorm2d, BatchNorm3d, can_fuse, is_served, replace_norm, takes

__all__ = ["NORMS", "BatchNorm2d", "BatchNorm3d", "can_fuse", "is_served", "replace_norm", "takes"]
