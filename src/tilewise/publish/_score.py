"""Scores of submitted selections, by the measurements of a target's holdout."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tilewise.data import TargetTable, backend_of_frame, split_rule
from tilewise.errors import DataError, KernelError
from tilewise.evaluate import (
    MIN_PROBLEMS_SHOWN,
    SLICES_OF_TABLE,
    Predictions,
    SliceFigures,
    slice_names,
    sliced_metrics,
    with_efficiency,
)
from tilewise.kernels import BACKEND_COLUMN, backend
from tilewise.metrics import Floats, efficiency_figures, error_figures, ratio_figures
from tilewise.ops import OPS


@dataclass(frozen=True)
class Score:
    """The figures of a file of selections. Efficiencies are fractions.

    Attributes:
        target: name of the target.
        split_rule: the problems judged.
        n_kernels: number of distinct kernels selected.
        figures: metrics of :func:`tilewise.metrics.efficiency_figures`.
        vendor: `n_problems` that the vendor's calls were measured on, and `geomean`, `p10` and `least` of the time of
            the fastest such call / the selection's time; None without such problems.
        tflops_error: median of |predicted - measured| / measured; None for a file without predictions of TFLOPS.
        weakest: slices of at least :data:`tilewise.evaluate.MIN_PROBLEMS_SHOWN` problems by P10, the lowest first.
    """

    target: str
    split_rule: str
    n_kernels: int
    figures: Mapping[str, float]
    vendor: Mapping[str, float] | None
    tflops_error: float | None
    weakest: Sequence[SliceFigures]

    def to_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return dataclasses.asdict(self)


def score_predictions(predictions: Predictions, frame: pd.DataFrame, holdout_fraction: float) -> Score:
    """Return the figures of selections for all holdout problems of a target.

    Args:
        predictions: one selection per holdout problem, see :func:`tilewise.evaluate.read_predictions`.
        frame: a measurement table.
        holdout_fraction: share of the split keys that is held out, see :func:`tilewise.data.held_out`.

    Raises:
        DataError: a holdout problem has no selection, a selection is for another problem, or its kernel has no valid
            measurement of the problem. The message names file and row.
    """
    target = predictions.target
    held = TargetTable.of(frame, target).holdout(holdout_fraction)
    labels = held.labelled()
    rule = split_rule(target, holdout_fraction)
    _check_problems(predictions, labels, rule)
    named = dataclasses.replace(predictions, per_problem=_own_columns(predictions, labels))
    _check_kernels(named, labels, held)
    judged = with_efficiency(named, held.rows).per_problem
    slices = sliced_metrics(judged, _labels(target.op, judged))
    return Score(
        target=target.name,
        split_rule=rule,
        n_kernels=int(judged["selected"].nunique()),
        figures=efficiency_figures(judged["efficiency"].to_numpy(dtype=np.float64)),
        vendor=against_vendor(judged, labels),
        tflops_error=_tflops_error(judged, predictions.where),
        weakest=weakest_slices(slices, MIN_PROBLEMS_SHOWN),
    )


def weakest_slices(slices: Sequence[SliceFigures], min_problems: int, n: int = 3) -> list[SliceFigures]:
    """Return the `n` slices with the lowest P10, without those of fewer problems.

    Args:
        slices: from :func:`tilewise.evaluate.sliced_metrics`.
        min_problems: smaller slices are left out.
        n: largest number of slices.
    """
    return sorted((s for s in slices if s["n_problems"] >= min_problems), key=lambda s: s["p10_efficiency"])[:n]


def vendor_rates(labels: TargetTable) -> pd.DataFrame:
    """Return the TFLOPS of the vendor's fastest call per problem: problem columns, `kernel_name`, `vendor_tflops`.

    Args:
        labels: valid labels, one row per problem and kernel; problems without a row of a call are left out.
    """
    key, rows = list(OPS[labels.target.op].column_names()), labels.rows
    named = rows[BACKEND_COLUMN] if BACKEND_COLUMN in rows else pd.Series("", index=rows.index)
    in_pytorch = {name for name in named.dropna().unique() if name and backend(str(name)).in_pytorch}
    calls = rows[named.isin(in_pytorch)]
    fastest = calls.loc[calls.groupby(key)["tflops"].idxmax(), [*key, "kernel_name", "tflops"]]
    return fastest.rename(columns={"tflops": "vendor_tflops"})


def against_vendor(judged: pd.DataFrame, labels: TargetTable) -> dict[str, float] | None:
    """Return the vendor's time / the selections' time where both were measured, see :attr:`Score.vendor`.

    Args:
        judged: problem columns and `selected_tflops`, one row per problem.
        labels: valid labels of the same problems.
    """
    both = judged.merge(vendor_rates(labels).drop(columns="kernel_name"), on=list(OPS[labels.target.op].column_names()))
    if not len(both):
        return None
    ratio: Floats = (both["selected_tflops"] / both["vendor_tflops"]).to_numpy(dtype=np.float64)
    return {"n_problems": len(both), **ratio_figures(ratio)}


def _check_problems(predictions: Predictions, labels: TargetTable, rule: str) -> None:
    """Check that the file has each problem of the labels, and no other."""
    problem = OPS[labels.target.op]
    key = list(problem.column_names())
    given, wanted = predictions.per_problem[key], labels.rows[key].drop_duplicates()
    compared = given.reset_index(names="row").merge(wanted, on=key, how="outer", indicator="side")
    unknown = compared[compared["side"] == "left_only"].sort_values("row")
    if len(unknown):
        row = int(unknown["row"].iloc[0]) + 1
        count = f"{len(unknown)} of {len(given)}"
        raise DataError(
            f"{predictions.where}, row {row}: the problem is not of the {rule}; leave out such rows ({count})"
        )
    missing = compared[compared["side"] == "right_only"]
    if len(missing):
        first = problem.in_words(missing[key].iloc[0].to_dict())
        raise DataError(
            f"{predictions.where}: {len(missing)} of {len(wanted)} problems have no row, the first is {first}; select "
            f"a kernel for each problem of the {rule}"
        )


def _own_columns(predictions: Predictions, labels: TargetTable) -> pd.DataFrame:
    """Return the columns that a score reads, with the selected kernels' names as in measurements."""
    canonical, names, op = backend_of_frame(labels.rows).canonical_name, [], labels.target.op
    for number, name in enumerate(predictions.per_problem["selected"], 1):
        try:
            names.append(canonical(str(name)))
        except KernelError as e:
            raise DataError(f"{predictions.where}, row {number}: {e}") from e
    read = [*OPS[op].column_names(), "predicted_tflops", *_labels(op, predictions.per_problem)]
    return predictions.per_problem[list(dict.fromkeys(read))].assign(selected=names)


