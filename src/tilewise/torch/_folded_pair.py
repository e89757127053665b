"""A convolution with the batch normalisation after it folded into its filter and bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils.fusion import fuse_conv_bn_weights

from tilewise.kernels import STORED_FORMATS

_Places = tuple[tuple[nn.Module, str, nn.Module], ...]  # parent, name, child
_Sources = tuple[tuple[dict[str, Tensor | None], str, Tensor | None], ...]  # parameters or buffers, name, tensor


class _State(TypedDict):
    _conv: nn.Module
    _norm: nn.Module
    _places: _Places
    _sources: _Sources


class FoldedPair:
    """A convolution with a batch normalisation folded into it.

    Both layers keep their parameters and buffers, so a ``state_dict`` has the same keys as before. The folded filter
    and bias are buffers of the convolution that no ``state_dict`` holds. They are used where both layers are in
    evaluation mode and in their places, their parameters and statistics are those that were folded, no hook reads the
    value between them or may change the filter, and no gradient of their parameters can be asked for; elsewhere both
    layers compute as before. Compiled graphs do not notice parameters that are changed in place.

    Args:
        conv: the convolution.
        norm: the batch normalisation.
        network: the network that calls the one after the other. Without it a replaced layer is not noticed.
    """

    _places: _Places = ()
    _sources: _Sources = ()  # where the tensors are that were folded; empty where the result cannot be used
    _versions: tuple[tuple[Tensor, int], ...] = ()  # of those that count their changes

    def __init__(self, conv: nn.Module, norm: nn.Module, network: nn.Module | None = None) -> None:
        self._conv, self._norm = conv, norm
        if network is not None:
            self._places = _places(network, conv, norm)

    def __getstate__(self) -> _State:
        sources = self._sources if self._is_unchanged() else ()
        return {"_conv": self._conv, "_norm": self._norm, "_places": self._places, "_sources": sources}

    def __setstate__(self, state: _State) -> None:
        self.__dict__.update(state)
        self._versions = _versions(self._sources)  # copies count from 0

    @property
    def norm(self) -> nn.Module:
        """The batch normalisation."""
        return self._norm

    @property
    def is_active(self) -> bool:
        """Return whether the convolution computes both layers now."""
        conv, norm = self._conv, self._norm
        if conv.training or norm.training:
            return False
        if conv._forward_pre_hooks or conv._forward_hooks or norm._forward_pre_hooks:
            return False
        if conv._backward_hooks or conv._backward_pre_hooks or norm._backward_hooks:
            return False
        for parent, name, child in self._places:
            if parent._modules.get(name) is not child:
                return False
        if not self._is_unchanged():
            return False
        if torch.is_grad_enabled():
            for _, _, t in self._sources:
                if t is not None and t.requires_grad:
                    return False
        return True

    def fold(self) -> None:
        """Compute the folded filter and bias from the parameters as they are now.

        They are rounded once, from fp32 or wider: the steps in bf16 gave a network of 53 pairs six times the error that
        PyTorch has without folding. Their memory stays the same where it can, as captured CUDA graphs go on reading it.
        """
        conv, norm = self._conv, self._norm
        if conv.weight.is_cuda and torch.cuda.is_current_stream_capturing() and self._is_unchanged():
            return  # values cannot be read there
        sources = _sources(conv, norm)
        tensors = [t for _, _, t in sources]
        with torch.inference_mode(False), torch.no_grad():  # autograd saves no tensor of inference mode
            sources = sources if self._can_fold(tensors) and self._store(tensors) else ()
        self._sources, self._versions = sources, _versions(sources)

    def _can_fold(self, tensors: Sequence[Tensor | None]) -> bool:
        conv, norm = self._conv, self._norm
        if norm.running_mean is None or norm.running_var is None:
            return False
        by_name = (conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        if any(a is not b for a, b in zip(tensors, by_name, strict=True)):  # computed from others, as by weight_norm
            return False
        return len({t.device for t in tensors if t is not None}) == 1  # else one layer is moved before the other

    def _is_unchanged(self) -> bool:
        """Return whether the parameters and statistics are those that were folded."""
        for tensors, name, t in self._sources:
            if tensors.get(name) is not t:
                return bool(torch.compiler.is_exporting())  # which puts others in the place of all
        if not torch.compiler.is_dynamo_compiling():  # it knows no versions
            for t, version in self._versions:
                if t._version != version:
                    return False
        return bool(self._sources)

    def _store(self, tensors: Sequence[Tensor | None]) -> bool:
        """Store the folded tensors, and return whether all their elements are finite."""
        conv, norm = self._conv, self._norm
        dtype, layout = conv.weight.dtype, _stored(conv.weight)
        wide = torch.promote_types(dtype, torch.float32)
        w, b, mean, variance, scale, shift = (None if t is None else t.detach().to(wide) for t in tensors)
        weight, bias = fuse_conv_bn_weights(w, b, mean, variance, norm.eps, scale, shift)
        weight, bias = weight.detach().to(dtype, memory_format=layout), bias.detach().to(dtype)
        _keep(conv, "folded_weight", weight)
        _keep(conv, "folded_bias", bias)
        return not _has_values(weight) or bool(torch.isfinite(weight).all() & torch.isfinite(bias).all())


def _places(network: nn.Module, conv: nn.Module, norm: nn.Module) -> _Places:
    """Return the places that lead to two layers under all their names, from the module on that has both."""
    modules = dict(network.named_modules(remove_duplicate=False))
    paths = [name.split(".") for name, module in modules.items() if module is conv or module is norm]
    shared = next(i for i, names in enumerate(zip(*paths, strict=False)) if len(set(names)) > 1)
    places = {(".".join(path[:i]), path[i]) for path in paths for i in range(shared, len(path))}
    return tuple((modules[parent], name, modules[f"{parent}.{name}".lstrip(".")]) for parent, name in sorted(places))


def _sources(conv: nn.Module, norm: nn.Module) -> _Sources:
    """Return where the tensors that are folded are kept, in the order in which they are folded."""
    kept = [(conv._parameters, name) for name in ("weight", "bias")]
    kept += [(norm._buffers, name) for name in ("running_mean", "running_var")]
    kept += [(norm._parameters, name) for name in ("weight", "bias")]
    return tuple((tensors, name, tensors.get(name)) for tensors, name in kept)


def _versions(sources: _Sources) -> tuple[tuple[Tensor, int], ...]:
    return tuple((t, t._version) for _, _, t in sources if t is not None and not t.is_inference())


def _keep(conv: nn.Module, name: str, values: Tensor) -> None:
    """Store a tensor as a buffer, in its memory if that is alike."""
    kept = conv._buffers.get(name)
    if kept is None or kept.is_inference() or _form(kept) != _form(values):
        conv.register_buffer(name, values, persistent=False)
    elif not _has_values(values) or not torch.equal(kept, values):  # autograd may have saved it
        kept.copy_(values)


def _form(t: Tensor) -> tuple[object, ...]:
    return t.shape, t.dtype, t.device, _stored(t), type(t)


def _has_values(t: Tensor) -> bool:
    return not (t.is_meta or isinstance(t, FakeTensor))


def _stored(t: Tensor) -> torch.memory_format:
    layout = STORED_FORMATS.get(t.dim(), torch.contiguous_format)
    return layout if t.is_contiguous(memory_format=layout) else torch.contiguous_format
