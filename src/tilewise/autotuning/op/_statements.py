"""Statements of the user that describe a kernel's calls to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Statements:
    """Expressions that describe a kernel's calls to a model; see :class:`tilewise.ops.OpDefinition`.

    Attributes:
        flops, bytes, programs, supports: as there; "" where nothing is stated.
        features: expression of each further feature.
        categories: the values of each key that is a text.
    """

    flops: str = ""
    bytes: str = ""
    programs: str = ""
    supports: str = ""
    features: Mapping[str, str] = field(default_factory=dict)
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
