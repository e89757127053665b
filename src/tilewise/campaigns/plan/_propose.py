"""Propose the plan of the next run from the measurements so far; `tilewise collect` runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tilewise.arch import HardwareProfile
from tilewise.campaigns.plan._choice import Bools, KernelChoice, choose_kernels, order_problems, within_budget
from tilewise.campaigns.plan._committee import Committee, disagreement
from tilewise.campaigns.plan._pairs import supported_pairs
from tilewise.checks import is_whole, require
from tilewise.cluster import LOCAL, Executor
from tilewise.collect import SECONDS_PER_PROBLEM, Item, Plan, Timing, pair_seconds
from tilewise.data import TargetTable, held_out
from tilewise.errors import ConfigError, DataError
from tilewise.features import nearest_shape_distances
from tilewise.kernels import Pool
from tilewise.metrics import Floats, Ints
from tilewise.ops import Problem, Target
from tilewise.train import build_table

UNKNOWN_SHARE = 0.3  # share of the roofline that every kernel is assumed to reach before any measurement


@dataclass(frozen=True)
class PlanSettings:
    """Settings of a proposal. Defaults are those of the configuration.

    Attributes:
        budget_s: seconds of measuring.
        choice: rules for the kernels of a problem.
        members: size of the committee.
        seed, threads: of the committee and the draw; 0 threads: all cores.

    Raises:
        ConfigError: a value is out of its range.
    """

    budget_s: float = 600.0
    choice: KernelChoice = field(default_factory=KernelChoice)
    members: int = 3
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        require("plan.budget_s must be positive", self.budget_s > 0, self.budget_s)
        whole = is_whole(self.members) and self.members >= 1
        require("plan.members must be a whole number of at least 1", whole, self.members)


@dataclass(frozen=True)
class Proposal:
    """The problems and kernels to measure next, most promising problems first.

    Attributes:
        plan: input of `tilewise collect`.
        candidates: number of problems to choose from.
        seconds: expected measuring time.
        pairs: number of pairs of problem and kernel.
        regret: loss that the committee expects on each planned problem, 0 to 1; NaN without measurements.
        shape_distance: log2 distance of each planned problem to the nearest measured one; NaN without measurements.
    """

    plan: Plan
    candidates: int
    seconds: float
    pairs: int
    regret: Floats
    shape_distance: Floats


def propose(
    frame: pd.DataFrame | None,
    whole: Plan,
    settings: PlanSettings,
    *,
    holdout_fraction: float,
    executor: Executor = LOCAL,
) -> Proposal:
    """Choose problems and kernels of a plan to measure within the budget.

    Measured problems are left out, because training uses a single run per problem, and so are holdout problems, because
    training must not use them. Without measurements, problems far from each other are chosen, with kernels in the
    pool's order and at random.

    Args:
        frame: measurements of the target so far; None: no measurements.
        whole: the plan to choose from; also target, pool, hardware, timing and name of the new run.
        settings: all other settings.
        holdout_fraction: share of the split keys that is held out.
        executor: trains the committee.

    Raises:
        ConfigError: `frame` already contains the run.
        DataError: no problem is left to choose from, or `frame` has too few rows to train on.
    """
    known = known_keys(frame, whole.target, whole.run_id)
    left = candidates(whole.items, whole, known, holdout_fraction)
    problems = [item.problem for item in left]
    rng = np.random.default_rng(settings.seed)
    if frame is None:
        scored = unscored(problems, whole.pool, whole.target, whole.arch)
    else:
        scored = _scored(frame, problems, whole, settings, holdout_fraction, executor)
    chosen = choose_kernels(scored.problem, scored.log_tflops, settings.choice, rng)
    seconds = seconds_of(problems, scored, chosen, whole.timing, whole.arch)
    keys = np.array([p.group_key for p in problems], dtype=np.int64)
    shuffled = rng.permutation(len(left))  # so that ties do not follow the order of the set, which is by network
    order = shuffled[order_problems(keys[shuffled], known, scored.regret[shuffled], seconds[shuffled])].tolist()
    picked = within_budget(order, lambda i: float(seconds[i]), settings.budget_s)
    items = items_of(picked, left, scored, chosen)
    unknown = np.full(len(picked), np.nan)
    return Proposal(
        dataclasses.replace(whole, items=items),
        len(left),
        float(seconds[picked].sum()),
        sum(len(item.kernels or ()) for item in items),
        unknown if frame is None else 1 - np.exp(-scored.regret[picked]),
        unknown if frame is None else nearest_shape_distances(keys[picked], known),
    )


@dataclass(frozen=True)
class Scored:
    """Supported pairs: problem and kernel of each row, its predicted log(TFLOPS), and each problem's regret."""

    problem: Ints
    kernel: Ints
    log_tflops: Floats
    regret: Floats


