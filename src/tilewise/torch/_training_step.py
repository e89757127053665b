"""A step of training as its forward pass shows it: the calls of layers, and the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tilewise.torch._calls import Calls, on_example, recording
from tilewise.torch._graph import NORM_RESULTS, normalised
from tilewise.torch.norm import is_served, takes

_aten = torch.ops.aten
# Products and convolutions: those of layers are known, and bytes do not tell the time of others.
_PRODUCTS = frozenset((_aten.convolution.default, _aten.addmm.default, _aten.mm.default, _aten.bmm.default))
_UNWRITTEN = frozenset(
    (
        _aten._unsafe_view.default,
        _aten.empty.memory_format,
        _aten.empty_like.default,
        _aten.empty_strided.default,
        _aten.new_empty.default,
        _aten.new_empty_strided.default,
    )
)
_NORM_TRAINS = 5  # place of the argument of batch normalisations that tells it


class Rest(NamedTuple):
    """The part of a training step beside its layers.

    Attributes:
        norms: for each batch normalisation that kernels can compute, the bytes of its input in each call.
        plain_norms: number of calls of the other ones in training mode.
        normalised_bytes: of their inputs.
        functions: number of other functions with floating-point results, without products and views.
        written_bytes: by these.
    """

    norms: Mapping[str, Sequence[int]] = {}
    plain_norms: int = 0
    normalised_bytes: int = 0
    functions: int = 0
    written_bytes: int = 0

    @property
    def with_plain_norms(self) -> Rest:
        """The same without batch normalisations by kernels."""
        sizes = [size for calls in self.norms.values() for size in calls]
        calls, moved = self.plain_norms + len(sizes), self.normalised_bytes + sum(sizes)
        return self._replace(norms={}, plain_norms=calls, normalised_bytes=moved)


def observe_step(network: nn.Module, inputs: Sequence[object]) -> tuple[Calls, Rest]:
    """Run a network in training mode on an example; return the calls of its layers, and the rest of a step."""
    return on_example(network, partial(_observed, inputs=inputs))


def _observed(network: nn.Module, inputs: Sequence[object]) -> tuple[Calls, Rest]:
    counter = _Counter()
    with recording(network, counter.paused) as calls, _recording_norms(network) as norms, counter:
        network(*inputs)
    sizes = [size for of_norm in norms.values() for size in of_norm]
    plain, moved = counter.norms - len(sizes), counter.normalised_bytes - sum(sizes)
    return calls, Rest(norms, max(plain, 0), max(moved, 0), counter.functions, counter.written_bytes)


@contextlib.contextmanager
def _recording_norms(network: nn.Module) -> Iterator[dict[str, list[int]]]:
    """Record the bytes of each call of the batch normalisations all of whose calls kernels can compute."""
    sizes: dict[str, list[int]] = {}
    refused: set[str] = set()
    with contextlib.ExitStack() as stack:
        for name, module in network.named_modules():
            if is_served(module) and "forward" not in vars(module):
                record = partial(_record, name=name, sizes=sizes, refused=refused)
                stack.callback(module.register_forward_pre_hook(record, with_kwargs=True).remove)
        yield sizes
    for name in refused:
        sizes.pop(name, None)


def _record(
    norm: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], name: str, sizes: dict[str, list[int]],
    refused: set[str],
) -> None:  # fmt: skip
    x = args[0] if args else kwargs["input"]
    if takes(norm, x):
        sizes.setdefault(name, []).append(_bytes(x))
    else:
        refused.add(name)


class _Counter(TorchDispatchMode):  # type: ignore[misc] # torch has no types here
    """Counts the functions of a pass; see :class:`Rest`."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.norms = self.normalised_bytes = self.functions = self.written_bytes = 0
        self._is_paused = False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Let the compiler compile under it; it would never again compile the functions that it leaves out."""
        return True

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def __torch_dispatch__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if not isinstance(function, OpOverload) or self._is_paused:
            return function(*args, **(kwargs or {}))
        result = normalised(function, args) or function(*args, **(kwargs or {}))
        if function in NORM_RESULTS and args[_NORM_TRAINS]:
            self.norms += 1
            self.normalised_bytes += _bytes(args[0])
        elif function not in _PRODUCTS and function not in _UNWRITTEN and not _makes_view(function):
            tensors = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
            if any(t.is_floating_point() for t in tensors):
                self.functions += 1
                self.written_bytes += sum(map(_bytes, tensors))
        return result


def _makes_view(function: OpOverload) -> bool:
    aliases = [argument.alias_info for argument in function._schema.arguments]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _bytes(t: Tensor) -> int:
    return int(t.numel() * t.element_size())
