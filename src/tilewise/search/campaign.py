"""Does what a search finds beat the pool? A plan that measures both side by side, and what its table says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from tilewise.collect.plan import Item, Plan, Timing
from tilewise.data.labels import valid_labels
from tilewise.data.rows import is_of, problem_index, problems_of, sort_rows
from tilewise.data.splits import group_keys, holdout_mask
from tilewise.errors import DataError
from tilewise.kernels.backends import supported_mask
from tilewise.kernels.pool import Pool
from tilewise.model.trained import TrainedModel
from tilewise.search.search import SearchSettings, search
from tilewise.search.surrogate import Alike

# Few kernels, so all of them in every round, and finalists again.
TIMING = Timing(rounds=16, min_rounds=8, budget_ms=16.0, trailing=4.0, hopeless=8.0, final_rounds=16)


def validation_rows(frame: pd.DataFrame, model: TrainedModel, fraction: float, count: int, seed: int) -> pd.DataFrame:
    """The valid labels of `count` problems of the holdout, drawn by `seed`, sorted by problem.

    Raises:
        DataError: there is none.
    """
    rows = frame[is_of(frame, model.target)]
    rows = rows[holdout_mask(model.target.op, group_keys(model.target.op, rows), fraction)]
    rows = valid_labels(rows, model.target.op)
    if not len(rows):
        raise DataError(f"no measured problem of {model.target.name} is of the holdout (fraction {fraction:g})")
    rows = sort_rows(rows, model.target, model.pool)
    number = problem_index(rows, model.target.op)
    drawn = np.random.default_rng(seed).permutation(number.max() + 1)[:count]
    return rows[np.isin(number, drawn)].reset_index(drop=True)


def campaign(rows: pd.DataFrame, model: TrainedModel, settings: SearchSettings, count: int, run_id: str) -> Plan:
    """Measure, for each problem, the `count` best that a search finds outside the pool and the recorded `count` best.

    Args:
        rows: from :func:`validation_rows`.
        model: searches.
        settings: how.
        count: of kernels on either side.
        run_id: of the plan.
    """
    number = problem_index(rows, model.target.op)
    kind, pool = model.pool.backend.kernel, set(model.pool.kernels)
    chosen: list[tuple[Any, ...]] = []
    problems, alike = problems_of(rows, model.target), Alike(model.pool)
    for index, problem in enumerate(problems):
        result = search(model, problem, settings, settings.n_evaluations, alike=alike)
        new = [f.kernel for f in result.found if f.kernel not in pool][:count]
        recorded = rows[number == index].nlargest(count, "tflops")
        chosen.append((*(kind.from_dict(r) for r in recorded.to_dict("records")), *new))
    kernels = tuple(dict.fromkeys(k for some in chosen for k in some))
    place = {kernel: i for i, kernel in enumerate(kernels)}
    origins = rows["origin"].to_numpy()[np.flatnonzero(np.diff(number, prepend=-1))]
    items = tuple(
        Item(p, str(origin), tuple(sorted({place[k] for k in some})))
        for p, origin, some in zip(problems, origins, chosen, strict=True)
    )
    target = model.target
    return Plan(target, model.arch, Pool(target.op, target.variant, target.dtype, kernels), items, TIMING, run_id)


@dataclass(frozen=True)
class Verdict:
    """What a campaign's table says; gains are TFLOPS of the best found / of the pool's best, measured side by side.

    Attributes:
        problems: with valid kernels on both sides.
        found_better: share of them where a found kernel was faster by more than 1 %.
        found_within: share where it was at least 0.99 as fast.
        geometric_mean, p10, median, p90, best: of the gains.
        with_search: geometric mean of what a pool with the found kernels gains, which is never below 1.
        failed: found kernels that failed, of all found.
        optimism: median of predicted / measured TFLOPS of the best found, 1 is right.
    """

    problems: int
    found_better: float
    found_within: float
    geometric_mean: float
    p10: float
    median: float
    p90: float
    best: float
    with_search: float
    failed: float
    optimism: float

    def to_dict(self) -> dict[str, float]:
        """Plain data."""
        return asdict(self)


def judge(table: pd.DataFrame, model: TrainedModel) -> tuple[Verdict, pd.DataFrame]:
    """Compare found kernels (those outside the model's pool) with the pool's in a campaign's table.

    Returns:
        The verdict, and a row a problem: its columns, `pool_kernel`, `found_kernel`, `gain`, and what was predicted.

    Raises:
        DataError: no problem has a valid kernel on both sides.
    """
    rows = table[is_of(table, model.target)].reset_index(drop=True)
    rows = rows.assign(problem=problem_index(rows, model.target.op), found=~rows["kernel_name"].isin(model.pool.names))
    problems = problems_of(rows, model.target)
    valid = rows[rows["is_valid"]]
    best = valid.loc[valid.groupby(["problem", "found"])["tflops"].idxmax()].set_index(["problem", "found"])
    both = [i for i in range(len(problems)) if (i, True) in best.index and (i, False) in best.index]
    if not both:
        raise DataError("no problem has a valid kernel both in and outside the model's pool; is this a search's table?")
    predicted = _predicted(best.loc[[(i, True) for i in both]], problems, both, model)
    gain = np.array([best.loc[(i, True), "tflops"] / best.loc[(i, False), "tflops"] for i in both])
    measured = np.array([best.loc[(i, True), "tflops"] for i in both])
    p10, median, p90 = np.percentile(gain, [10, 50, 90])
    found = rows[rows["found"]]
    verdict = Verdict(
        len(both),
        float((gain > 1.01).mean()),
        float((gain >= 0.99).mean()),
        _mean(gain),
        float(p10),
        float(median),
        float(p90),
        float(gain.max()),
        _mean(np.maximum(gain, 1.0)),
        float((~found["is_valid"]).mean()),
        float(np.median(predicted / measured)),
    )
    return verdict, pd.DataFrame(
        [
            {
                **problems[i].to_dict(),
                "pool_kernel": best.loc[(i, False), "kernel_name"],
                "found_kernel": best.loc[(i, True), "kernel_name"],
                "gain": g,
                "predicted_tflops": t,
                "measured_tflops": m,
            }
            for i, g, t, m in zip(both, gain, predicted, measured, strict=True)
        ]
    )


def _predicted(rows: pd.DataFrame, problems: Sequence[Any], which: Sequence[int], model: TrainedModel) -> np.ndarray:
    """(rows,) TFLOPS."""
    tflops = []
    for index, (_, row) in zip(which, rows.iterrows(), strict=True):
        score = model.score_rows(problems[index].to_dict(), {n: np.array([row[n]]) for n in model.pool.columns})
        tflops.append(float(model.tflops_of_scores(problems[index], score)[0]))
    return np.array(tflops)


def _mean(gain: np.ndarray) -> float:
    return float(np.exp(np.log(gain).mean()))


@dataclass(frozen=True)
class Simulated:
    """A search among the measured kernels of a problem, judged by what was measured; efficiencies in (0, 1].

    Attributes:
        efficiency: of the one that it found.
        best_of_count: of the fastest of those that it found.
        evaluations: kernels that the model was asked about.
    """

    efficiency: float
    best_of_count: float
    evaluations: int


def simulate(rows: pd.DataFrame, model: TrainedModel, settings: SearchSettings, count: int) -> list[Simulated]:
    """Search each problem of :func:`validation_rows` among its measured kernels."""
    number = problem_index(rows, model.target.op)
    kind, simulated = model.pool.backend.kernel, []
    for index, problem in enumerate(problems_of(rows, model.target)):
        some = rows[number == index]
        columns = {n: some[n].to_numpy() for n in kind.column_names()}
        some = some[supported_mask(model.pool.backend, columns, problem, model.target.variant)]
        kernels = [kind.from_dict(r) for r in some.to_dict("records")]
        measured = dict(zip(kernels, some["tflops"].tolist(), strict=True))
        result = search(model, problem, settings, count, kernels)
        reached = [measured[f.kernel] for f in result.found]
        best = max(measured.values())
        simulated.append(Simulated(reached[0] / best, max(reached) / best, result.evaluations))
    return simulated
