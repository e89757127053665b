"""NumPy formulas as a list of steps: run once with symbols for what is not known yet, they leave what a C loop repeats.

The columns of a problem are :class:`Symbol` objects, those of kernels and hardware are arrays as ever. What depends on
arrays alone NumPy computes here and now; every other step becomes a :class:`Node`. Types and values are NumPy's own:
each step says which of its loops (bool, int64, float64) computes it.

A formula that asks a symbol for its value (``if``, ``len``, ``np.asarray``) or uses a function that is not known here
raises :class:`UntraceableError`: whoever traces then lets NumPy compute it, each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tilewise.core.classes import Classes, Partitions

_BOOL, _INT, _FLOAT = np.dtype(bool), np.dtype(np.int64), np.dtype(np.float64)
_TYPES = {_BOOL: "b", _INT: "i", _FLOAT: "f"}

# NumPy's functions that a step may be, by the types that they compute in; the names are those of core/program.h.
_STEPS: dict[np.ufunc, str] = {
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.true_divide: "div", np.floor_divide: "floordiv",
    np.remainder: "mod", np.gcd: "gcd", np.negative: "neg", np.minimum: "min", np.maximum: "max", np.ceil: "ceil",
    np.floor: "floor", np.log: "log", np.log2: "log2", np.bitwise_and: "and", np.bitwise_or: "or",
    np.bitwise_xor: "xor", np.invert: "not", np.logical_not: "not", np.equal: "eq", np.not_equal: "ne",
    np.less: "lt", np.less_equal: "le", np.greater: "gt", np.greater_equal: "ge",
}  # fmt: skip
_MIRRORED = {"gt": "lt", "ge": "le"}  # a > b is b < a
_SYMMETRIC = {"add", "mul", "eq", "ne", "and", "or", "xor"}


class UntraceableError(Exception):
    """A formula does with a symbol what only a value can do."""


@dataclass(frozen=True)
class Node:
    """One step.

    Attributes:
        op: what to compute, with its type, e.g. ``add_f``; ``input``, or ``const``.
        args: numbers of the nodes that it takes.
        kind: type of the result: ``b``, ``i`` or ``f``.
        classes: which of the pool's kernels share a value; None: all do.
        value: of a constant: one value for each class. Of an input: its place.
    """

    op: str
    args: tuple[int, ...]
    kind: str
    classes: Classes | None
    value: Any = None


class Symbol(NDArrayOperatorsMixin):
    """What a formula gets for a column of the problem, and what it makes of it."""

    __slots__ = ("node", "trace")

    def __init__(self, trace: Trace, node: int) -> None:
        self.trace, self.node = trace, node

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type that NumPy would give this array."""
        kind = self.trace.nodes[self.node].kind
        return next(dtype for dtype, name in _TYPES.items() if name == kind)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Symbol:
        if method != "__call__" or kwargs:
            raise UntraceableError(f"np.{ufunc.__name__}.{method} with {sorted(kwargs)}")
        return self.trace.step(ufunc, inputs)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func not in _FUNCTIONS or kwargs:
            raise UntraceableError(f"np.{func.__name__}")
        return _FUNCTIONS[func](self.trace, *args)

    def astype(self, dtype: Any) -> Symbol:
        """As :meth:`numpy.ndarray.astype`."""
        return self.trace.cast(self, np.dtype(dtype))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise UntraceableError("a formula asks for the value of what is not known yet")

    __array__ = __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __getitem__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Text(Symbol):
    """A text column: equal to a text or not, that is all that can be asked."""

    __slots__ = ("codes",)

    def __init__(self, trace: Trace, node: int, codes: dict[str, int]) -> None:
        super().__init__(trace, node)
        self.codes = codes

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Symbol:
        if ufunc not in (np.equal, np.not_equal):
            raise UntraceableError(f"np.{ufunc.__name__} of a text")
        return super().__array_ufunc__(ufunc, method, *(self._coded(x) for x in inputs), **kwargs)

    def _coded(self, x: Any) -> Any:
        if isinstance(x, Symbol):
            return Symbol(self.trace, x.node)
        texts = np.asarray(x)
        codes = [self.codes.setdefault(text, len(self.codes)) for text in texts.reshape(-1).tolist()]
        return np.array(codes, dtype=np.int64).reshape(texts.shape)


