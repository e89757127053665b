"""The graph of a network in its mode, as ``torch.fx`` traces it, and whether it may stand for the network.

A graph repeats the branches and loops that the network's code took once, and the values of attributes that it read. So
it is traced from a copy, as code may keep results; it is checked against the operators that the network calls for an
example; and it holds only while the attributes of modules are the same, for arguments of the example's type.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from threading import Lock, get_ident
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tilewise.errors import one_line
from tilewise.torch._attributes import is_other, state_of
from tilewise.torch._calls import Calls, on_example, random_numbers_kept, recording
from tilewise.torch._layers import FOLDED, REPLACEMENTS, kind_of
from tilewise.torch.norm import NORMS

_LEAVES = (*REPLACEMENTS.values(), *FOLDED.values(), *NORMS.values())
_ROOT = "network"
_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}  # of operators that read values
_READS = (Tensor.tolist, Tensor.numpy, Tensor.__array__)  # without an operator that tells so
_tracing = Lock()  # of two traces at once, the first to end would undo the replacements of the other
_by_code = set[int]()  # threads in which networks with a graph compute by their code
_DEVICE = torch.ops.prim.device.default  # autograd asks for it when it meets a parameter for the first time
NORM_RESULTS = {  # the number of results of each batch normalisation; all but the first are for gradients
    torch.ops.aten.native_batch_norm.default: 3,
    torch.ops.aten.cudnn_batch_norm.default: 4,
    torch.ops.aten.miopen_batch_norm.default: 3,
}
_CONDITIONS = "tilewise.conditions"
_CONSTANT = "_tensor_constant"  # names that torch.fx gives to tensors which the code made


class Root(nn.Module):  # type: ignore[misc] # torch has no types here
    """A network with one argument, as the root of a graph: its class's own ``forward``, with its defaults."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Compute the network."""
        return type(self.network).forward(self.network, x)


class Traced(NamedTuple):
    """A graph of a network.

    Attributes:
        graph: the graph, whose modules have the names of a :class:`Root` of the network.
        constants: tensors by name that the code made while it was traced; the graph would go on using them.
        keeps: whether the code set attributes, wrote to tensors, read their values, or drew random numbers, which the
            graph does not.
    """

    graph: fx.Graph
    constants: dict[str, Tensor]
    keeps: bool

    @property
    def may_replace(self) -> bool:
        """Return whether the graph does all that the code does."""
        return not self.constants and not self.keeps


