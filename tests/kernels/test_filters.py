"""Filters: their meaning, and that only filters are ever evaluated."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.errors import ConfigError
from tilewise.kernels import parse_filter

FIELDS: dict[str, Any] = {"tile_m": 64, "tile_n": 128, "pipeline": "compv5", "persistent": False, "name": "k"}


def passes(text: str) -> bool:
    return parse_filter(text, FIELDS)(FIELDS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c.tile_n >= 128 and c.pipeline == 'compv5'", True),
        ("c.tile_n > 128 or not c.persistent", True),
        ("c.pipeline in ('mem', 'compv3')", False),
        ("c.pipeline not in ['mem', 'compv3']", True),
        ("c.tile_m in {64}", True),
        ("'comp' in c.pipeline", True),
        ("32 < c.tile_m <= 64 < c.tile_n", True),
        ("c.tile_m * 2 == c.tile_n", True),
        ("-c.tile_m + c.tile_n - 64 == 0", True),
        ("c.tile_n / 3 > 42.5 and c.tile_n // 3 == 42 and c.tile_n % 3 == 2", True),
        ("c.persistent", False),
        ("c.persistent == False", True),
        (" (c.tile_m\n== 64) ", True),
        ("False and c.tile_m < 'a'", False),  # as in Python, the rest is not evaluated
        ("c.pipeline != 'compv5' and c.pipeline < 1", False),
    ],
)
def test_a_filter_means_what_python_means(text: str, expected: bool) -> None:
    assert passes(text) is expected
    assert bool(eval(text.strip(), {"c": SimpleNamespace(**FIELDS)})) is expected  # the reference, on our own texts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "filter: .*invalid syntax|filter: .* at column"),
        ("c.tile_m >=", "invalid syntax at column"),
        ("c.tile_m = 3", "at column"),
        ("c.tile_mm == 3", "column 1: c has no 'tile_mm'; did you mean 'tile_m'"),
        ("1 == c.q", "column 6: c has no 'q'; known are name, persistent"),
        ("c.__class__ == 1", "c has no '__class__'"),
        ("c.name.upper() == 'K'", "Call is not allowed in filters"),
        ("c.name.x == 1", "only c has attributes"),
        ("tile_m == 1", "'tile_m' is unknown; use attributes of c"),
        ("__import__('os').system('true')", "Call is not allowed in filters"),
        ("(lambda: True)()", "Call is not allowed in filters"),
        ("[x for x in (1,)] == 1", "ListComp is not allowed in filters"),
        ("c.tile_m if True else False", "IfExp is not allowed in filters"),
        ("c.tile_m ** 9 ** 9 > 1", "Pow is not allowed in filters; use [+] - [*] / // %"),
        ("1 << 10**9 > 1", "LShift is not allowed in filters|Pow is not allowed in filters"),
        ("~c.tile_m == 1", "~ is not allowed in filters"),
        ("c.tile_m is 64", "'is' is not allowed in filters"),
        ("f'{c.tile_m}' == '64'", "JoinedStr is not allowed in filters"),
        ("c.name[0] == 'k'", "Subscript is not allowed in filters"),
        ("(c.tile_m := 3) == 3", "at column|NamedExpr is not allowed in filters"),
        ("{1: 2} == 1", "Dict is not allowed in filters"),
        ("[*c.name] == 1", "Starred is not allowed in filters"),
        ("c.tile_m == None", "a constant must be a number, a text, True or False, got None"),
        ("b'x' == 1", "a constant must be"),
        ("'a' * 999999999 == 1", "arithmetic needs numbers, got 'a'"),
        ("c.persistent + 1 == 1", "arithmetic needs numbers, got False"),
        ("c.tile_m", "column 1: expected true or false, got 64; compare it with a value"),
        ("c.tile_m and True", "expected true or false, got 64"),
        ("c.tile_m < 'a'", "column 1: '<' not supported"),
        ("c.tile_m / (c.tile_n - 128) > 1", "division by zero"),
        ("c.tile_m in 3", "not iterable|is not a container"),
        ("not " * 100 + "True", "nested more than 40 deep"),
        ("(" * 300 + "1" + ")" * 300, "filter: "),
        ("c.tile_m == 1 or " * 200 + "True", "3404 characters, at most 2000"),
        ("c.tile_m == \0", "filter: "),
        ("True\nTrue", "at column"),
    ],
)
def test_anything_else_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        passes(text)


def test_a_second_line_is_named() -> None:
    with pytest.raises(ConfigError, match="line 2, column 5: c has no 'q'"):
        passes("(c.tile_m == 1\nand c.q == 1)")


def test_a_kernel_may_lack_what_others_have() -> None:
    shared = parse_filter("c.tile_m == 64", FIELDS)
    with pytest.raises(ConfigError, match="depth has no 'tile_m'"):
        shared({"name": "depth"})


@given(st.text(alphabet="c.tile_mn0123456789<>=()[]'\" andornti+-*/%", max_size=60))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    with suppress(ConfigError):
        assert isinstance(passes(text), bool)
