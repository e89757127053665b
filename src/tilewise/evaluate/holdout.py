"""Judging a model on problems that its training never saw."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tilewise.data.labels import valid_labels
from tilewise.data.rows import Bools, is_of, is_supported, problem_index, problems_of, sort_rows
from tilewise.data.splits import group_keys, holdout_mask, split_rule
from tilewise.errors import ConfigError, DataError
from tilewise.evaluate.distance import distance_labels, training_keys
from tilewise.evaluate.noise import measured_apart, noise_ceiling, repeat_noise
from tilewise.evaluate.result import Evaluation
from tilewise.evaluate.slices import slice_labels
from tilewise.evaluate.trust import trust_columns
from tilewise.features.octaves import nearest_octaves
from tilewise.metrics import Floats, Ints, Selections, regret_curve, select, summarise
from tilewise.model.trained import TrainedModel
from tilewise.ops import OPS, Problem


def evaluate(
    model: TrainedModel, frame: pd.DataFrame, holdout_fraction: float | None = None, *, require_unseen: bool = True
) -> Evaluation:
    """Let the model select for each problem, and compare with what was measured.

    It selects among the kernels that were measured, are in its pool and support the problem: the choice that the
    dispatcher would make from those. The oracle is the fastest valid kernel measured, of the pool or not; what several
    runs measured counts as :func:`~tilewise.data.labels.labelled` says.

    Args:
        model: to judge.
        frame: a measurement table; other targets are ignored, repeats give the noise ceiling.
        holdout_fraction: judge only problems that :func:`~tilewise.data.splits.holdout_mask` holds out; None: all.
        require_unseen: refuse a model that was trained on some of that holdout.

    Raises:
        ConfigError: the model was trained on some of that holdout.
        DataError: there is no problem to judge by.
    """
    target = model.target
    rows = frame[is_of(frame, target)]
    rule = "all problems of the table"
    if holdout_fraction is not None:
        if require_unseen:
            _require_unseen(model, holdout_fraction)
        rule = split_rule(holdout_fraction)
        rows = rows[holdout_mask(target.op, group_keys(target.op, rows), holdout_fraction)] if len(rows) else rows
    rows = valid_labels(rows, target.op)
    rows = sort_rows(rows, target, model.pool)
    candidate = is_supported(rows, target, model.pool)
    number = problem_index(rows, target.op)
    has_candidate = np.isin(number, number[candidate])
    n_unjudged = len(np.unique(number[~has_candidate]))
    rows, candidate = rows[has_candidate], candidate[has_candidate]
    if not len(rows):
        raise DataError(
            f"no problem of {target.name} to judge by ({rule}): none has a valid kernel of the model's pool"
        )
    problems, problem = problems_of(rows, target), problem_index(rows, target.op)
    score, predicted = _predict(model, rows, problems, problem, candidate)
    measured = rows["tflops"].to_numpy(dtype=np.float64)
    chosen = select(problem, measured, score)
    per_problem = pd.concat(
        [
            _outcome(rows, problem, candidate, chosen, predicted),
            slice_labels(problems, target, model.arch),
            _context(model, frame, rows, problem, chosen, predicted),
            trust_columns(model, rows, problems, problem, candidate, predicted, chosen),
        ],
        axis=1,
    )
    return Evaluation(
        target=target,
        per_problem=per_problem,
        metrics=summarise(chosen, measured, predicted),
        pool_size=len(model.pool),
        split_rule=rule,
        noise_ceiling=noise_ceiling(frame, target),
        n_unjudged=n_unjudged,
        regret=regret_curve(chosen),
        measured=measured[candidate],
        predicted=predicted[candidate],
    )


def _outcome(
    rows: pd.DataFrame, problem: Ints, candidate: Bools, chosen: Selections, predicted: Floats
) -> pd.DataFrame:
    """What was selected, and what it is worth; a row a problem."""
    measured, kernel = (rows[n].to_numpy() for n in ("tflops", "kernel_name"))
    return pd.DataFrame(
        {
            **{n: rows[n].to_numpy()[chosen.oracle] for n in OPS[str(rows["op"].iloc[0])].column_names()},
            "oracle": kernel[chosen.oracle],
            "selected": kernel[chosen.selected],
            "oracle_tflops": measured[chosen.oracle],
            "selected_tflops": measured[chosen.selected],
            "predicted_tflops": predicted[chosen.selected],
            "efficiency": chosen.efficiency,
            "oracle_rank": chosen.oracle_rank,
            "n_kernels": np.bincount(problem[candidate], minlength=len(chosen.oracle)),
            "origin": rows["origin"].to_numpy()[chosen.oracle],
        }
    )


def _context(
    model: TrainedModel, frame: pd.DataFrame, rows: pd.DataFrame, problem: Ints, chosen: Selections, predicted: Floats
) -> pd.DataFrame:
    """What the table knows beyond the outcome: labels from measurements and training set, and the repeats."""
    known = training_keys(model, frame)
    octaves = np.full(len(chosen.oracle), np.nan)
    if known is not None:
        octaves = nearest_octaves(group_keys(model.target.op, rows.iloc[chosen.oracle]), known)
    first, again = measured_apart(rows, frame, model.target)
    pipeline = {"pipeline": rows["pipeline"].to_numpy()[chosen.oracle]} if "pipeline" in rows else {}
    return pd.DataFrame(
        {
            **pipeline,
            "distance": distance_labels(octaves),
            "oracle_predicted_tflops": predicted[chosen.oracle],
            "nearest_octaves": octaves,
            "repeat_noise": repeat_noise(problem, first, again),
            "efficiency_again": again[chosen.selected] / again[chosen.oracle],
        }
    ).astype(dict.fromkeys([*pipeline, "distance"], "str"))


def _require_unseen(model: TrainedModel, fraction: float) -> None:
    trained = float(model.manifest.get("holdout_fraction", 0.0))
    if fraction > trained:
        raise ConfigError(
            f"holdout.fraction {fraction} holds problems that {model.where} was trained on (it was trained with "
            f"{trained}); evaluate with that fraction or less, or train again"
        )


def _predict(
    model: TrainedModel, rows: pd.DataFrame, problems: tuple[Problem, ...], problem: Ints, candidate: Bools
) -> tuple[Floats, Floats]:
    """Score and TFLOPS of each row; what is no candidate has score minus infinity and TFLOPS NaN."""
    score, tflops = np.full(len(rows), -np.inf), np.full(len(rows), np.nan)
    chosen = rows[candidate]
    score[candidate] = model.score_candidates(
        problem[candidate],
        {n: chosen[n].to_numpy() for n in OPS[model.target.op].column_names()},
        {n: chosen[n].to_numpy() for n in model.pool.columns},
    )
    bounds = np.append(np.flatnonzero(np.diff(problem, prepend=-1)), len(problem))
    for p, start, stop in zip(problems, bounds[:-1], bounds[1:], strict=True):
        of_problem = start + np.flatnonzero(candidate[start:stop])
        tflops[of_problem] = model.tflops_of_scores(p, score[of_problem])
    return score, tflops