def known_keys(frame: pd.DataFrame | None, target: Target, run_id: str) -> Ints:
    """Return the group keys of the measured problems, of shape (keys, dimensions).

    Raises:
        ConfigError: `frame` already contains the new run.
    """
    if frame is None:
        return np.zeros((0, 0), dtype=np.int64)
    table = TargetTable.of(frame, target)
    if (table.rows["run_id"] == run_id).any():
        raise ConfigError(f"collect.run_id={run_id} stands in the measurements; name another run")
    return table.distinct_keys


def candidates(items: Sequence[Item], whole: Plan, known: Ints, fraction: float) -> list[Item]:
    """Return the items that may be planned: supported by a kernel, not measured, and outside the holdout.

    Raises:
        DataError: no item is left.
    """
    keys = np.array([item.problem.group_key for item in items], dtype=np.int64)
    is_held_out = held_out(whole.target, keys, fraction)
    measured = set(map(tuple, known.tolist()))
    left = [
        item
        for item, key, held in zip(items, keys.tolist(), is_held_out, strict=True)
        if not held and tuple(key) not in measured and whole.pool.supported(item.problem).any()
    ]
    if not left:
        raise DataError(
            f"no problem is left to plan: all {len(items)} are measured, in the holdout, or supported by no kernel; "
            "name others with collect.problems or plan.requests"
        )
    return left


def _scored(
    frame: pd.DataFrame,
    problems: list[Problem],
    whole: Plan,
    settings: PlanSettings,
    fraction: float,
    executor: Executor,
) -> Scored:
    target, pool, arch = whole.target, whole.pool, whole.arch
    table = build_table(frame, target, pool, arch, fraction)
    committee = Committee.fit(table, settings.members, settings.seed, settings.threads, executor=executor)
    problem, kernel, mean, regret = [], [], [], []
    for pairs in supported_pairs(problems, pool, target, arch, table.features):
        scores = committee.score(pairs)
        problem.append(pairs.problem)
        kernel.append(pairs.kernel)
        mean.append(scores.mean(axis=0))
        regret.append(disagreement(pairs.problem - pairs.problem[0], scores))
    return Scored(*(np.concatenate(parts) for parts in (problem, kernel, mean, regret)))


def unscored(problems: list[Problem], pool: Pool, target: Target, arch: HardwareProfile) -> Scored:
    """Return all supported pairs, each at the same share of its problem's roofline."""
    problem, kernel = np.nonzero(pool.supported_of(problems))
    flops = np.array([float(p.flops) for p in problems])
    bytes_moved = np.array([float(p.min_bytes(target.dtype)) for p in problems])
    roofline = np.minimum(arch.peak(target.dtype), flops / bytes_moved * arch.dram_gb_s / 1e3)
    return Scored(problem, kernel, np.log(UNKNOWN_SHARE * roofline)[problem], np.ones(len(problems)))


def seconds_of(
    problems: Sequence[Problem], scored: Scored, chosen: Bools, timing: Timing, arch: HardwareProfile
) -> Floats:
    """Return the expected seconds of measuring each problem's chosen rows, of shape (problems,)."""
    launch_ms = np.array([p.flops for p in problems])[scored.problem] / np.exp(scored.log_tflops) / 1e9
    measuring = np.bincount(scored.problem, chosen * pair_seconds(launch_ms, timing, arch))
    return (SECONDS_PER_PROBLEM + measuring).astype(np.float64)


def items_of(picked: Sequence[int], left: Sequence[Item], scored: Scored, chosen: Bools) -> tuple[Item, ...]:
    """Return the picked problems with their chosen kernels, for a plan."""
    rows = {i: np.flatnonzero((scored.problem == i) & chosen) for i in picked}
    return tuple(Item(left[i].problem, left[i].origin, tuple(scored.kernel[rows[i]].tolist())) for i in picked)
