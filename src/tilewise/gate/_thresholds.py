"""The limits of the gate: the settings of ``conf/gate`` for one target."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tilewise.checks import is_whole, require
from tilewise.errors import ConfigError
from tilewise.ops import VARIANT, Target, definition_of

# A drop from 94.0 % to 93.5 % is 0.5 points, although floating point makes it 0.5000000000000004.
TOLERANCE_POINTS = 1e-9

_DROPS = ("mean_drop", "median_drop", "p10_drop", "problem_drop")
_KEYS = (*_DROPS, "selection_time_factor", "slices", "min_problems", "floors", "override", "shadow", "aims")
_SLICES = ("level", "min_problems", "n_resamples")
OWN_OP = "own"  # in place of the name of an op of the user's own that has no floors
# Mean and P10 of a first model, as in conf/gate/default.yaml. Here, no configuration of the caller can change them.
_SHIPPED_FLOORS: dict[tuple[str, str], tuple[float | None, float | None]] = {
    ("grouped_conv", "forward"): (90, 75),
    ("grouped_conv", "bwd_data"): (85, None),
    ("grouped_conv", "bwd_weight"): (85, None),
    ("gemm", "universal"): (95, 90),
    (OWN_OP, VARIANT): (85, None),
}
_GREATER_IS_WEAKER = (*_DROPS, "selection_time_factor")


@dataclass(frozen=True)
class SliceRule:
    """The rule for judging groups of problems; see :func:`tilewise.gate.check_slices`.

    Attributes:
        level: Joint confidence level of all slices, between 0.5 and 1; observations are judged one-sided at it.
        min_problems: The smallest group that is judged.
        n_resamples: Number of bootstrap resamples.

    Raises:
        ConfigError: A value is out of its range.
    """

    level: float = 0.95
    min_problems: int = 20
    n_resamples: int = 10_000

    def __post_init__(self) -> None:
        level = self.level
        require("gate: slices.level must lie between 0.5 and 1", _is_number(level) and 0.5 < level < 1, level)
        for name in ("min_problems", "n_resamples"):
            value = getattr(self, name)
            require(f"gate: slices.{name} must be a positive whole number", is_whole(value) and value >= 1, value)


@dataclass(frozen=True)
class Thresholds:
    """The limits of the gate.

    Attributes:
        mean_drop, median_drop, p10_drop: Points by which the statistic may fall below production's.
        problem_drop: Points by which the efficiency of a single problem may fall.
        floor_mean, floor_p10: Percent that the first model of a target must exceed; None: no floor.
        slices: The rule for groups of problems.
        selection_time_factor: The candidate may take this many times as long as production to select a kernel.
        min_problems: The smallest holdout, in problems whose kernels differ in speed.

    Raises:
        ConfigError: A drop or floor is not a number from 0 to 100, the factor is below 1, or `min_problems` is not a
            positive whole number.
    """

    mean_drop: float = 0.5
    median_drop: float = 0.5
    p10_drop: float = 2.0
    problem_drop: float = 10.0
    floor_mean: float | None = None
    floor_p10: float | None = None
    slices: SliceRule = field(default_factory=SliceRule)
    selection_time_factor: float = 2.0
    min_problems: int = 25

    def __post_init__(self) -> None:
        floors = tuple(name for name in ("floor_mean", "floor_p10") if getattr(self, name) is not None)
        for name in (*_DROPS, *floors):
            value = getattr(self, name)
            require(f"gate: {name} must be a number from 0 to 100", _is_number(value) and 0 <= value <= 100, value)
        factor = self.selection_time_factor
        require("gate: selection_time_factor must be a number of 1 or more", _is_number(factor) and factor >= 1, factor)
        least = self.min_problems
        require("gate: min_problems must be a positive whole number", is_whole(least) and least >= 1, least)

    @property
    def drops(self) -> dict[str, float]:
        """Return the allowed drop of each statistic, in points."""
        return {"mean": self.mean_drop, "median": self.median_drop, "p10": self.p10_drop}

    @classmethod
    def shipped(cls, target: Target) -> Self:
        """Return the limits of `target` that tilewise ships, without any configuration of the caller."""
        op = target.op if definition_of(target.op) is None else OWN_OP
        mean, p10 = _SHIPPED_FLOORS.get((op, target.variant), (None, None))
        return cls(floor_mean=mean, floor_p10=p10)

    def weaker_than(self, other: Thresholds) -> dict[str, tuple[float | None, float | None]]:
        """Return the settings that let a worse model pass than `other` does, each with this and the other value."""
        weaker: dict[str, tuple[float | None, float | None]] = {}
        for name in _GREATER_IS_WEAKER:
            if getattr(self, name) > getattr(other, name):
                weaker[name] = (getattr(self, name), getattr(other, name))
        for name in ("floor_mean", "floor_p10"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if theirs is not None and (ours is None or ours < theirs):
                weaker[name] = (ours, theirs)
        if self.min_problems < other.min_problems:
            weaker["min_problems"] = (self.min_problems, other.min_problems)
        mine, given = self.slices, other.slices
        for name, is_weaker in (
            ("level", mine.level > given.level),  # a wider interval refuses less
            ("min_problems", mine.min_problems > given.min_problems),  # leaves out more groups
            ("n_resamples", mine.n_resamples < given.n_resamples),
        ):
            if is_weaker:
                weaker[f"slices.{name}"] = (getattr(mine, name), getattr(given, name))
        return weaker

    @classmethod
    def from_config(cls, gate: Mapping[str, Any], target: Target) -> Self:
        """Read the thresholds of `target` from the ``gate`` section of the configuration.

        Raises:
            ConfigError: A key is missing or unknown, a value is invalid, or the target's op and variant have no floors.
        """
        try:
            plain = {key: gate[key] for key in (*_DROPS, "selection_time_factor")}
            slices = SliceRule(**{key: gate["slices"][key] for key in _SLICES})
            floors = gate["floors"]
        except KeyError as e:
            raise ConfigError(f"gate: the setting {e} is missing; add it as in conf/gate/default.yaml") from e
        own = target.op not in floors and definition_of(target.op) is not None
        try:
            floor = floors[OWN_OP if own else target.op][target.variant]
        except KeyError as e:
            raise ConfigError(
                f"gate: every op and variant needs floors, got no floors for {target.op} {target.variant}; "
                "add them to conf/gate under floors"
            ) from e
        for name, found, known in (
            ("gate", gate, _KEYS),
            ("gate.slices", gate["slices"], _SLICES),
            ("floors", floor, ("mean", "p10")),
        ):
            unknown = sorted(set(found) - set(known))
            if unknown:  # a stricter limit under a wrong name would not hold
                raise ConfigError(f"gate: {name} has the keys {', '.join(known)}, got {', '.join(unknown)}; rename it")
        least = gate.get("min_problems", cls.min_problems)  # a folder of TILEWISE_CONF may be older than the key
        return cls(**plain, slices=slices, floor_mean=floor.get("mean"), floor_p10=floor.get("p10"), min_problems=least)

    def to_dict(self) -> dict[str, object]:
        """Return plain data for JSON: the limits on figures, so without `min_problems`."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "min_problems"}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
