"""Element types, with the bytes of one operand element and of one result element."""

from __future__ import annotations

from tilewise.errors import ConfigError

# fp8 kernels take e4m3 operands and write a 16-bit result, as the vendors' libraries do by default.
OPERAND_BYTES: dict[str, int] = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}
RESULT_BYTES: dict[str, int] = {"bf16": 2, "fp16": 2, "fp8": 2, "fp32": 4}
_SHORT_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8_e4m3fn": "fp8"}


def short_dtype(name: str) -> str | None:
    """Return the dtype that PyTorch or NumPy calls `name`, such as ``torch.bfloat16``; None for an unknown one."""
    return _SHORT_NAMES.get(name.removeprefix("torch."))


def operand_bytes(dtype: str) -> int:
    """Return the bytes of one operand element.

    Raises:
        ConfigError: the dtype is unknown.
    """
    return _lookup(OPERAND_BYTES, dtype)


def result_bytes(dtype: str) -> int:
    """Return the bytes of one result element.

    Raises:
        ConfigError: the dtype is unknown.
    """
    return _lookup(RESULT_BYTES, dtype)


def _lookup(table: dict[str, int], dtype: str) -> int:
    if dtype not in table:
        raise ConfigError(f"dtype {dtype!r} is unknown; known are {', '.join(table)}")
    return table[dtype]
