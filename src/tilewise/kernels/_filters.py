"""Filters: expressions over a kernel ``c``, such as ``c.tile_n >= 128 and c.pipeline == 'compv5'``, evaluated safely.

The text is parsed, never executed. It may hold comparisons, ``and``, ``or``, ``not``, ``in``, arithmetic on numbers,
constants and attributes of ``c``. Its length and depth are bounded, so that any filter ends quickly.
"""

from __future__ import annotations

import ast
import difflib
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from tilewise.errors import ConfigError

MAX_LENGTH = 2000  # characters
MAX_DEPTH = 40  # of nested operations

Filter = Callable[[Mapping[str, object]], bool]

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def parse_filter(text: str, known: Collection[str]) -> Filter:
    """Compile a filter expression.

    Args:
        text: the expression.
        known: the attributes of ``c``.

    Returns:
        A function that takes the attributes of one kernel and returns whether it passes. It raises ConfigError if the
        expression makes no sense for that kernel: a text compared with a number, or an attribute that it lacks.

    Raises:
        ConfigError: the expression does not parse, or contains something that filters do not allow; the message names
            the place.
    """
    if len(text) > MAX_LENGTH:
        raise ConfigError(f"filter: {len(text)} characters, at most {MAX_LENGTH} are allowed")
    try:
        with warnings.catch_warnings(action="ignore"):  # about odd escapes in texts
            tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as e:
        raise ConfigError(f"filter: {e.msg} at column {e.offset}: {text!r}") from e
    except (ValueError, MemoryError, RecursionError) as e:
        raise ConfigError(f"filter: cannot be read: {e or 'nested too deeply'}") from e
    _check(tree, known)

    def passes(fields: Mapping[str, object]) -> bool:
        return _truth(tree, _value(tree, fields))

    return passes


def _check(tree: ast.expr, known: Collection[str]) -> None:
    """Check every node of the expression, without recursion."""
    waiting: list[tuple[ast.AST, int]] = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise _error(node, f"nested more than {MAX_DEPTH} deep")
        _check_node(node, known)
        if not isinstance(node, ast.Attribute):
            waiting += [(child, depth + 1) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]


def _check_node(node: ast.AST, known: Collection[str]) -> None:
    if isinstance(node, ast.Attribute):
        if not (isinstance(node.value, ast.Name) and node.value.id == "c"):
            raise _error(node, "only c has attributes")
        if node.attr not in known:
            near = difflib.get_close_matches(node.attr, known, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            raise _error(node, f"c has no {node.attr!r}; {remedy}")
    elif isinstance(node, ast.Constant):
        if not isinstance(node.value, bool | int | float | str):
            raise _error(node, f"a constant must be a number, a text, True or False, got {node.value!r}")
    elif isinstance(node, ast.Name):
        raise _error(node, f"{node.id!r} is unknown; use attributes of c, such as c.tile_m")
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Invert):
            raise _error(node, "~ is not allowed in filters")
    elif isinstance(node, ast.BinOp):
        if type(node.op) not in _ARITHMETIC:
            raise _error(node, f"{type(node.op).__name__} is not allowed in filters; use + - * / // %")
    elif isinstance(node, ast.Compare):
        if any(type(op) not in _COMPARE for op in node.ops):
            raise _error(node, "'is' is not allowed in filters; use == or !=")
    elif not isinstance(node, ast.BoolOp | ast.Tuple | ast.List | ast.Set):
        raise _error(node, f"{type(node).__name__} is not allowed in filters")


def _value(node: ast.expr, fields: Mapping[str, object]) -> object:
    match node:
        case ast.Constant():
            return node.value
        case ast.Attribute():
            if node.attr not in fields:
                raise _error(node, f"{fields.get('name', 'this kernel')} has no {node.attr!r}")
            return fields[node.attr]
        case ast.Tuple() | ast.List() | ast.Set():
            return tuple(_value(item, fields) for item in node.elts)
        case ast.BoolOp():
            wanted = isinstance(node.op, ast.Or)
            return any(_truth(part, _value(part, fields)) == wanted for part in node.values) == wanted
        case ast.UnaryOp():
            operand = _value(node.operand, fields)
            if isinstance(node.op, ast.Not):
                return not _truth(node.operand, operand)
            return -_number(node.operand, operand) if isinstance(node.op, ast.USub) else _number(node.operand, operand)
        case ast.BinOp():
            left, right = (_number(side, _value(side, fields)) for side in (node.left, node.right))
            return _try(node, partial(_ARITHMETIC[type(node.op)], left, right))
        case ast.Compare():
            return _compare(node, fields)
        case _:
            raise _error(node, f"{type(node).__name__} is not allowed in filters")


def _compare(node: ast.Compare, fields: Mapping[str, object]) -> bool:
    left = _value(node.left, fields)
    for op, side in zip(node.ops, node.comparators, strict=True):
        right = _value(side, fields)
        if not _try(node, partial(_COMPARE[type(op)], left, right)):
            return False
        left = right
    return True


def _truth(node: ast.expr, value: object) -> bool:
    if not isinstance(value, bool):
        raise _error(node, f"expected true or false, got {value!r}; compare it with a value")
    return value


def _number(node: ast.expr, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _error(node, f"arithmetic needs numbers, got {value!r}")
    return value


def _try(node: ast.expr, compute: Callable[[], object]) -> object:
    try:
        return compute()
    except (TypeError, ZeroDivisionError, OverflowError) as e:
        raise _error(node, str(e)) from e


def _error(node: ast.AST, message: str) -> ConfigError:
    column = getattr(node, "col_offset", 0) + 1
    line = getattr(node, "lineno", 1)
    where = f"column {column}" if line == 1 else f"line {line}, column {column}"
    return ConfigError(f"filter: {where}: {message}")
