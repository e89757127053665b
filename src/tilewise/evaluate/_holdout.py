"""Evaluation of a model on measured problems, by default those that its training never saw."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data import TargetTable, group_keys, split_rule
from tilewise.errors import DataError
from tilewise.evaluate._confidence_coverage import confidence_columns
from tilewise.evaluate._distance import distance_labels, training_keys
from tilewise.evaluate._evaluation import Evaluation, WholePool
from tilewise.evaluate._noise import measured_apart, noise_ceiling, repeat_noise
from tilewise.evaluate._scored_table import ScoredTable, judged_rows
from tilewise.evaluate._slices import slice_labels
from tilewise.evaluate._unseen import require_unseen_problems
from tilewise.features import nearest_shape_distances
from tilewise.kernels import BACKEND_COLUMN
from tilewise.metrics import error_figures, regret_curve, summarise
from tilewise.model import TrainedModel


def evaluate(
    model: TrainedModel, frame: pd.DataFrame, holdout_fraction: float | None = None, *, require_unseen: bool = True
) -> Evaluation:
    """Let the model select a kernel per problem, and compare the selections with measurements.

    The model selects among the measured kernels that belong to its pool and support the problem: the choice that the
    dispatcher would make from those. The oracle is the fastest valid kernel measured, whether in the pool or not. See
    :func:`tilewise.data.labelled` for problems that several runs measured.

    Args:
        model: the model to evaluate.
        frame: a measurement table; other targets are ignored, repeats give the noise ceiling.
        holdout_fraction: evaluate only holdout problems, see :func:`~tilewise.data.held_out`; None: all problems.
        require_unseen: refuse a model that was trained on some of that holdout.

    Raises:
        ConfigError: the model was trained on some of that holdout, or says so falsely.
        DataError: the table has no problem to evaluate on.
    """
    target = model.target
    rows = TargetTable.of(frame, target)
    rule = "all problems of the table"
    if holdout_fraction is not None:
        if require_unseen:
            require_unseen_problems(model, rows, holdout_fraction)
        rule, rows = split_rule(target, holdout_fraction), rows.holdout(holdout_fraction)
    table, n_unjudged = judged_rows(model, rows)
    if not len(table):
        raise DataError(f"no problem of {target.name} to judge by ({rule}): none has a valid kernel of the pool")
    scored = ScoredTable.of(model, table)
    per_problem = [
        _outcome(scored),
        slice_labels(table.problems, target, model.arch),
        _context(scored, frame),
        confidence_columns(scored),
    ]
    return Evaluation(
        target=target,
        per_problem=pd.concat(per_problem, axis=1),
        metrics=summarise(scored.chosen, table.tflops, scored.predicted),
        pool_size=len(model.pool),
        split_rule=rule,
        noise_ceiling=noise_ceiling(frame, target),
        n_unjudged=n_unjudged,
        whole_pool=_whole_pool(scored) if model.pool.backend.lists_fastest else None,
        regret=regret_curve(scored.chosen),
        measured=table.tflops[scored.candidate],
        predicted=scored.predicted[scored.candidate],
        extras=_extra_errors(scored),
    )


_MEASURED = {"latency": "latency_ms", "bandwidth": "bandwidth_gb_s"}  # columns of the additional labels


def _extra_errors(scored: ScoredTable) -> dict[str, dict[str, float]]:
    """Return the errors of the model's own latency and bandwidth of the candidates, by label."""
    model, rows = scored.model, scored.candidate_rows()
    if not model.extras:
        return {}
    matrix = model.matrix(rows.problem_columns(), rows.kernel_columns(model.pool))
    return {
        label: error_figures(np.exp(trees.predict(matrix)), rows.rows[_MEASURED[label]].to_numpy(dtype=np.float64))
        for label, trees in model.extras.items()
    }


def _whole_pool(scored: ScoredTable) -> WholePool:
    """Let the model select from its whole pool, and charge an unlisted selection as the slowest listed kernel."""
    table, model = scored.table, scored.model
    picks = [int(model.rank(problem, 1)[0]) for problem in table.problems]
    number, kernel, rates = table.problem, table.kernel(model.pool), table.tflops
    best, slowest, picked = np.zeros(len(picks)), np.full(len(picks), np.inf), np.zeros(len(picks))
    np.maximum.at(best, number, rates)
    np.minimum.at(slowest, number, rates)
    is_pick = kernel == np.array(picks)[number]
    picked[number[is_pick]] = rates[is_pick]
    efficiency = np.where(picked > 0, picked, slowest) / best
    p10, p50 = np.percentile(efficiency, [10, 50])
    return WholePool(float(efficiency.mean()), float(p50), float(p10), float((picked > 0).mean()))


def _outcome(scored: ScoredTable) -> pd.DataFrame:
    """Return the selection and the oracle of each problem, with their measurements, one row per problem."""
    table, chosen = scored.table, scored.chosen
    measured, kernel = (table.rows[n].to_numpy() for n in ("tflops", "kernel_name"))
    return pd.DataFrame(
        {
            **{n: column[chosen.oracle] for n, column in table.problem_columns().items()},
            "oracle": kernel[chosen.oracle],
            "selected": kernel[chosen.selected],
            "oracle_tflops": measured[chosen.oracle],
            "selected_tflops": measured[chosen.selected],
            "predicted_tflops": scored.predicted[chosen.selected],
            "efficiency": chosen.efficiency,
            "oracle_rank": chosen.oracle_rank,
            "n_kernels": np.bincount(table.problem[scored.candidate], minlength=len(chosen.oracle)),
            "origin": table.rows["origin"].to_numpy()[chosen.oracle],
        }
    )


def _context(scored: ScoredTable, frame: pd.DataFrame) -> pd.DataFrame:
    """Return columns from the rest of the table: distance to the training data, and repeats; one row per problem."""
    rows, chosen, target = scored.table.rows, scored.chosen, scored.model.target
    known = training_keys(scored.model, frame)
    distance = np.full(len(chosen.oracle), np.nan)
    if known is not None:
        distance = nearest_shape_distances(group_keys(target.op, rows.iloc[chosen.oracle]), known)
    first, again = measured_apart(rows, frame, target)
    pipeline = {"pipeline": pipelines_of(rows)[chosen.oracle]} if "pipeline" in rows else {}
    return pd.DataFrame(
        {
            **pipeline,
            "distance": distance_labels(distance),
            "oracle_predicted_tflops": scored.predicted[chosen.oracle],
            "nearest_octaves": distance,
            "repeat_noise": repeat_noise(scored.table.problem, first, again),
            "efficiency_again": again[chosen.selected] / again[chosen.oracle],
        }
    ).astype(dict.fromkeys([*pipeline, "distance"], "str"))


def pipelines_of(rows: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return the pipeline of each row; of a kernel without one, such as a call of PyTorch's, its backend's name."""
    pipelines = rows["pipeline"]
    if BACKEND_COLUMN in rows:
        pipelines = pipelines.where(pipelines != "", rows[BACKEND_COLUMN])
    names: npt.NDArray[np.object_] = pipelines.to_numpy(dtype=object)
    return names
