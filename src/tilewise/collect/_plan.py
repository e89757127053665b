"""Plan of a measuring run: problems x pool and the timing settings, as plain data that can move between machines."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.checks import is_whole
from tilewise.collect._outcomes import LEFT_OUT, Outcome
from tilewise.errors import ConfigError, DataError, UsageError
from tilewise.kernels import Pool, illegal
from tilewise.ops import OPS, Problem, Target

_UNLIMITED = 1e9  # of milliseconds and of factors: no kernel reaches it


@dataclass(frozen=True)
class Timing:
    """Settings of the timing of each kernel. Times are in milliseconds unless the name says otherwise.

    Raises:
        ConfigError: a setting is out of its range.
    """

    rounds: int = 6  # samples per kernel, one per round, unless budget_ms ends them earlier
    min_rounds: int = 2
    budget_ms: float = 1.5  # GPU time that one kernel may take over all its rounds
    trailing: float = 2.0  # a kernel slower than the fastest by this factor takes part in trailing_rounds only
    trailing_rounds: int = 2
    hopeless: float = 4.0  # ... and a long one, by this factor, in no round: its first, cold launch is its only sample
    finalists: int = 4  # the fastest kernels are timed again, side by side: at least this many ...
    final_share: float = 0.06  # ... and this share of all, as more than four lie within the noise of a large pool
    final_rounds: int = 8
    window_us: float = 50.0  # a sample lasts at least this long: short kernels are unrolled in one CUDA graph
    max_unroll: int = 16
    clock_ratio: float = 0.9  # a round below this share of the highest clock so far is rejected ...
    max_retries: int = 3  # ... and repeated, at most this often
    kernel_timeout_s: float = 20.0  # a kernel that takes longer, compilation included, counts as failed
    rtol: float = 0.02  # results: |y - reference| <= rtol * (|reference| + rms(reference))
    warmup: int = 0  # samples of each kernel that are taken first and thrown away

    def __post_init__(self) -> None:
        if not 1 <= self.min_rounds <= self.rounds:
            raise ConfigError(f"`1 <= min_rounds <= rounds` must hold, got {self.min_rounds} and {self.rounds}")
        if self.finalists < 0 or self.final_rounds < 0 or self.max_retries < 0:
            raise ConfigError("finalists, final_rounds and max_retries must not be negative")
        if not 1 <= self.trailing <= self.hopeless or not 1 <= self.trailing_rounds <= self.min_rounds:
            raise ConfigError("`1 <= trailing <= hopeless` must hold, and trailing_rounds lie between 1 and min_rounds")
        if not 0 <= self.final_share <= 1:
            raise ConfigError(f"final_share must lie in [0, 1], got {self.final_share}")
        if self.warmup < 0:
            raise ConfigError(f"warmup must not be negative, got {self.warmup}")
        if self.max_unroll < 1 or self.window_us < 0:
            raise ConfigError("max_unroll must be at least 1 and window_us not negative")
        if not (0 < self.clock_ratio <= 1 and self.budget_ms > 0 and self.kernel_timeout_s > 0 and self.rtol > 0):
            raise ConfigError("clock_ratio must lie in (0, 1]; budget_ms, kernel_timeout_s and rtol must be positive")

    def repeated(self, count: int) -> Self:
        """Return settings by which every kernel, slow ones too, has `count` samples.

        Raises:
            ConfigError: `count` is not a whole number of at least 1.
        """
        if not is_whole(count) or count < 1:
            raise ConfigError(f"the number of samples must be a whole number of at least 1, got {count!r}")
        every = dict.fromkeys(("rounds", "min_rounds", "trailing_rounds"), count)
        unlimited = dict.fromkeys(("budget_ms", "hopeless"), _UNLIMITED)
        return dataclasses.replace(self, **every, **unlimited, finalists=0, final_share=0.0)  # type: ignore[arg-type]

    def stated(self) -> dict[str, object]:
        """Return the settings as plain data, without a `warmup` of 0, so that earlier plans stay equal."""
        return {n: v for n, v in dataclasses.asdict(self).items() if n != "warmup" or v}


@dataclass(frozen=True)
class Item:
    """One problem of a plan.

    Attributes:
        problem: the problem to measure.
        origin: where the problem comes from, e.g. the name of a network.
        kernels: ascending indices into the plan's pool of the kernels to measure; None for the whole pool.
    """

    problem: Problem
    origin: str
    kernels: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Plan:
    """Problems x pool for one target on one arch.

    Raises:
        ConfigError: the pool belongs to another target, a kernel is illegal on the arch, or a problem occurs twice,
            belongs to another op or asks for kernels that the pool does not have.
    """

    target: Target
    arch: HardwareProfile
    pool: Pool
    items: tuple[Item, ...]
    timing: Timing
    run_id: str

    def __post_init__(self) -> None:
        target = self.target
        if (self.pool.op, self.pool.variant, self.pool.dtype) != (target.op, target.variant, target.dtype):
            raise ConfigError(f"the pool must be one of {target.name}; it has kernels of another op, variant or dtype")
        for kernel, name in zip(self.pool.kernels, self.pool.names, strict=True):
            if why := illegal(kernel, target, self.arch):
                raise ConfigError(f"{name} is illegal on {self.arch.name}: {why}")
        index_of: dict[Problem, int] = {}
        for i, item in enumerate(self.items):
            if item.problem.op != target.op:
                raise ConfigError(f"problem {i} is a {item.problem.op}, the plan measures {target.op}")
            if item.problem in index_of:
                raise ConfigError(f"problem {i} repeats problem {index_of[item.problem]}: {item.problem}")
            index_of[item.problem] = i
            if item.kernels is not None and not _are_indices(item.kernels, len(self.pool)):
                raise ConfigError(
                    f"problem {i}: kernels must be ascending indices below {len(self.pool)}, at least one, "
                    f"got {item.kernels}"
                )

    def kernel_mask(self, index: int) -> np.ndarray:
        """Return which kernels of the pool to measure on a problem, as bool of shape (len(pool),)."""
        kernels = self.items[index].kernels
        mask = np.full(len(self.pool), kernels is None)
        if kernels is not None:
            mask[list(kernels)] = True
        return mask

    def excluded_outcomes(self, index: int) -> dict[int, Outcome]:
        """Return the outcomes, by kernel index, of the kernels that the plan excludes for a problem."""
        return {int(k): Outcome(LEFT_OUT) for k in np.flatnonzero(~self.kernel_mask(index))}

    def settled_outcomes(self, problem: Problem, known: Mapping[int, Outcome]) -> dict[int, Outcome]:
        """Return the outcomes that need no run: known ones, and those of kernels that do not support the problem."""
        refused = enumerate(self.pool.unsupported(problem))
        return {i: Outcome("unsupported", why) for i, why in refused if why} | dict(known)

    @cached_property
    def hash(self) -> str:
        """Identity of the plan: SHA-256 of its JSON text."""
        return hashlib.sha256(self.dumps().encode()).hexdigest()

    def dumps(self) -> str:
        """Return the plan as JSON text; equal plans give equal text."""
        values = {
            "target": dataclasses.asdict(self.target),
            "arch": self.arch.to_dict(),
            "pool": self.pool.to_dict(),
            "timing": self.timing.stated(),
            "run_id": self.run_id,
            "items": [_item_to_dict(item) for item in self.items],
        }
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a plan from parsed JSON, the inverse of :meth:`dumps`.

        Raises:
            DataError: a key is missing or has the wrong form.
        """
        try:
            target = Target(**values["target"])
            problem_type = OPS[target.op]
            return cls(
                target,
                HardwareProfile.from_dict(values["arch"]),
                Pool.from_dict(values["pool"]),
                tuple(_item_from_dict(i, problem_type) for i in values["items"]),
                Timing(**values["timing"]),
                str(values["run_id"]),
            )
        except UsageError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as e:
            raise DataError(f"not a plan: {e!r:.200}; write it with `tilewise plan`") from e


def _are_indices(kernels: tuple[int, ...], count: int) -> bool:
    """Return whether these are ascending numbers from 0 to `count` - 1, at least one and each once."""
    return bool(kernels) and sorted(set(kernels)) == list(kernels) and kernels[0] >= 0 and kernels[-1] < count


def _item_to_dict(item: Item) -> dict[str, object]:
    values: dict[str, object] = {"origin": item.origin, "problem": item.problem.stated()}
    return values if item.kernels is None else values | {"kernels": list(item.kernels)}


def _item_from_dict(values: Mapping[str, Any], problem_type: type[Problem]) -> Item:
    kernels = values.get("kernels")
    indices = None if kernels is None else tuple(int(k) for k in kernels)
    return Item(problem_type.from_dict(values["problem"]), str(values["origin"]), indices)


def load_plan(path: Path) -> Plan:
    """Read a plan from a JSON file.

    Raises:
        DataError: the file is missing or does not hold a plan; the message names it.
    """
    try:
        return Plan.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, RecursionError, UsageError) as e:
        raise DataError(f"{path}: {e}") from e
