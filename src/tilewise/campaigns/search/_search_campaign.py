"""Search campaigns: a plan that measures found kernels beside the pool's, and the verdict on its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from tilewise.campaigns.search._search import SearchSettings, search
from tilewise.campaigns.search._surrogate import PoolDistances
from tilewise.collect import Item, Plan, Timing
from tilewise.data import TargetTable
from tilewise.errors import DataError
from tilewise.kernels import KernelBase, Pool, supported_mask
from tilewise.metrics import Floats
from tilewise.model import TrainedModel
from tilewise.ops import Problem

# Few kernels, so all of them run in every round, and finalists again.
TIMING = Timing(rounds=16, min_rounds=8, budget_ms=16.0, trailing=4.0, hopeless=8.0, final_rounds=16)


def validation_rows(frame: pd.DataFrame, model: TrainedModel, fraction: float, count: int, seed: int) -> pd.DataFrame:
    """Return the valid labels of `count` holdout problems drawn by `seed`, sorted by problem and the model's pool.

    Raises:
        DataError: no measured problem is in the holdout.
    """
    labels = TargetTable.of(frame, model.target).holdout(fraction).labelled()
    if not len(labels):
        raise DataError(f"no measured problem of {model.target.name} is in the holdout (fraction {fraction:g})")
    return labels.ordered(model.pool).draw(count, seed).rows


def plan_search_campaign(
    rows: pd.DataFrame, model: TrainedModel, settings: SearchSettings, count: int, run_id: str
) -> Plan:
    """Return a plan that measures, per problem, the `count` best found outside the pool and the recorded `count` best.

    Args:
        rows: from :func:`validation_rows`.
        model: the model whose scores are searched.
        settings: of the searches.
        count: number of kernels on either side.
        run_id: name of the plan's run.
    """
    labels = TargetTable(model.target, rows)
    number, problems = labels.problem, labels.problems
    backend, pool = model.pool.backend, set(model.pool.kernels)
    chosen: list[tuple[KernelBase, ...]] = []
    distances = PoolDistances(model.pool)
    for index, problem in enumerate(problems):
        result = search(model, problem, settings, settings.n_evaluations, distances=distances)
        new = [f.kernel for f in result.found if f.kernel not in pool][:count]
        recorded = rows[number == index].nlargest(count, "tflops")
        chosen.append((*(backend.read_kernel(r) for r in recorded.to_dict("records")), *new))
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
    """Verdict on a campaign. Gains are TFLOPS of the best found / of the pool's best, measured side by side.

    Attributes:
        problems: problems with valid kernels on both sides.
        found_better: share of problems where a found kernel was faster by more than 1 %.
        found_within: share of problems where it was at least 0.99 as fast.
        geometric_mean, p10, median, p90, best: statistics of the gains.
        with_search: geometric mean of the gains of a pool extended by the found kernels, each at least 1.
        failed: share of found kernels that failed.
        optimism: median of predicted / measured TFLOPS of the best found; 1 is unbiased.
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
        """Return plain data."""
        return asdict(self)


def judge_search_campaign(table: pd.DataFrame, model: TrainedModel) -> tuple[Verdict, pd.DataFrame]:
    """Compare found kernels, those outside the model's pool, with the pool's in a campaign's table.

    Returns:
        The verdict, and one row per problem: its columns, `pool_kernel`, `found_kernel`, `gain`, `predicted_tflops` and
        `measured_tflops`.

    Raises:
        DataError: no problem has a valid kernel on both sides.
    """
    of_target = TargetTable.of(table, model.target)
    rows, problems = of_target.rows.reset_index(drop=True), of_target.problems
    rows = rows.assign(problem=of_target.problem, found=~rows["kernel_name"].isin(model.pool.names))
    valid = rows[rows["is_valid"]]
    best = valid.loc[valid.groupby(["problem", "found"])["tflops"].idxmax()].set_index(["problem", "found"])
    both = [i for i in range(len(problems)) if (i, True) in best.index and (i, False) in best.index]
    if not both:
        raise DataError("no problem has a valid kernel both in and outside the model's pool; is this a search's table?")
    predicted = _predicted(best.loc[[(i, True) for i in both]], problems, both, model)
    gain = np.array([best.loc[(i, True), "tflops"] / best.loc[(i, False), "tflops"] for i in both])
    measured = np.array([best.loc[(i, True), "tflops"] for i in both])
    found = rows[rows["found"]]
    verdict = _verdict(gain, predicted / measured, float((~found["is_valid"]).mean()))
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


def _verdict(gain: Floats, optimism: Floats, failed: float) -> Verdict:
    p10, median, p90 = np.percentile(gain, [10, 50, 90])
    return Verdict(
        problems=len(gain),
        found_better=float((gain > 1.01).mean()),
        found_within=float((gain >= 0.99).mean()),
        geometric_mean=_mean(gain),
        p10=float(p10),
        median=float(median),
        p90=float(p90),
        best=float(gain.max()),
        with_search=_mean(np.maximum(gain, 1.0)),
        failed=failed,
        optimism=float(np.median(optimism)),
    )


def _predicted(rows: pd.DataFrame, problems: Sequence[Problem], which: Sequence[int], model: TrainedModel) -> Floats:
    """Return predicted TFLOPS, of shape (rows,)."""
    tflops = []
    for index, (_, row) in zip(which, rows.iterrows(), strict=True):
        score = model.score_rows(problems[index].to_dict(), {n: np.array([row[n]]) for n in model.pool.columns})
        tflops.append(float(model.tflops_of_scores(problems[index], score)[0]))
    return np.array(tflops)


def _mean(gain: Floats) -> float:
    return float(np.exp(np.log(gain).mean()))


@dataclass(frozen=True)
class Simulated:
    """A search among the measured kernels of a problem, judged by their measurements; efficiencies in (0, 1].

    Attributes:
        efficiency: efficiency of the best kernel found.
        best_of_count: efficiency of the fastest of all kernels found.
        evaluations: number of kernels that the model scored.
    """

    efficiency: float
    best_of_count: float
    evaluations: int


def simulate_searches(rows: pd.DataFrame, model: TrainedModel, settings: SearchSettings, count: int) -> list[Simulated]:
    """Search each problem of :func:`validation_rows` among its measured kernels."""
    labels = TargetTable(model.target, rows)
    backend, simulated = model.pool.backend, list[Simulated]()
    for index, problem in enumerate(labels.problems):
        some = rows[labels.problem == index]
        columns = {n: some[n].to_numpy() for n in backend.column_kinds()}
        some = some[supported_mask(backend, columns, problem, model.target.variant, model.target.dtype)]
        kernels = [backend.read_kernel(r) for r in some.to_dict("records")]
        measured = dict(zip(kernels, some["tflops"].tolist(), strict=True))
        result = search(model, problem, settings, count, kernels)
        reached = [measured[f.kernel] for f in result.found]
        best = max(measured.values())
        simulated.append(Simulated(reached[0] / best, max(reached) / best, result.evaluations))
    return simulated
