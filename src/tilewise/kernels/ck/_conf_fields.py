"""Fields of a line of the old profiler's ``.conf`` files: splitting a line, and reading one field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewise.errors import KernelError
from tilewise.kernels.ck._ck_kernel import MAX_DIGITS


@dataclass(frozen=True)
class ConfHeader:
    """Type, dimensions and layout of the lines of a file that do not state them."""

    dtype: str = "bf16"
    ndim: int = 2
    layout: str = "nhwgc"

    @classmethod
    def of_file(cls, name: str, default: ConfHeader) -> ConfHeader:
        """Return the header that a file's name states (``nhwgc_bf16.conf``); parts it lacks come from `default`."""
        layout = re.search(r"(?:^|_)(nwgc|nhwgc|ndhwgc|ngchw|ngcdhw)(?:_|\.|$)", name.lower())
        dtype = re.search(r"(?:^|_)(bf16|fp16|fp32|fp8|bf8|int8)(?:_|\.|$)", name.lower())
        found = replace(default, dtype=dtype[1]) if dtype else default
        return replace(found, layout=layout[1], ndim=len(layout[1]) - 3) if layout else found


def split_fields(text: str) -> list[str]:
    """Split at the commas outside brackets, so that ``Seq(...)`` is one field.

    Raises:
        KernelError: the brackets do not match.
    """
    fields, level, start = [], 0, 0
    for i, char in enumerate(text):
        level += (char in "(<") - (char in ")>")
        if level < 0:
            raise KernelError(f"brackets do not match at character {i + 1}")
        if char == "," and level == 0:
            fields.append(text[start:i].strip())
            start = i + 1
    if level:
        raise KernelError("brackets do not match at the end")
    return [*fields, text[start:].strip()]


def require_count(fields: Sequence[str], *counts: int) -> None:
    """Raise a KernelError unless the number of fields is one of `counts`."""
    if len(fields) not in counts:
        raise KernelError(f"has {len(fields)} fields, expected {' or '.join(map(str, counts))}")


def read_int(text: str) -> int:
    """Read a non-negative number.

    Raises:
        KernelError: the text is not a number, or has too many digits.
    """
    if not re.fullmatch(rf"[0-9]{{1,{MAX_DIGITS}}}", text):
        raise KernelError(f"expected a number of at most {MAX_DIGITS} digits, got {text[:40]!r}")
    return int(text)


def read_ndim(text: str) -> int:
    """Read the number of spatial dimensions.

    Raises:
        KernelError: the text is not 1, 2 or 3.
    """
    if text not in ("1", "2", "3"):
        raise KernelError(f"spatial dimensions must be 1, 2 or 3, got {text[:40]!r}")
    return int(text)


def read_direct_load(text: str) -> tuple[str, ...]:
    """Check the flag before the groups to merge and return a note if it is set.

    Raises:
        KernelError: the text is not a flag.
    """
    if text not in ("0", "1", "false", "true"):
        raise KernelError(f"expected a flag before the groups to merge, got {text[:40]!r}")
    return (f"the flag before the groups to merge is {text}: not used",) if text in ("1", "true") else ()


def mapped(names: Mapping[str, str], name: str, field: str) -> str:
    """Return CK Tile's name for the old one of a field.

    Raises:
        KernelError: CK Tile has no counterpart.
    """
    if name not in names:
        raise KernelError(f"{field} {name[:40]!r} has no counterpart; known are {', '.join(names)}")
    return names[name]
