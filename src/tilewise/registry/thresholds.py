"""What the gate allows: the settings of conf/gate for one target."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tilewise.checks import is_whole, require
from tilewise.errors import ConfigError
from tilewise.ops import Target

# Rounding in means must not decide: 93.5 % against 94.0 % is a drop of 0.5 points, not of 0.5000000000000004.
TOLERANCE_POINTS = 1e-9

_DROPS = ("mean_drop", "median_drop", "p10_drop", "problem_drop")
_SLICES = ("level", "min_problems", "n_resamples")


@dataclass(frozen=True)
class SliceRule:
    """When a group of problems counts: see :mod:`tilewise.registry.slices`.

    Attributes:
        level: of confidence, of all slices together, between 0 and 1.
        min_problems: smaller groups are not judged.
        n_resamples: of the bootstrap.

    Raises:
        ConfigError: a value is out of its range.
    """

    level: float = 0.95
    min_problems: int = 20
    n_resamples: int = 10_000

    def __post_init__(self) -> None:
        level = self.level
        require("gate: slices.level must lie between 0 and 1", _is_number(level) and 0 < level < 1, level)
        for name in ("min_problems", "n_resamples"):
            value = getattr(self, name)
            require(f"gate: slices.{name} must be a positive whole number", is_whole(value) and value >= 1, value)


@dataclass(frozen=True)
class Thresholds:
    """What the gate allows. Drops in points; floors, for a first model, in percent (None: no floor).

    `selection_time_factor`: a candidate may take so many times as long as production to select a kernel.

    Raises:
        ConfigError: a drop is negative or no number, a floor lies outside 0 to 100, or the factor is below 1.
    """

    mean_drop: float = 0.5
    median_drop: float = 0.5
    p10_drop: float = 2.0
    problem_drop: float = 10.0
    floor_mean: float | None = None
    floor_p10: float | None = None
    slices: SliceRule = field(default_factory=SliceRule)
    selection_time_factor: float = 2.0

    def __post_init__(self) -> None:
        floors = tuple(name for name in ("floor_mean", "floor_p10") if getattr(self, name) is not None)
        for name in (*_DROPS, *floors):
            value = getattr(self, name)
            require(f"gate: {name} must be a number from 0 to 100", _is_number(value) and 0 <= value <= 100, value)
        factor = self.selection_time_factor
        require("gate: selection_time_factor must be a number of 1 or more", _is_number(factor) and factor >= 1, factor)

    @property
    def drops(self) -> dict[str, float]:
        """By how many points each statistic may fall."""
        return {"mean": self.mean_drop, "median": self.median_drop, "p10": self.p10_drop}

    @classmethod
    def from_config(cls, gate: Mapping[str, Any], target: Target) -> Self:
        """The thresholds of `target` out of the ``gate`` section of the configuration.

        Raises:
            ConfigError: a key is missing, a value is wrong, or there are no floors for the target's op and variant.
        """
        try:
            plain = {key: gate[key] for key in (*_DROPS, "selection_time_factor")}
            slices = SliceRule(**{key: gate["slices"][key] for key in _SLICES})
            floors = gate["floors"]
        except KeyError as e:
            raise ConfigError(f"gate: {e} is missing; see conf/gate/default.yaml") from e
        try:
            floor = floors[target.op][target.variant]
        except KeyError as e:
            raise ConfigError(
                f"gate: no floors for {target.op} {target.variant}; add them to conf/gate under floors"
            ) from e
        unknown = set(floor) - {"mean", "p10"}
        if unknown:
            raise ConfigError(f"gate: floors have mean and p10, got {', '.join(sorted(unknown))}")
        return cls(**plain, slices=slices, floor_mean=floor.get("mean"), floor_p10=floor.get("p10"))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
