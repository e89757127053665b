"""A traced formula gives NumPy's results bit for bit, or raises an error."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.compiled import computed, forest, needs_core, stumps
from tilewise.core import Text, Trace, UntraceableError, compiled_core

SIZES = st.one_of(st.integers(-40, 40), st.integers(-(2**62), 2**62))
TILES = np.array([1, 16, 16, 64, -3, 0, 64, 128, 5])
SHARES = np.array([0.5, -1.5, 0.0, 3.0, 3.0, 1e300, 0.25, 0.25, -0.0])

_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {name: getattr(operator, name) for name in _OPERATORS} | {
    "gcd": np.gcd,
    "minimum": np.minimum,
    "maximum": np.maximum,
}


def numpys(formula: Callable[[Any], Any], values: dict[str, int]) -> np.ndarray:
    with np.errstate(all="ignore"):
        result = formula({name: np.array([value]) for name, value in values.items()})
        return np.broadcast_to(np.asarray(result, dtype=np.float64), len(TILES))


@needs_core
@pytest.mark.parametrize("name", BINARY)
@given(m=SIZES)
@settings(max_examples=15)
def test_two_operands_of_either_side(name: str, m: int) -> None:
    op = BINARY[name]
    for formula in (lambda v: op(v["m"], TILES), lambda v: op(TILES, v["m"])):
        expected = numpys(formula, {"m": m})
        assert computed(formula, {"m": m}, len(TILES)).tobytes() == expected.tobytes()


@needs_core
@given(m=st.integers(-(2**40), 2**40), n=st.integers(1, 2**20))
@settings(max_examples=40)
def test_whole_formulas(m: int, n: int) -> None:
    def formula(v: Any) -> Any:
        tiles = -(-v["m"] // np.where(TILES > 0, TILES, 1))
        share = v["m"] / (tiles * v["n"]) * SHARES
        flags = (v["m"] % 8 == 0) & (TILES > 5) | ~(tiles > v["n"])
        picked = np.where(flags, np.clip(share, -2.0, 7.5), np.ceil(share) - np.floor(v["n"] / 3))
        logs = np.log2(np.maximum(v["n"] * 1.0, 2.0**-60)) + np.log(np.maximum(tiles, 2.0**-60))
        return picked + logs * np.minimum(v["m"] & -v["m"], 16) + 4 * flags + np.logical_not(flags)

    assert computed(formula, {"m": m, "n": n}, len(TILES)).tobytes() == numpys(formula, {"m": m, "n": n}).tobytes()


@needs_core
def test_integers_beyond_int64_raise_an_overflow_error() -> None:
    with pytest.raises(OverflowError, match="does not fit int64"):
        computed(lambda v: v["m"] * v["m"], {"m": 2**40}, 3)


def test_equal_operations_are_one_node_and_equal_kernels_share_a_value() -> None:
    trace = Trace(len(TILES))
    m = trace.input(0)
    first, second = m // TILES + SHARES, SHARES + m // TILES
    assert first.node == second.node
    quotient = trace.nodes[(m // TILES).node]
    assert quotient.classes is not None
    assert len(quotient.classes) == len(set(TILES.tolist()))


@pytest.mark.parametrize(
    "formula",
    [
        lambda m: 1 if m > 3 else 0,
        lambda m: max(m, 3),
        lambda m: int(m),
        lambda m: list(m),
        lambda m: np.asarray(m),
        lambda m: np.sort(m),
        lambda m: np.add.reduce(m),
        lambda m: np.sin(m),
        lambda m: m[0],
        lambda m: m + np.arange(3),
        lambda m: m.astype(np.float32),
    ],
)
def test_a_formula_that_asks_for_a_value_cannot_be_traced(formula: Callable[[Any], Any]) -> None:
    with pytest.raises(UntraceableError):
        formula(Trace(len(TILES)).input(0))


def test_texts_are_equal_or_not() -> None:
    trace = Trace(3)
    text = trace.text(0)
    assert isinstance(text, Text)
    for comparison in (text == "rcr", text != np.array(["rcr", "", "ccr"])):
        assert comparison.dtype == bool
    assert text.codes == {"rcr": 0, "": 1, "ccr": 2}
    with pytest.raises(UntraceableError, match="of a text"):
        text < "rcr"  # noqa: B015


@needs_core
def test_an_instruction_that_reads_beyond_its_slots_is_refused() -> None:
    """Unary float_i and ceil_f read four values from the last of five slots, although `vectors` says one."""
    core, none = compiled_core(), np.empty((0, 2), dtype=np.int32)
    assert core is not None
    for op in (33, 25):
        steps = np.array([op, 1, 4, 4, 4, 4, 0], dtype=np.int32)
        program = (0, 5, np.zeros(1), steps, np.empty(0, np.int32))
        features = np.array([[0, -1]], dtype=np.int32)
        parts: tuple[Any, ...] = (
            [],
            none,
            features,
            none,
            none,
            none,
            none,
            forest(stumps(1)),
            None,
            None,
            0,
            np.log,
            np.log2,
        )
        with pytest.raises(ValueError, match="bytecode: its arrays are inconsistent or exceed the limits of the core"):
            core.Ranker(1, program, *parts)
