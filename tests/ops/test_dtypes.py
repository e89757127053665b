"""Element types: their bytes, and an unknown type is named."""

from __future__ import annotations

import pytest

from tilewise.errors import ConfigError
from tilewise.ops import operand_bytes, result_bytes


@pytest.mark.parametrize(("dtype", "operand", "result"), [("bf16", 2, 2), ("fp16", 2, 2), ("fp8", 1, 2)])
def test_widths(dtype: str, operand: int, result: int) -> None:
    assert (operand_bytes(dtype), result_bytes(dtype)) == (operand, result)


@pytest.mark.parametrize("width", [operand_bytes, result_bytes])
def test_an_unknown_type_is_named(width: object) -> None:
    with pytest.raises(ConfigError, match="dtype 'fp4' is unknown; known are bf16, fp16, fp8"):
        width("fp4")  # type: ignore[operator]
