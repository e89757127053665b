"""Expressions that users write: parsed and checked, never executed as Python.

A :class:`Grammar` states the names, functions and operations that one kind of expression may use. :func:`parse` checks
a text against it; length and depth are bounded, so that any expression ends quickly. :class:`Formula` evaluates an
expression over columns: numbers, NumPy arrays, or the symbols of :mod:`tilewise.core`. Filters of kernels
(:func:`tilewise.kernels.parse_filter`) have the same parser and grammar, and an evaluation of their own.
"""

from __future__ import annotations

import ast
import difflib
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import numpy as np

from tilewise.errors import ConfigError

MAX_LENGTH = 2000  # characters
MAX_DEPTH = 40  # of nested operations

Value = Any  # a number, a text, an array of shape (rows,), or a symbol of tilewise.core

COMPARISONS: dict[type[ast.cmpop], Callable[[Value, Value], Value]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
ARITHMETIC: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _cdiv(a: Value, b: Value) -> Value:
    return -(-a // b)


# Function -> (fewest arguments, most, what computes it).
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Value]]] = {
    "cdiv": (2, 2, _cdiv),
    "min": (2, 8, lambda *values: reduce(np.minimum, values)),
    "max": (2, 8, lambda *values: reduce(np.maximum, values)),
    "log2": (1, 1, np.log2),
    "ceil": (1, 1, np.ceil),
    "floor": (1, 1, np.floor),
    "gcd": (2, 2, np.gcd),
}
FUNCTIONS = tuple(_FUNCTIONS)


@dataclass(frozen=True)
class Grammar:
    """The rules of one kind of expression.

    Attributes:
        label: the kind, at the beginning of messages, e.g. ``filter``.
        kind: its plural in messages, e.g. ``filters``.
        names: the names that may occur; attributes of `subject` where there is one.
        subject: the only object that has attributes, e.g. ``c``; "" if names stand alone.
        functions: the functions that may be called.
    """

    label: str
    kind: str
    names: Collection[str]
    subject: str = ""
    functions: Collection[str] = ()

    def error(self, node: ast.AST, message: str) -> ConfigError:
        """Return an error that names the place of a node."""
        column = getattr(node, "col_offset", 0) + 1
        line = getattr(node, "lineno", 1)
        where = f"column {column}" if line == 1 else f"line {line}, column {column}"
        return ConfigError(f"{self.label}: {where}: {message}")


def parse(text: str, grammar: Grammar) -> ast.expr:
    """Parse and check an expression.

    Raises:
        ConfigError: the text does not parse, or contains something that the grammar lacks; the message names the place.
    """
    if len(text) > MAX_LENGTH:
        raise ConfigError(f"{grammar.label}: {len(text)} characters, at most {MAX_LENGTH} are allowed")
    try:
        with warnings.catch_warnings(action="ignore"):  # about odd escapes in texts
            tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as e:
        raise ConfigError(f"{grammar.label}: {e.msg} at column {e.offset}: {text!r}") from e
    except (ValueError, MemoryError, RecursionError) as e:
        raise ConfigError(f"{grammar.label}: cannot be read: {e or 'nested too deeply'}") from e
    _check(tree, grammar)
    return tree


def _check(tree: ast.expr, grammar: Grammar) -> None:
    """Check every node of the expression, without recursion."""
    waiting: list[tuple[ast.AST, int]] = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise grammar.error(node, f"nested more than {MAX_DEPTH} deep")
        if isinstance(node, ast.Call) and grammar.functions:
            _check_call(node, grammar)
            waiting += [(argument, depth + 1) for argument in node.args]
            continue
        _check_node(node, grammar)
        if not isinstance(node, ast.Attribute):
            waiting += [(child, depth + 1) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]


def _check_call(node: ast.Call, grammar: Grammar) -> None:
    if not isinstance(node.func, ast.Name) or node.func.id not in grammar.functions:
        raise grammar.error(node, f"only these functions are known: {', '.join(sorted(grammar.functions))}")
    least, most, _ = _FUNCTIONS[node.func.id]
    if node.keywords or not least <= len(node.args) <= most:
        count = str(least) if least == most else f"{least} to {most}"
        raise grammar.error(node, f"{node.func.id} takes {count} arguments, got {len(node.args) + len(node.keywords)}")


def _check_node(node: ast.AST, grammar: Grammar) -> None:
    if isinstance(node, ast.Attribute | ast.Name):
        _check_name(node, grammar)
    elif isinstance(node, ast.Constant):
        if not isinstance(node.value, bool | int | float | str):
            raise grammar.error(node, f"a constant must be a number, a text, True or False, got {node.value!r}")
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Invert):
            raise grammar.error(node, f"~ is not allowed in {grammar.kind}")
    elif isinstance(node, ast.BinOp):
        if type(node.op) not in ARITHMETIC:
            raise grammar.error(node, f"{type(node.op).__name__} is not allowed in {grammar.kind}; use + - * / // %")
    elif isinstance(node, ast.Compare):
        if any(type(op) not in COMPARISONS for op in node.ops):
            raise grammar.error(node, f"'is' is not allowed in {grammar.kind}; use == or !=")
    elif not isinstance(node, ast.BoolOp | ast.Tuple | ast.List | ast.Set):
        raise grammar.error(node, f"{type(node).__name__} is not allowed in {grammar.kind}")