class Trace:
    """The steps of formulas, as they are run; a step that was there before is the same one.

    Args:
        n_kernels: rows of the kernel columns that formulas see.
    """

    def __init__(self, n_kernels: int) -> None:
        self.nodes: list[Node] = []
        self.partitions = Partitions(n_kernels)
        self._known: dict[Any, int] = {}

    def input(self, place: int) -> Symbol:
        """An int64 column of the problem."""
        return self._symbol(Node("input", (), "i", None, place))

    def text(self, place: int) -> Text:
        """A text column of the problem, given as the code that ``.codes`` has for it, -1 for others."""
        return Text(self, self.input(place).node, {})

    def step(self, ufunc: np.ufunc, inputs: Sequence[Any]) -> Symbol:
        """One call of a NumPy function."""
        if ufunc not in _STEPS:
            raise UntraceableError(f"np.{ufunc.__name__}")
        asked = tuple(type(x) if type(x) in (int, float) else self._dtype(x) for x in inputs)
        *loop, result = ufunc.resolve_dtypes((*asked, None))
        if not set((*loop, result)) <= set(_TYPES):
            raise UntraceableError(f"np.{ufunc.__name__} of {asked}")
        args = [self.cast(x, dtype).node for x, dtype in zip(inputs, loop, strict=True)]
        return self._emit(_STEPS[ufunc], _TYPES[loop[0]], tuple(args), _TYPES[result])

    def where(self, condition: Any, a: Any, b: Any) -> Symbol:
        """As :func:`numpy.where`."""
        dtype = np.result_type(*(x if type(x) in (int, float) else self._dtype(x) for x in (a, b)))
        chosen = self.cast(condition, _BOOL), self.cast(a, dtype), self.cast(b, dtype)
        return self._emit("where", "f", tuple(x.node for x in chosen), _TYPES[dtype])  # bits are copied, of any type

    def cast(self, x: Any, dtype: np.dtype[Any]) -> Symbol:
        """The value as a symbol of another type."""
        if not isinstance(x, Symbol):
            return self._constant(np.asarray(x).astype(dtype))
        kinds = self.nodes[x.node].kind, _TYPES.get(dtype, "?")
        if kinds[0] == kinds[1] or kinds == ("b", "i"):  # a bool is 0 or 1
            return x if kinds[0] == kinds[1] else self._symbol(Node("same", (x.node,), "i", self._classes((x.node,))))
        if kinds == ("f", "i") or kinds[1] not in "if":
            raise UntraceableError(f"{kinds[0]} as {dtype}")
        return self._emit("float", "i", (x.node,), "f")

    def expand(self, node: int, classes: Classes) -> int:
        """The node with a value for each class of a finer partition."""
        of = self.nodes[node].classes
        if of is None or of is classes:
            return node
        return self._symbol(Node("expand", (node,), self.nodes[node].kind, classes)).node

    def _dtype(self, x: Any) -> np.dtype[Any]:
        return x.dtype if isinstance(x, Symbol) else np.asarray(x).dtype

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

    def _constant(self, x: np.ndarray) -> Symbol:
        if x.size == 1:
            return self._symbol(Node("const", (), _TYPES[x.dtype], None, x.reshape(-1).tobytes()))
        if x.shape != (self.partitions.n_kernels,):
            raise UntraceableError(f"an array of shape {x.shape} among {self.partitions.n_kernels} kernels")
        classes, values = self.partitions.of_values(x)
        if len(classes) == 1:
            return self._constant(values)
        return self._symbol(Node("const", (), _TYPES[x.dtype], classes, values.tobytes()))

    def _symbol(self, node: Node) -> Symbol:
        key = (node.op, node.args, node.kind, None if node.classes is None else node.classes.number, node.value)
        number = self._known.setdefault(key, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return Symbol(self, number)

    def symbol(self, x: Any) -> Symbol:
        """What a formula gave, as a symbol."""
        if isinstance(x, Symbol):
            return x
        value = np.asarray(x)
        if value.dtype not in _TYPES:
            raise UntraceableError(f"a result of type {value.dtype}")
        return self._constant(value)


def _clip(trace: Trace, x: Any, low: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


def _broadcast_to(trace: Trace, x: Any, shape: Any) -> Any:
    if tuple(shape) != (trace.partitions.n_kernels,):
        raise UntraceableError(f"broadcast to {shape}")
    return x


_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.where: Trace.where,
    np.clip: _clip,
    np.broadcast_to: _broadcast_to,
}
