"""Batch normalisations that compute the addition and the activation after them in training, by kernels of ours."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tilewise.kernels import STORED_FORMATS
from tilewise.kernels.triton.programs import interpreted
from tilewise.torch import eager
from tilewise.torch._ended import finished
from tilewise.torch.norm._function import ACTIVATIONS, DTYPES, Statistics, batch_norm


class _Norm(nn.modules.batchnorm._BatchNorm):  # type: ignore[misc] # torch has no types here
    """A batch normalisation: PyTorch's, but for channels-last tensors on a GPU in training."""

    def forward(self, input: Tensor, residual: Tensor | None = None, activation: str | None = None) -> Tensor:
        """Compute ``activation(layer + residual)``."""
        if can_fuse(residual is not None, activation or "") and self._takes(input, residual):
            kept = (self.running_mean, self.running_var, self.num_batches_tracked)
            statistics = Statistics(*kept, self.momentum, self.eps)
            return batch_norm(input, self.weight, self.bias, statistics, residual, activation or "")
        return finished(super().forward(input), residual, activation or "")

    def _takes(self, x: Tensor, residual: Tensor | None) -> bool:
        """Return whether kernels compute these tensors; a compiler fuses PyTorch's functions itself."""
        if not (type(x) in eager.PLAIN and type(self.weight) in eager.PLAIN) or torch.compiler.is_compiling():
            return False
        if eager.is_watched() or not (is_served(self) and takes(self, x)):
            return False
        if residual is None:
            return True
        same = type(residual) is Tensor and residual.dtype == x.dtype and x.shape == residual.shape
        return same and bool(residual.is_contiguous(memory_format=STORED_FORMATS[x.dim()]))


class BatchNorm2d(_Norm, nn.BatchNorm2d):  # type: ignore[misc] # as above
    """``torch.nn.BatchNorm2d`` with an addition and an activation."""


class BatchNorm3d(_Norm, nn.BatchNorm3d):  # type: ignore[misc] # as above
    """``torch.nn.BatchNorm3d`` with an addition and an activation."""


NORMS: dict[type[nn.Module], type[nn.Module]] = {nn.BatchNorm2d: BatchNorm2d, nn.BatchNorm3d: BatchNorm3d}


def is_served(norm: nn.Module) -> bool:
    """Return whether a layer is a batch normalisation in training that kernels compute.

    It has parameters, and running averages of fixed momentum.
    """
    if type(norm) not in (*NORMS, *NORMS.values()) or not norm.training:
        return False
    kept = (norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked)
    is_whole = norm.momentum is not None and all(t is not None for t in kept)
    return is_whole and (norm.weight.is_cuda or interpreted())


def takes(norm: nn.Module, x: Tensor) -> bool:
    """Return whether kernels compute a layer for which :func:`is_served` holds for an input, by its type and layout."""
    if x.device != norm.weight.device or x.dtype not in DTYPES or x.dim() not in (4, 5):
        return False
    if x.shape[1] != norm.num_features or x.numel() <= norm.num_features:
        return False
    return bool(x.is_contiguous(memory_format=STORED_FORMATS[x.dim()]))


def can_fuse(has_residual: bool, activation: str) -> bool:
    """Return whether kernels compute these parts after a normalisation.

    The gradient of ReLU follows from its result; that of another activation would need the sum before it again.
    """
    return activation in (("", "relu") if has_residual else ACTIVATIONS)


def replace_norm(norm: nn.Module) -> None:
    """Turn a layer for which :func:`is_served` holds into the one here, in place."""
    norm.__class__ = NORMS.get(type(norm), type(norm))
