"""Expressions of columns: their meaning is Python's, and nothing else is ever evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewise.core import Trace
from tilewise.errors import ConfigError
from tilewise.expressions import Formula

NAMES = ("M", "N", "BLOCK_M", "mode")
COLUMNS: dict[str, Any] = {
    "M": np.array([1, 100, 4096]),
    "N": np.array([7, 64, 8]),
    "BLOCK_M": np.array([64, 64, 128]),
    "mode": np.array(["a", "b", "a"]),
}
FUNCTIONS: dict[str, Any] = {
    "cdiv": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
    "log2": lambda a: float(np.log2(a)),
    "ceil": lambda a: float(np.ceil(a)),
    "floor": lambda a: float(np.floor(a)),
    "gcd": lambda a, b: int(np.gcd(a, b)),
}
TEXTS = (
    "2*M*N",
    "(M + N) % 5 - M // 3",
    "-M / N",
    "cdiv(M, BLOCK_M) * N",
    "min(M, N, 50) + max(M, BLOCK_M)",
    "log2(M) + ceil(M / N) + floor(N / 3)",
    "gcd(M, 64)",
    "BLOCK_M <= M",
    "1 < M <= 4096 and not N == 8",
    "M in (1, 100) or N not in [7, 8]",
    "mode == 'a'",
    "mode != 'a' or M > 2",
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_formula_means_what_python_means_in_each_row(text: str) -> None:
    values = Formula(text, NAMES)(COLUMNS)
    for i in range(3):
        row = {name: column[i].item() for name, column in COLUMNS.items()}
        expected = eval(text, FUNCTIONS, row)  # the reference, on our own texts
        assert values[i] == expected
        assert Formula(text, NAMES)(row) == expected, "one problem's values, without arrays"


@pytest.mark.parametrize("text", [text for text in TEXTS if "mode" not in text])
def test_the_native_core_can_trace_a_formula(text: str) -> None:
    trace = Trace(3)
    columns = {"M": trace.input(0), "N": trace.input(1), "BLOCK_M": COLUMNS["BLOCK_M"]}
    assert trace.symbol(Formula(text, NAMES)(columns)).dtype == Formula(text, NAMES)(COLUMNS).dtype


def test_a_formula_knows_the_columns_it_reads() -> None:
    assert Formula("cdiv(M, BLOCK_M) + max(M, 3)", NAMES).names == {"M", "BLOCK_M"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2*K", "flops: '2[*]K': column 3: 'K' is unknown; known are BLOCK_M, M, N, mode"),
        ("BLOCK_N", "column 1: 'BLOCK_N' is unknown; did you mean 'BLOCK_M'"),
        ("2 * (M", "at column"),
        ("", "at column|invalid syntax"),
        ("M ** 9 ** 9", "Pow is not allowed in expressions; use [+]"),
        ("M.real", "nothing here has attributes"),
        ("__import__('os')", "only these functions are known: cdiv, ceil"),
        ("M.__class__()", "only these functions are known"),
        ("(lambda: 1)()", "only these functions are known"),
        ("cdiv(M)", "cdiv takes 2 arguments, got 1"),
        ("cdiv(a=M, b=N)", "cdiv takes 2 arguments"),
        ("max(*M)", "max takes 2 to 8 arguments, got 1|Starred"),
        ("[M for M in (1,)]", "ListComp is not allowed"),
        ("M if N else 1", "IfExp is not allowed"),
        ("M[0]", "Subscript is not allowed"),
        ("M is N", "'is' is not allowed"),
        ("+".join("M" * 1001), "2001 characters, at most 2000"),
        ("-" * 60 + "M", "nested more than 40 deep"),
    ],
)
def test_a_malformed_formula_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Formula(text, NAMES, "flops")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mode + 1", "column 1: mode [+] 1 does not fit the kinds of its columns"),
        ("M and N", "column 1: expected true or false"),
        ("(1, 2)", "a list may only follow 'in'"),
        ("M in N", "'in' needs a list of values"),
    ],
)
def test_operations_must_fit_their_columns(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Formula(text, NAMES)(COLUMNS)


def test_a_division_by_zero_is_named_for_one_problem() -> None:
    with pytest.raises(ConfigError, match=r"column 1: .*by zero"):
        Formula("M // N", NAMES)({"M": 1, "N": 0})
