"""Layers that take the place of PyTorch's in a network: same parameters, same names, other functions.

Each derives from the layer that it replaces, and a network that has one can be pickled and copied. Replacing changes
the class of a layer and nothing else, so that its parameters, hooks and place in the network stay. A layer of a class
that derives from PyTorch's keeps the methods that this class adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from tilewise.kernels import STORED_FORMATS
from tilewise.torch import _transposed as transposed
from tilewise.torch._ended import ends_of, finished
from tilewise.torch._folded_pair import FoldedPair
from tilewise.torch._functional import Arguments, convolve, transform


class Conv2d(nn.Conv2d):  # type: ignore[misc] # torch has no types here
    """``torch.nn.Conv2d`` by :func:`tilewise.torch.conv2d`."""

    in_one_launch = False  # see tilewise.kernels.EpilogueKind

    def forward(self, input: Tensor, residual: Tensor | None = None, activation: str | None = None) -> Tensor:
        """Compute ``activation(layer + residual)``."""
        return self._conv_forward(input, self.weight, self.bias, residual, activation)

    def _conv_forward(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:  # fmt: skip
        return _convolved(self, input, weight, bias, residual, activation)


class Conv3d(nn.Conv3d):  # type: ignore[misc] # as above
    """``torch.nn.Conv3d`` by :func:`tilewise.torch.conv3d`."""

    in_one_launch = False

    def forward(self, input: Tensor, residual: Tensor | None = None, activation: str | None = None) -> Tensor:
        """Compute ``activation(layer + residual)``."""
        return self._conv_forward(input, self.weight, self.bias, residual, activation)

    def _conv_forward(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:  # fmt: skip
        return _convolved(self, input, weight, bias, residual, activation)


def _convolved(
    layer: nn.Module, x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str | None
) -> Tensor:
    """Compute a convolution layer with this filter and bias."""
    padding = layer.padding
    if layer.padding_mode != "zeros":
        x, padding = nn.functional.pad(x, layer._reversed_padding_repeated_twice, layer.padding_mode), 0
    arguments = Arguments(w.dim() - 2, layer.stride, padding, layer.dilation, layer.groups)
    own = nn.functional.conv2d if w.dim() == 4 else nn.functional.conv3d
    return convolve(own, x, w, ends_of(bias, residual, activation, layer.in_one_launch), arguments)


class Linear(nn.Linear):  # type: ignore[misc] # as above
    """``torch.nn.Linear`` by :func:`tilewise.torch.linear`."""

    in_one_launch = False

    def forward(self, input: Tensor, residual: Tensor | None = None, activation: str | None = None) -> Tensor:
        """Compute ``activation(layer + residual)``."""
        return transform(input, self.weight, ends_of(self.bias, residual, activation, self.in_one_launch))


class ConvTranspose2d(nn.ConvTranspose2d):  # type: ignore[misc] # as above
    """``torch.nn.ConvTranspose2d`` by :func:`tilewise.torch.conv_transpose2d`."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Compute the layer."""
        return _transposed(self, nn.functional.conv_transpose2d, input, output_size)


class ConvTranspose3d(nn.ConvTranspose3d):  # type: ignore[misc] # as above
    """``torch.nn.ConvTranspose3d`` by :func:`tilewise.torch.conv_transpose3d`."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Compute the layer."""
        return _transposed(self, nn.functional.conv_transpose3d, input, output_size)


def _transposed(layer: nn.Module, own: Callable[..., Tensor], x: Tensor, output_size: Sequence[int] | None) -> Tensor:
    """Compute a transposed convolution layer."""
    if layer.padding_mode != "zeros":  # set after it was made
        raise ValueError("Only `zeros` padding mode is supported for " + type(layer).__name__)
    return transposed.convolve(own, x, layer.weight, layer.bias, transposed_arguments(layer, x, output_size))


def transposed_arguments(layer: nn.Module, x: Tensor, output_size: Sequence[int] | None = None) -> transposed.Arguments:
    """Return the arguments of a transposed convolution layer's function, for an input and the size that is wanted."""
    ndim = layer.weight.dim() - 2
    end = layer._output_padding(x, output_size, layer.stride, layer.padding, layer.kernel_size, ndim, layer.dilation)
    return transposed.Arguments(ndim, layer.stride, layer.padding, tuple(end), layer.groups, layer.dilation)


TRANSPOSED = (nn.ConvTranspose2d, nn.ConvTranspose3d)  # they compute no residual and no activation
REPLACEMENTS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: Conv2d,
    nn.Conv3d: Conv3d,
    nn.ConvTranspose2d: ConvTranspose2d,
    nn.ConvTranspose3d: ConvTranspose3d,
    nn.Linear: Linear,
}
# A derived class may define these, and its layers still compute as PyTorch's do.
_HARMLESS = frozenset((*vars(type("", (), {})), "__init__", "__annotations__", "__constants__", "__static_attributes__",
                       "__firstlineno__", "__repr__", "extra_repr", "reset_parameters"))  # fmt: skip


def kind_of(layer: nn.Module) -> type[nn.Module] | None:
    """Return the class of PyTorch's that a layer computes as: its own, or one to which its class only adds methods.

    None for other layers, those of :data:`REPLACEMENTS` included.
    """
    kind = next((kind for kind in REPLACEMENTS if isinstance(layer, kind)), None)
    if kind is None:
        return None
    known = {"weight", "bias", *dir(kind), *vars(layer)}  # a parametrised weight is a property of such a class
    derived = type(layer).__mro__[: type(layer).__mro__.index(kind)]
    return kind if all(known.isdisjoint(vars(c).keys() - _HARMLESS) for c in derived) else None


