"""Tracing of NumPy formulas: one run with symbols records the operations that depend on the problem.

The columns of a problem are :class:`Symbol` objects, those of kernels and hardware are arrays. NumPy computes anything
that depends on arrays alone at once; every other operation becomes a :class:`Node`. Types and values are NumPy's: each
node says which of NumPy's loops (bool, int64, float64) computes it.

A formula that needs the value of a symbol (``if``, ``len``, ``np.asarray``) or calls an unknown function raises
:class:`UntraceableError`; the caller then evaluates it with NumPy for each problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from tilewise.core._classes import Classes, Partitions

Dtype: TypeAlias = np.dtype[np.generic]
Array: TypeAlias = npt.NDArray[np.generic]

_BOOL, _INT, _FLOAT = np.dtype(bool), np.dtype(np.int64), np.dtype(np.float64)
_TYPES: dict[Dtype, str] = {_BOOL: "b", _INT: "i", _FLOAT: "f"}

# NumPy's functions that can be traced. With a suffix for the type they are the operations in core/bytecode.h.
_OPERATIONS: dict[np.ufunc, str] = {
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.true_divide: "div", np.floor_divide: "floordiv",
    np.remainder: "mod", np.gcd: "gcd", np.negative: "neg", np.minimum: "min", np.maximum: "max", np.ceil: "ceil",
    np.floor: "floor", np.log: "log", np.log2: "log2", np.bitwise_and: "and", np.bitwise_or: "or",
    np.bitwise_xor: "xor", np.invert: "not", np.logical_not: "not", np.equal: "eq", np.not_equal: "ne",
    np.less: "lt", np.less_equal: "le", np.greater: "gt", np.greater_equal: "ge",
}  # fmt: skip
_MIRRORED = {"gt": "lt", "ge": "le"}  # a > b is b < a
_SYMMETRIC = {"add", "mul", "eq", "ne", "and", "or", "xor"}


class UntraceableError(Exception):
    """A formula needs the value of a symbol, or a function that the core lacks."""


@dataclass(frozen=True)
class Node:
    """One operation, input or constant.

    Attributes:
        op: operation with its type, e.g. ``add_f``; ``input`` or ``const``.
        args: numbers of the operand nodes.
        kind: type of the result: ``b``, ``i`` or ``f``.
        classes: partition of the kernels that share a value; None if all kernels do.
        place: index of an input.
        constant: bytes of a constant, one value per class.
    """

    op: str
    args: tuple[int, ...]
    kind: str
    classes: Classes | None
    place: int = -1
    constant: bytes = b""


class Symbol(NDArrayOperatorsMixin):
    """A column of the problem, or a value computed from such columns."""

    __slots__ = ("node", "trace")

    def __init__(self, trace: Trace, node: int) -> None:
        self.trace, self.node = trace, node

    @property
    def dtype(self) -> Dtype:
        """The type that NumPy would give this array."""
        kind = self.trace.nodes[self.node].kind
        return next(dtype for dtype, name in _TYPES.items() if name == kind)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object) -> Symbol:
        if method != "__call__" or kwargs:
            raise UntraceableError(f"np.{ufunc.__name__}.{method} with {sorted(kwargs)}")
        return self.trace.call(ufunc, inputs)

    def __array_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> Symbol:
        if func not in _FUNCTIONS or kwargs:
            raise UntraceableError(f"np.{func.__name__}")
        return _FUNCTIONS[func](self.trace, *args)

    def astype(self, dtype: npt.DTypeLike) -> Symbol:
        """Return the value in another type, like :meth:`numpy.ndarray.astype`."""
        return self.trace.cast(self, np.dtype(dtype))

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise UntraceableError("a formula needs the value of a symbol, which is only known for a problem")

    __array__ = __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __getitem__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Text(Symbol):
    """A text column. Comparison with other texts for equality is its only operation."""

    __slots__ = ("codes",)

    def __init__(self, trace: Trace, node: int, codes: dict[str, int]) -> None:
        super().__init__(trace, node)
        self.codes = codes

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object) -> Symbol:
        if ufunc not in (np.equal, np.not_equal):
            raise UntraceableError(f"np.{ufunc.__name__} of a text")
        return super().__array_ufunc__(ufunc, method, *(self._coded(x) for x in inputs), **kwargs)

    def _coded(self, x: object) -> Symbol | Array:
        if isinstance(x, Symbol):
            return Symbol(self.trace, x.node)
        texts = np.asarray(x)
        codes = [self.codes.setdefault(text, len(self.codes)) for text in texts.reshape(-1).tolist()]
        return np.array(codes, dtype=np.int64).reshape(texts.shape)


class Trace:
    """The operations of the formulas run so far; equal operations are one node.

    Args:
        n_kernels: rows of the kernel columns that the formulas see.
    """

    def __init__(self, n_kernels: int) -> None:
        self.nodes: list[Node] = []
        self.partitions = Partitions(n_kernels)
        self._known: dict[tuple[object, ...], int] = {}

    def input(self, place: int) -> Symbol:
        """Return an int64 column of the problem."""
        return self._symbol(Node("input", (), "i", None, place))

    def text(self, place: int) -> Text:
        """Return a text column of the problem. Its input is the text's number in ``.codes``, or -1."""
        return Text(self, self.input(place).node, {})

    def call(self, ufunc: np.ufunc, inputs: Sequence[object]) -> Symbol:
        """Return the result of one call of a NumPy function."""
        if ufunc not in _OPERATIONS:
            raise UntraceableError(f"np.{ufunc.__name__}")
        operands = tuple(_operand_type(x) for x in inputs)
        *loop, result = ufunc.resolve_dtypes((*operands, None))
        if not set((*loop, result)) <= set(_TYPES):
            raise UntraceableError(f"np.{ufunc.__name__} of {operands}")
        args = [self.cast(x, dtype).node for x, dtype in zip(inputs, loop, strict=True)]
        return self._emit(_OPERATIONS[ufunc], _TYPES[loop[0]], tuple(args), _TYPES[result])

    def where(self, condition: object, a: object, b: object) -> Symbol:
        """Return `a` where the condition holds and `b` elsewhere, like :func:`numpy.where`."""
        dtype = np.result_type(_operand_type(a), _operand_type(b))
        chosen = self.cast(condition, _BOOL), self.cast(a, dtype), self.cast(b, dtype)
        return self._emit("where", "f", tuple(x.node for x in chosen), _TYPES[dtype])  # bits are copied, of any type

    def cast(self, x: object, dtype: Dtype) -> Symbol:
        """Return a value as a symbol of the given type."""
        if not isinstance(x, Symbol):
            return self._constant(np.asarray(x).astype(dtype))
        kinds = self.nodes[x.node].kind, _TYPES.get(dtype, "?")
        if kinds[0] == kinds[1] or kinds == ("b", "i"):  # a bool is 0 or 1
            return x if kinds[0] == kinds[1] else self._symbol(Node("same", (x.node,), "i", self._classes((x.node,))))
        if kinds == ("f", "i") or kinds[1] not in "if":
            raise UntraceableError(f"{kinds[0]} as {dtype}")
        return self._emit("float", "i", (x.node,), "f")

    def expand(self, node: int, classes: Classes) -> int:
        """Return the node with one value per class of a finer partition."""
        of = self.nodes[node].classes
        if of is None or of is classes:
            return node
        return self._symbol(Node("expand", (node,), self.nodes[node].kind, classes)).node

    def symbol(self, x: object) -> Symbol:
        """Return the result of a formula as a symbol."""
        if isinstance(x, Symbol):
            return x
        value = np.asarray(x)
        if value.dtype not in _TYPES:
            raise UntraceableError(f"a result of type {value.dtype}")
        return self._constant(value)

    def _emit(self, op: str, kind: str, args: tuple[int, ...], result: str) -> Symbol:
        classes = self._classes(args)
        if classes is not None:
            args = tuple(self.expand(a, classes) for a in args)
        if op in _MIRRORED:
            op, args = _MIRRORED[op], args[::-1]
        if op in _SYMMETRIC:
            args = tuple(sorted(args))
        return self._symbol(Node(op if op == "where" else f"{op}_{kind}", args, result, classes))

    def _classes(self, args: Sequence[int]) -> Classes | None:
        return self.partitions.product([c for c in (self.nodes[a].classes for a in args) if c is not None])

    def _constant(self, x: Array) -> Symbol:
        if x.size == 1:
            return self._symbol(Node("const", (), _TYPES[x.dtype], None, constant=x.reshape(-1).tobytes()))
        if x.shape != (self.partitions.n_kernels,):
            raise UntraceableError(f"an array of shape {x.shape} among {self.partitions.n_kernels} kernels")
        classes, values = self.partitions.of_values(x)
        if len(classes) == 1:
            return self._constant(values)
        return self._symbol(Node("const", (), _TYPES[x.dtype], classes, constant=values.tobytes()))

    def _symbol(self, node: Node) -> Symbol:
        classes = None if node.classes is None else node.classes.number
        key = (node.op, node.args, node.kind, classes, node.place, node.constant)
        number = self._known.setdefault(key, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return Symbol(self, number)


def _operand_type(x: object) -> Dtype | type[int] | type[float]:
    """Return the type by which NumPy promotes an operand: Python's numbers adapt to the other operand."""
    if type(x) is int or type(x) is float:
        return type(x)
    return x.dtype if isinstance(x, Symbol) else np.asarray(x).dtype


def _clip(trace: Trace, x: object, low: object, high: object) -> Symbol:
    return trace.call(np.minimum, (trace.call(np.maximum, (x, low)), high))


def _broadcast_to(trace: Trace, x: object, shape: Iterable[int]) -> Symbol:
    if tuple(shape) != (trace.partitions.n_kernels,):
        raise UntraceableError(f"broadcast to {shape}")
    return trace.symbol(x)


_FUNCTIONS: dict[Callable[..., object], Callable[..., Symbol]] = {
    np.where: Trace.where,
    np.clip: _clip,
    np.broadcast_to: _broadcast_to,
}
