"""Filters: expressions over a kernel ``c``, such as ``c.tile_n >= 128 and c.pipeline == 'compv5'``, evaluated safely.

The text is parsed, never executed. It may hold comparisons, ``and``, ``or``, ``not``, ``in``, arithmetic on numbers,
constants and attributes of ``c``. Its length and depth are bounded, so that any filter ends quickly.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from tilewise.expressions import ARITHMETIC, COMPARISONS, Grammar, parse

Filter = Callable[[Mapping[str, object]], bool]

_GRAMMAR = Grammar("filter", "filters", (), subject="c")


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
    tree = parse(text, replace(_GRAMMAR, names=known))

    def passes(fields: Mapping[str, object]) -> bool:
        return _truth(tree, _value(tree, fields))

    return passes


def _value(node: ast.expr, fields: Mapping[str, object]) -> object:
    match node:
        case ast.Constant():
            return node.value
        case ast.Attribute():
            if node.attr not in fields:
                raise _GRAMMAR.error(node, f"{fields.get('name', 'this kernel')} has no {node.attr!r}")
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
            return _try(node, partial(ARITHMETIC[type(node.op)], left, right))
        case ast.Compare():
            return _compare(node, fields)
        case _:
            raise _GRAMMAR.error(node, f"{type(node).__name__} is not allowed in filters")


def _compare(node: ast.Compare, fields: Mapping[str, object]) -> bool:
    left = _value(node.left, fields)
    for op, side in zip(node.ops, node.comparators, strict=True):
        right = _value(side, fields)
        if not _try(node, partial(COMPARISONS[type(op)], left, right)):
            return False
        left = right
    return True


def _truth(node: ast.expr, value: object) -> bool:
    if not isinstance(value, bool):
        raise _GRAMMAR.error(node, f"expected true or false, got {value!r}; compare it with a value")
    return value


def _number(node: ast.expr, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _GRAMMAR.error(node, f"arithmetic needs numbers, got {value!r}")
    return value


def _try(node: ast.expr, compute: Callable[[], object]) -> object:
    try:
        return compute()
    except (TypeError, ZeroDivisionError, OverflowError) as e:
        raise _GRAMMAR.error(node, str(e)) from e