class _Folded(nn.Module):  # type: ignore[misc] # as above
    """A layer of a folded pair: the filter is folded again when parameters may have been changed.

    That is when they are loaded or converted, and when evaluation mode begins.
    """

    folded_pair: FoldedPair

    def train(self, mode: bool = True) -> Any:
        changed = super().train(mode)
        if not mode:
            self.folded_pair.fold()
        return changed

    def _load_from_state_dict(self, *args: object) -> None:
        super()._load_from_state_dict(*args)
        self.folded_pair.fold()

    def _apply(self, *args: object, **named: object) -> object:
        converted = super()._apply(*args, **named)
        self.folded_pair.fold()
        return converted


class _FoldedConv(_Folded):
    """The convolution of a folded pair."""

    def forward(self, input: Tensor, residual: Tensor | None = None, activation: str | None = None) -> Tensor:
        has_ends = residual is not None or activation is not None
        if self.folded_pair.is_active:
            ends = (residual, activation) if has_ends else ()  # which PyTorch's layers do not know
            return self._conv_forward(input, self.folded_weight, self.folded_bias, *ends)
        y = super().forward(input)
        # A fused graph leaves the normalisation, and the nodes after it, to the convolution.
        return finished(self.folded_pair.norm(y), residual, activation or "") if has_ends else y


class _FoldedNorm(_Folded):
    """The batch normalisation of a folded pair, which hands its input on where the convolution computes both."""

    def forward(self, input: Tensor) -> Tensor:
        return input if self.folded_pair.is_active else super().forward(input)


class FoldedConv2d(_FoldedConv, nn.Conv2d):  # type: ignore[misc] # as above
    """``torch.nn.Conv2d`` with the batch normalisation after it."""


class FoldedConv3d(_FoldedConv, nn.Conv3d):  # type: ignore[misc] # as above
    """``torch.nn.Conv3d`` with the batch normalisation after it."""


class FoldedOwnConv2d(_FoldedConv, Conv2d):
    """:class:`Conv2d` with the batch normalisation after it."""


class FoldedOwnConv3d(_FoldedConv, Conv3d):
    """:class:`Conv3d` with the batch normalisation after it."""


class FoldedBatchNorm2d(_FoldedNorm, nn.BatchNorm2d):  # type: ignore[misc] # as above
    """``torch.nn.BatchNorm2d`` after a convolution that computes it."""


class FoldedBatchNorm3d(_FoldedNorm, nn.BatchNorm3d):  # type: ignore[misc] # as above
    """``torch.nn.BatchNorm3d`` after a convolution that computes it."""


FOLDED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: FoldedConv2d,
    nn.Conv3d: FoldedConv3d,
    Conv2d: FoldedOwnConv2d,
    Conv3d: FoldedOwnConv3d,
    nn.BatchNorm2d: FoldedBatchNorm2d,
    nn.BatchNorm3d: FoldedBatchNorm3d,
}


def replace_layer(layer: nn.Module, in_one_launch: bool = False) -> None:
    """Turn a layer that computes as PyTorch's (:func:`kind_of`) into the one here that computes the same, in place.

    The filter of a convolution is stored channels-last from then on, as kernels read it; any other would be copied in
    each call. `in_one_launch` is the layer's wish of :class:`tilewise.kernels.EpilogueKind`.
    """
    _become(layer, REPLACEMENTS)
    layer.in_one_launch = in_one_launch
    if not isinstance(layer, nn.Linear):
        layer.weight.data = layer.weight.data.contiguous(memory_format=STORED_FORMATS[layer.weight.dim()])


def fold_layers(conv: nn.Module, norm: nn.Module, network: nn.Module | None = None) -> None:
    """Fold a batch normalisation into the convolution before it, in place; see :class:`FoldedPair`."""
    pair = FoldedPair(conv, norm, network)
    pair.fold()
    for layer in (conv, norm):
        _become(layer, FOLDED)
        layer.folded_pair = pair


def _become(layer: nn.Module, classes: Mapping[type[nn.Module], type[nn.Module]]) -> None:
    """Change a layer's class to the counterpart in `classes`, merged with a derived class of the user's."""
    plain = (kind_of(layer) or type(layer), type(layer))
    computing, derived = getattr(layer, "merged_from", plain)
    counterpart = classes[computing]
    layer.__class__ = counterpart if derived is computing else _merged(counterpart, derived)


_MERGED: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}


class _Merged:
    """A layer that computes as one class says, and has the methods of another; of a class that no module names."""

    merged_from: tuple[type[nn.Module], type[nn.Module]]

    def __reduce__(self) -> tuple[object, ...]:
        return _new_merged, self.merged_from, self.__dict__


def _merged(computing: type[nn.Module], derived: type[nn.Module]) -> type[nn.Module]:
    """Return the class whose layers compute as `computing`, and are of class `derived` in all else."""
    found = _MERGED.get((computing, derived))
    if found is None:
        members = {"merged_from": (computing, derived), "__module__": derived.__module__}
        found = _MERGED[computing, derived] = type(derived.__name__, (_Merged, computing, derived), members)
    return found


def _new_merged(computing: type[nn.Module], derived: type[nn.Module]) -> nn.Module:
    layer: nn.Module = object.__new__(_merged(computing, derived))
    return layer