def _check_name(node: ast.Attribute | ast.Name, grammar: Grammar) -> None:
    subject = grammar.subject
    if isinstance(node, ast.Name):
        if subject:
            raise grammar.error(node, f"{node.id!r} is unknown; use attributes of {subject}, such as {subject}.tile_m")
        name, owner = node.id, ""
    elif subject and isinstance(node.value, ast.Name) and node.value.id == subject:
        name, owner = node.attr, f"{subject} has no "
    else:
        raise grammar.error(node, f"only {subject} has attributes" if subject else "nothing here has attributes")
    if name not in grammar.names:
        near = difflib.get_close_matches(name, grammar.names, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(grammar.names))}"
        message = f"{owner}{name!r}; {remedy}" if owner else f"{name!r} is unknown; {remedy}"
        raise grammar.error(node, message)


@dataclass(frozen=True)
class Formula:
    """An expression over columns, such as ``2*M*N*K`` or ``cdiv(M, BLOCK_M)``.

    It takes arithmetic (``+ - * / // %``), comparisons, ``and``, ``or``, ``not``, ``in`` with a list of constants, and
    the functions cdiv, min, max, log2, ceil, floor and gcd.

    Attributes:
        text: the expression.
        known: the names that may occur.
        label: begins messages, e.g. ``flops of my_matmul``.

    Raises:
        ConfigError: the expression is malformed; names its place and the known names.
    """

    text: str
    known: tuple[str, ...]
    label: str = field(default="expression", compare=False)

    def __post_init__(self) -> None:
        _ = self._tree

    @cached_property
    def _grammar(self) -> Grammar:
        return Grammar(f"{self.label}: {self.text!r}", "expressions", self.known, functions=FUNCTIONS)

    @cached_property
    def _tree(self) -> ast.expr:
        return parse(self.text, self._grammar)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that occur."""
        return frozenset(n.id for n in ast.walk(self._tree) if isinstance(n, ast.Name)) - set(FUNCTIONS)

    def __call__(self, columns: Mapping[str, Value]) -> Value:
        """Evaluate the expression; the result broadcasts like its columns.

        Raises:
            ConfigError: an operation does not fit its operands, e.g. arithmetic with a text.
        """
        with np.errstate(all="ignore"):
            return self._value(self._tree, columns)

    def _value(self, node: ast.expr, columns: Mapping[str, Value]) -> Value:
        try:
            return self._computed(node, columns)
        except TypeError as e:
            raise self._grammar.error(node, f"{ast.unparse(node):.80} does not fit the kinds of its columns") from e
        except (ZeroDivisionError, OverflowError) as e:
            raise self._grammar.error(node, str(e)) from e

    def _computed(self, node: ast.expr, columns: Mapping[str, Value]) -> Value:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return columns[node.id]
            case ast.BoolOp():
                combine = operator.or_ if isinstance(node.op, ast.Or) else operator.and_
                return reduce(combine, (self._truth(part, columns) for part in node.values))
            case ast.UnaryOp():
                if isinstance(node.op, ast.Not):
                    return np.logical_not(self._truth(node.operand, columns))
                operand = self._value(node.operand, columns)
                return -operand if isinstance(node.op, ast.USub) else operand
            case ast.BinOp():
                left, right = (self._value(side, columns) for side in (node.left, node.right))
                return ARITHMETIC[type(node.op)](left, right)
            case ast.Compare():
                return self._compared(node, columns)
            case ast.Call(func=ast.Name(id=name)):
                return _FUNCTIONS[name][2](*(self._value(argument, columns) for argument in node.args))
        raise self._grammar.error(node, "a list may only follow 'in'")

    def _compared(self, node: ast.Compare, columns: Mapping[str, Value]) -> Value:
        left, results = self._value(node.left, columns), []
        for op, side in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                if not isinstance(side, ast.Tuple | ast.List | ast.Set) or not side.elts:
                    raise self._grammar.error(side, "'in' needs a list of values, such as (64, 128)")
                found = reduce(operator.or_, (left == self._value(item, columns) for item in side.elts))
                results.append(np.logical_not(found) if isinstance(op, ast.NotIn) else found)
            else:
                right = self._value(side, columns)
                results.append(COMPARISONS[type(op)](left, right))
                left = right
        return reduce(operator.and_, results)

    def _truth(self, node: ast.expr, columns: Mapping[str, Value]) -> Value:
        value = self._value(node, columns)
        if not isinstance(value, bool) and getattr(value, "dtype", None) != np.dtype(bool):
            raise self._grammar.error(node, "expected true or false; compare the value with another")
        return value