def _labels(op: str, table: pd.DataFrame) -> list[str]:
    """Return the labels that follow from the problems; the others are columns of the file."""
    return [name for name in slice_names(op, table) if name not in SLICES_OF_TABLE]


def _check_kernels(predictions: Predictions, labels: TargetTable, held: TargetTable) -> None:
    """Check that each selected kernel has a valid measurement of its problem."""
    key = list(OPS[labels.target.op].column_names())
    chosen = predictions.per_problem[[*key, "selected"]].rename(columns={"selected": "kernel_name"})
    both = chosen.merge(labels.rows[[*key, "kernel_name"]], on=[*key, "kernel_name"], how="left", indicator="side")
    bad = np.flatnonzero(both["side"] != "both")
    if not len(bad):
        return
    row = int(bad[0])
    measured = chosen.iloc[[row]].merge(held.rows[[*key, "kernel_name", "status"]], on=[*key, "kernel_name"])
    state = f"has status {measured['status'].iloc[0]}" if len(measured) else "was not measured"
    raise DataError(
        f"{predictions.where}, row {row + 1}: {chosen['kernel_name'].iloc[row]} {state} for this problem; select a "
        f"kernel of its rows with is_valid ({len(bad)} such rows)"
    )


def _tflops_error(judged: pd.DataFrame, where: str) -> float | None:
    predicted = judged["predicted_tflops"].to_numpy(dtype=np.float64)
    if np.isnan(predicted).all():
        return None
    wrong = np.flatnonzero(~(np.isfinite(predicted) & (predicted > 0)))
    if len(wrong):
        row, value = int(wrong[0]) + 1, predicted[wrong[0]]
        raise DataError(
            f"{where}, row {row}: predicted_tflops must be positive, got {value:g}; give it in every row or none"
        )
    return error_figures(predicted, judged["selected_tflops"].to_numpy(dtype=np.float64))["median_error"]
