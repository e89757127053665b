"""From measurements to the plan of the next run; `tilewise collect` runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tilewise.arch import HardwareProfile
from tilewise.checks import is_whole, require
from tilewise.collect.forecast import PROBLEM_S, pair_seconds
from tilewise.collect.plan import Item, Plan, Timing
from tilewise.data.rows import is_of
from tilewise.data.splits import group_keys, holdout_mask
from tilewise.errors import ConfigError, DataError
from tilewise.features.octaves import nearest_octaves
from tilewise.kernels.pool import Pool
from tilewise.metrics import Floats, Ints
from tilewise.ops import Problem, Target
from tilewise.planning.choice import Bools, KernelChoice, choose_kernels, order_problems, within_budget
from tilewise.planning.committee import Committee, disagreement
from tilewise.planning.pairs import supported_pairs
from tilewise.train.dataset import build_table

UNKNOWN_SHARE = 0.3  # of the roofline, that a kernel is taken to reach where nothing was measured


@dataclass(frozen=True)
class PlanSettings:
    """What `tilewise plan` is told besides the target.

    Attributes:
        budget_s: seconds of measuring.
        choice: of the kernels.
        members: of the committee.
        seed, threads: of the committee and the draw.

    Raises:
        ConfigError: a value is out of its range.
    """

    budget_s: float = 600.0
    choice: KernelChoice = field(default_factory=KernelChoice)
    members: int = 3
    seed: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        require("plan.budget_s must be positive", self.budget_s > 0, self.budget_s)
        whole = is_whole(self.members) and self.members >= 1
        require("plan.members must be a whole number of at least 1", whole, self.members)


@dataclass(frozen=True)
class Proposal:
    """What to measure next, most promising problems first.

    Attributes:
        plan: for `tilewise collect`.
        candidates: number of problems there were to choose from.
        seconds: expected, of measuring.
        pairs: of problem and kernel.
        regret: (problems of the plan,) what the committee expects to lose on each, 0 to 1; NaN without measurements.
        octaves: (problems of the plan,) distance to the nearest that was measured; NaN without measurements.
    """

    plan: Plan
    candidates: int
    seconds: float
    pairs: int
    regret: Floats
    octaves: Floats


def propose(
    frame: pd.DataFrame | None,
    items: Sequence[Item],
    target: Target,
    pool: Pool,
    arch: HardwareProfile,
    timing: Timing,
    settings: PlanSettings,
    *,
    holdout_fraction: float,
    run_id: str,
) -> Proposal:
    """Choose problems and kernels to measure within the budget.

    Problems that were measured stay out (of a problem's runs only one is learnt from), and those of the holdout: they
    judge, and nobody learns from them. Without measurements, problems far from each other are chosen, and kernels in
    the pool's order and by the draw.

    Args:
        frame: measurements of the target so far; None: there are none.
        items: problems to choose from.
        target: what for.
        pool: kernels to choose from.
        arch: the hardware.
        timing: of the plan.
        settings: everything else.
        holdout_fraction: of the problems, by hash.
        run_id: names the new run.

    Raises:
        ConfigError: the run is in `frame` already.
        DataError: no problem is left to choose from, or `frame` has nothing to learn from.
    """
    known = known_keys(frame, target, run_id)
    left = candidates(items, target, pool, known, holdout_fraction)
    problems = [item.problem for item in left]
    rng = np.random.default_rng(settings.seed)
    scored = (
        unscored(problems, pool, target, arch)
        if frame is None
        else _scored(frame, problems, target, pool, arch, settings, holdout_fraction)
    )
    chosen = choose_kernels(scored.problem, scored.log_tflops, settings.choice, rng)
    seconds = seconds_of(problems, scored, chosen, timing, arch)
    keys = np.array([p.group_key for p in problems], dtype=np.int64)
    shuffled = rng.permutation(len(left))  # equals are not taken in the set's order, which may be by network
    order = shuffled[order_problems(keys[shuffled], known, scored.regret[shuffled], seconds[shuffled])].tolist()
    picked = within_budget(order, lambda i: float(seconds[i]), settings.budget_s)
    plan_items = items_of(picked, left, scored, chosen)
    new = np.full(len(picked), np.nan)
    return Proposal(
        Plan(target, arch, pool, plan_items, timing, run_id),
        len(left),
        float(seconds[picked].sum()),
        sum(len(item.kernels or ()) for item in plan_items),
        new if frame is None else 1 - np.exp(-scored.regret[picked]),
        new if frame is None else nearest_octaves(keys[picked], known),
    )


@dataclass(frozen=True)
class Scored:
    """Supported pairs: problem and kernel of each row, its predicted log(TFLOPS), and each problem's regret."""

    problem: Ints
    kernel: Ints
    log_tflops: Floats
    regret: Floats


def known_keys(frame: pd.DataFrame | None, target: Target, run_id: str) -> Ints:
    """(problems, dimensions) the group keys that were measured.

    Raises:
        ConfigError: the new run is in `frame` already.
    """
    if frame is None:
        return np.zeros((0, 0), dtype=np.int64)
    rows = frame[is_of(frame, target)]
    if (rows["run_id"] == run_id).any():
        raise ConfigError(f"collect.run_id={run_id} stands in the measurements; name another run")
    return np.unique(group_keys(target.op, rows), axis=0)


def candidates(items: Sequence[Item], target: Target, pool: Pool, known: Ints, fraction: float) -> list[Item]:
    """The problems that may be planned: supported, not measured, and not of the holdout.

    Raises:
        DataError: there is none.
    """
    keys = np.array([item.problem.group_key for item in items], dtype=np.int64)
    out = holdout_mask(target.op, keys, fraction)
    measured = set(map(tuple, known.tolist()))
    left = [
        item
        for item, key, held in zip(items, keys.tolist(), out, strict=True)
        if not held and tuple(key) not in measured and pool.supported(item.problem).any()
    ]
    if not left:
        raise DataError(
            f"no problem is left to plan: all {len(items)} are measured, of the holdout, or supported by no kernel; "
            "name others with collect.problems or plan.requests"
        )
    return left


def _scored(
    frame: pd.DataFrame,
    problems: list[Problem],
    target: Target,
    pool: Pool,
    arch: HardwareProfile,
    settings: PlanSettings,
    fraction: float,
) -> Scored:
    table = build_table(frame, target, pool, arch, fraction)
    committee = Committee.fit(table, settings.members, settings.seed, settings.threads)
    problem, kernel, mean, regret = [], [], [], []
    for pairs in supported_pairs(problems, pool, target, arch, table.features):
        scores = committee.score(pairs)
        problem.append(pairs.problem)
        kernel.append(pairs.kernel)
        mean.append(scores.mean(axis=0))
        regret.append(disagreement(pairs.problem - pairs.problem[0], scores))
    return Scored(*(np.concatenate(parts) for parts in (problem, kernel, mean, regret)))


def unscored(problems: list[Problem], pool: Pool, target: Target, arch: HardwareProfile) -> Scored:
    """All pairs, at the same share of the problem's roofline."""
    problem, kernel = np.nonzero(np.stack([pool.supported(p) for p in problems]))
    flops = np.array([float(p.flops) for p in problems])
    bytes_moved = np.array([float(p.min_bytes(target.dtype)) for p in problems])
    roofline = np.minimum(arch.peak(target.dtype), flops / bytes_moved * arch.dram_gb_s / 1e3)
    return Scored(problem, kernel, np.log(UNKNOWN_SHARE * roofline)[problem], np.ones(len(problems)))


def seconds_of(
    problems: Sequence[Problem], scored: Scored, chosen: Bools, timing: Timing, arch: HardwareProfile
) -> Floats:
    """(problems,) expected of measuring the chosen rows."""
    launch_ms = np.array([p.flops for p in problems])[scored.problem] / np.exp(scored.log_tflops) / 1e9
    measuring = np.bincount(scored.problem, chosen * pair_seconds(launch_ms, timing, arch))
    return (PROBLEM_S + measuring).astype(np.float64)


def items_of(picked: Sequence[int], left: Sequence[Item], scored: Scored, chosen: Bools) -> tuple[Item, ...]:
    """The picked problems with their chosen kernels, for a plan."""
    rows = {i: np.flatnonzero((scored.problem == i) & chosen) for i in picked}
    return tuple(Item(left[i].problem, left[i].origin, tuple(scored.kernel[rows[i]].tolist())) for i in picked)