class _Tracer(fx.Tracer):  # type: ignore[misc] # as above
    """A tracer that looks into no layer that is ours or may be, and leaves the calls of other threads alone.

    ``torch.fx`` replaces the calls of all modules of the process while it traces.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = get_ident()

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        known = isinstance(module, _LEAVES) or kind_of(module) is not None
        return known or bool(super().is_leaf_module(module, name))

    def call_module(
        self, module: nn.Module, forward: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        if get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(module, forward, args, kwargs)

    def getattr(self, name: str, value: object, proxies: dict[str, fx.Proxy]) -> object:
        return value if get_ident() != self._thread else super().getattr(name, value, proxies)


class _Operators(TorchDispatchMode):  # type: ignore[misc] # as above
    """Notes whether code reads or changes values of tensors while it is traced: those that no graph has as nodes."""

    def __init__(self, kept: Iterable[Tensor]) -> None:
        super().__init__()
        self._kept, self._before = {_memory(t): t for t in kept}, dict[int, Tensor]()
        self.found = False

    def __torch_dispatch__(
        self, function: OpOverload, types: object, args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:  # fmt: skip
        for t in _written(function, args, kwargs or {}):
            self.found = True
            if (memory := _memory(t)) in self._kept:
                self._before.setdefault(memory, self._kept[memory].detach().clone())
        self.found = self.found or not _DATA.isdisjoint(function.tags)
        return function(*args, **(kwargs or {}))

    def put_back(self) -> None:
        """Give the kept tensors the values that they had."""
        with torch.no_grad():
            for memory, before in self._before.items():
                self._kept[memory].copy_(before)


class _Functions(TorchFunctionMode):  # type: ignore[misc] # as above
    """Notes whether code reads tensors into other libraries, and whether it sets the mode of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.sets_gradients = False

    def __torch_function__(
        self, function: Callable[..., object], types: object, args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:  # fmt: skip
        self.reads = self.reads or function in _READS
        self.sets_gradients = self.sets_gradients or function is torch._C._set_grad_enabled
        return function(*args, **(kwargs or {}))


class Conditions(NamedTuple):
    """Conditions of a graph.

    Attributes:
        type_of_argument: the type of the argument for which it was compared.
        needs_mode: whether it stands for the network only where gradients are recorded in training mode alone.
    """

    type_of_argument: type = Tensor
    needs_mode: bool = False

    @classmethod
    def of(cls, graph: fx.Graph) -> Conditions:
        """Return the conditions of a graph, which its first node has."""
        return cls(*next(iter(graph.nodes)).meta.get(_CONDITIONS, ()))

    def put_on(self, graph: fx.Graph) -> None:
        """Make them those of a graph."""
        next(iter(graph.nodes)).meta[_CONDITIONS] = self


@contextlib.contextmanager
def _computing_by_code() -> Iterator[None]:
    """Let parts of a network that have a graph of their own compute by their code, which the whole's graph repeats."""
    _by_code.add(get_ident())
    try:
        yield
    finally:
        _by_code.discard(get_ident())


def computes_by_code(*arguments: object) -> bool:
    """Return whether a network has to compute by its code: here or elsewhere a larger one is traced."""
    return any(isinstance(a, fx.Proxy) for a in arguments) or bool(_by_code and get_ident() in _by_code)


def trace(network: nn.Module) -> Traced:
    """Return the graph of a network, which stays as it is.

    Raises:
        Exception: the network cannot be copied, or torch.fx cannot trace it.
    """
    copied = copy.deepcopy(network, {id(t): t for t in (*network.parameters(), *network.buffers())})
    root, before = Root(copied), state_of(copied)
    operators, functions, mode = _Operators(network.buffers()), _Functions(), bool(network.training)
    with _tracing, _computing_by_code(), random_numbers_kept(network) as have_moved:
        try:
            with torch.set_grad_enabled(mode), operators, functions:  # as examples run
                graph = _Tracer().trace(root)
            constants = {n: t for n, t in vars(root).items() if n.startswith(_CONSTANT)}
            keeps = have_moved() or operators.found or functions.reads or any(is_other(*pair) for pair in before)
            needs_mode = functions.sets_gradients or not (keeps or constants or _is_alike(root, graph, not mode))
        finally:
            operators.put_back()
    Conditions(needs_mode=needs_mode).put_on(graph)
    return Traced(graph, constants, keeps)


def _is_alike(root: Root, graph: fx.Graph, mode: bool) -> bool:
    """Return whether a graph is also that of the other mode of gradients."""
    try:
        with torch.set_grad_enabled(mode):
            return str(_Tracer().trace(root)) == str(graph)
    except Exception:
        return False


def calls_of(graph: fx.Graph) -> Iterable[fx.Node]:
    """Return the nodes of a graph that call a module."""
    return (node for node in graph.nodes if node.op == "call_module" and node.target != _ROOT)


def name_of(node: fx.Node) -> str:
    """Return the name of the layer that a node calls."""
    return str(node.target).removeprefix(f"{_ROOT}.")


def is_hooked(module: nn.Module) -> bool:
    """Return whether something watches the calls of a module."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def code_of(network: nn.Module) -> list[nn.Module]:
    """Return the modules of a network whose code is part of its graph, the network first."""
    tracer = _Tracer()
    return [m for name, m in network.named_modules() if m is network or not tracer.is_leaf_module(m, name)]


class Observed(NamedTuple):
    """Findings of a run of a network on an example.

    Attributes:
        calls: the calls of its layers.
        why_unproved: why a graph does not stand for the network; "" if it does, or none was given.
    """

    calls: Calls
    why_unproved: str = ""


def observe(network: nn.Module, inputs: Sequence[object], traced: Traced | None) -> Observed:
    """Run a network on an example, and then its graph, to compare the operators that both call, of the same values.

    An addition in place may become another one, as ``torch.fx`` traces ``+=``, if nothing else reads the value before.
    """
    with _computing_by_code():
        return on_example(network, partial(_observed, inputs=inputs, traced=traced))


def _observed(network: nn.Module, inputs: Sequence[object], traced: Traced | None) -> Observed:
    with recording(network) as calls:
        if traced is None:
            network(*inputs)
            return Observed(calls)
        given, root = [*tree_leaves(inputs), *network.parameters()], Root(network)
        type_of_argument = Tensor if isinstance(inputs[0], Tensor) else type(inputs[0])
        Conditions.of(traced.graph)._replace(type_of_argument=type_of_argument).put_on(traced.graph)
        code = _operators(network, inputs, given)
        made = {name: list(of_layer) for name, of_layer in calls.items()}
        if is_hooked(network):  # by something whose operators are not the code's
            code = _operators(root, inputs, given)
        for name, constant in traced.constants.items():
            setattr(root, name, constant)
        try:
            repeated = _operators(fx.GraphModule(root, traced.graph), inputs, given, code)
        except Exception as e:
            return Observed(made, f"the graph of the model cannot compute the example: {one_line(e)}")
    is_alike = [call.compared for call in code] == [call.compared for call in repeated]
    differ = "the graph of the model computes the example by other operators than the model"
    return Observed(made, "" if is_alike else differ)


def _operators(
    network: nn.Module, inputs: Sequence[object], given: list[object], before: Sequence[_Call] = ()
) -> list[_Call]:
    """Return the operators that a network calls; see :class:`_Recorder`."""
    recorder = _Recorder(given, before)
    with recorder:
        network(*inputs)
    return recorder.called


class _Call(NamedTuple):
    """A call of an operator: its operands, tensors as :class:`_Value`, its result, and the layout that this had."""

    function: OpOverload
    is_graded: bool  # whether gradients are recorded
    operands: list[object]
    result: object
    layout: list[object]

    @property
    def compared(self) -> tuple[str, str, bool, list[object]]:
        """The part that a graph has to repeat."""
        schema = self.function._schema
        return schema.name.removesuffix("_"), schema.overload_name, self.is_graded, self.operands

    @property
    def is_repeatable(self) -> bool:
        """Return whether its result can be that of another call: tensors without values, unchanged, and no views."""
        if any(argument.alias_info is not None for argument in self.function._schema.arguments):
            return False
        leaves = tree_leaves(self.result)
        return all(isinstance(t, FakeTensor) for t in leaves) and _layout(leaves) == self.layout


def _layout(leaves: Sequence[object]) -> list[object]:
    return [(t.shape, t.stride(), t.storage_offset()) for t in leaves if isinstance(t, Tensor)]


class _Recorder(TorchDispatchMode):  # type: ignore[misc] # as above
    """Notes the operators that read given tensors, or others that depend on them; each value by who wrote it last.

    A call that a run before made alike is not made again: its result is taken, where that is the same.
    """

    def __init__(self, given: list[object], before: Sequence[_Call]) -> None:
        super().__init__()
        self._kept = [t for t in given if isinstance(t, Tensor)]  # so that no other memory takes their place
        self._writers = {_memory(t): -1 - i for i, t in enumerate(self._kept)}
        self._before = before
        self.called: list[_Call] = []

    def __torch_dispatch__(
        self, function: OpOverload, types: object, args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:  # fmt: skip
        kwargs = kwargs or {}
        operands = [self._described(leaf) for leaf in tree_leaves((args, kwargs))]
        is_read = any(type(described) is _Value and described.writer is not None for described in operands)
        if not is_read or function is _DEVICE:
            return function(*args, **kwargs)
        number = len(self.called)
        before = self._before[number] if number < len(self._before) else None
        if before and before.function is function and before.operands == operands and before.is_repeatable:
            result = before.result
        else:
            result = normalised(function, args) or function(*args, **kwargs)
        leaves = tree_leaves(result)
        self.called.append(_Call(function, torch.is_grad_enabled(), operands, result, _layout(leaves)))
        for t in _written(function, args, kwargs):
            self._writers[_memory(t)] = number
        for t in leaves:
            if isinstance(t, Tensor):
                self._kept.append(t)
                self._writers.setdefault(_memory(t), number)  # a view has its memory's writer
        return result

    def _described(self, leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return repr(leaf)
        return _Value(leaf.shape, leaf.stride(), leaf.storage_offset(), leaf.dtype, self._writers.get(_memory(leaf)))


def normalised(function: OpOverload, args: tuple[object, ...]) -> tuple[Tensor, ...] | None:
    """Return the results of a batch normalisation of a fake tensor, or None for other calls.

    PyTorch finds their shapes by operators of which it composes the normalisation: up to half of `optimize`'s time.
    """
    count = NORM_RESULTS.get(function)
    if count is None:
        return None
    x, *vectors = args[:5]
    if not isinstance(x, FakeTensor) or x.dim() < 2:
        return None
    if any(isinstance(t, Tensor) and t.shape != x.shape[1:2] for t in vectors):
        return None  # PyTorch refuses it
    return torch.empty_like(x), *(x.new_empty(x.shape[1], dtype=torch.float32) for _ in range(count - 1))


class _Value(NamedTuple):
    """A tensor that an operator reads; the writer is a call's number, negative for a given one, None for others."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    writer: int | None


def _written(function: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> list[Tensor]:
    """Return the tensors that a call changes."""
    arguments = function._schema.arguments
    passed = dict(zip((argument.name for argument in arguments), args, strict=False)) | kwargs
    found = tree_leaves([passed.get(argument.name) for argument in arguments if argument.is_write])
    return [t for t in found if isinstance(t, Tensor)]


def _memory(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)
