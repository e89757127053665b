"""Files of predictions: a row per problem with the selected kernel, as CSV or parquet, and their comparison.

Such a file is judged without the model that made it. Efficiencies stand in the file, or come from measurements.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from tilewise.arch import load_arch
from tilewise.data import TargetTable, backend_of_frame, parquet_bytes, without_implied
from tilewise.errors import ConfigError, DataError, ProblemError
from tilewise.evaluate._compare import Compared, CompareSettings, Comparison, Side, compare_tables
from tilewise.evaluate._evaluation import Evaluation
from tilewise.evaluate._slices import slice_labels, slice_names
from tilewise.files import write_bytes, write_text
from tilewise.model import given_cells
from tilewise.ops import Target

PREDICTION_FORMATS = (".csv", ".parquet")
_SELECTED = ("selected", "kernel_name")  # an evaluation's column, and that of `tilewise select`
_TARGET = "target"


@dataclass(frozen=True)
class Predictions:
    """The selections of a file.

    Attributes:
        where: the file.
        content_hash: SHA-256 of the file.
        target: target of the problems.
        per_problem: the problem columns, `selected`, the slice labels, and as far as known `efficiency` and the other
            columns of :attr:`Evaluation.per_problem`.
    """

    where: str
    content_hash: str
    target: Target
    per_problem: pd.DataFrame


def write_predictions(path: Path, evaluation: Evaluation) -> None:
    """Write the selections of an evaluation, with their target, as CSV or parquet by the ending of `path`.

    Raises:
        ConfigError: the ending is another one.
        OSError: the file cannot be written.
    """
    frame = without_implied(evaluation.per_problem, evaluation.target.op)
    frame = frame.assign(**{_TARGET: evaluation.target.name})
    if is_predictions(path) and path.suffix == ".csv":
        write_text(path, frame.to_csv(index=False))
    elif is_predictions(path):
        write_bytes(path, parquet_bytes(frame))
    else:
        raise ConfigError(f"predictions are written as {' or '.join(PREDICTION_FORMATS)}, got {path}")


def is_predictions(path: str | Path) -> bool:
    """Return whether a name has the ending of a file of predictions."""
    return Path(path).suffix in PREDICTION_FORMATS


def read_predictions(path: Path, target: Target) -> Predictions:
    """Read a file of :func:`write_predictions`, a report's predictions.parquet, or the CSV of `tilewise select`.

    Args:
        path: CSV or parquet with the problem columns, and ``selected`` or ``kernel_name``.
        target: target of the rows where the file does not state it.

    Raises:
        DataError: the file cannot be read, lacks a column, has rows of several targets, or a row is an impossible
            problem, twice there, or has an efficiency outside (0, 1].
    """
    try:
        content = path.read_bytes()
        frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except (OSError, ValueError) as e:
        raise DataError(f"{path}: not a file of predictions: {e}") from e
    if _TARGET in frame and len(frame):
        target = _only_target(path, frame[_TARGET])
    selected = next((name for name in _SELECTED if name in frame), None)
    if selected is None or not len(frame):
        raise DataError(f"{path}: predictions need rows, and a column {' or '.join(_SELECTED)}")
    frame = _checked(path, frame.rename(columns={selected: "selected"}), target)
    return Predictions(str(path), hashlib.sha256(content).hexdigest(), target, frame)


def _only_target(path: Path, stated: pd.Series) -> Target:
    """Return the target that all rows state."""
    names = stated.astype(str)
    if (other := np.flatnonzero(names != names.iloc[0])).size:
        row, first = int(other[0]), names.iloc[0]
        raise DataError(
            f"{path}, row {row + 1}: target {names.iloc[row]}, but row 1 is of {first}; write a file for each"
        )
    return Target.parse(str(names.iloc[0]))


def _checked(path: Path, frame: pd.DataFrame, target: Target) -> pd.DataFrame:
    """Return the rows with all problem columns and labels."""
    known, problems = target.problem_type.column_names(), []
    for number, row in enumerate(frame[[n for n in frame if n in known]].to_dict("records"), 1):
        try:
            problems.append(target.problem(given_cells(row)))
        except ProblemError as e:
            raise DataError(f"{path}, row {number}: {e} (target {target.name})") from e
    if len(set(problems)) < len(problems):
        raise DataError(f"{path}: a problem occurs twice; a file of predictions has one row for each")
    if "efficiency" in frame and not frame["efficiency"].between(0, 1, inclusive="right").all():
        raise DataError(f"{path}: efficiency must be in (0, 1] in every row")
    labels = slice_labels(problems, target, load_arch(target.arch))
    columns = pd.DataFrame([p.to_dict() for p in problems])
    rest = frame[[n for n in frame if n not in columns and n not in labels]].reset_index(drop=True)
    missing = {n: np.nan for n in ("efficiency_again", "repeat_noise", "predicted_tflops") if n not in rest}
    return pd.concat([columns, rest.assign(**missing), labels[[n for n in labels if n not in columns]]], axis=1)


def with_efficiency(predictions: Predictions, frame: pd.DataFrame) -> Predictions:
    """Return predictions judged by a measurement table; problems whose selection was not measured are left out.

    Raises:
        DataError: no selection was measured.
    """
    target, found = predictions.target, predictions.per_problem
    rows = TargetTable.of(frame, target).labelled().rows
    key = list(target.problem_type.column_names())
    best = rows.loc[rows.groupby(key)["tflops"].idxmax(), [*key, "kernel_name", "tflops"]]
    canonical = backend_of_frame(rows).canonical_name
    asked = found.assign(selected=found["selected"].map(canonical))
    asked = asked.drop(columns=[n for n in ("oracle", "oracle_tflops", "efficiency") if n in asked])
    judged = asked.merge(best.rename(columns={"kernel_name": "oracle", "tflops": "oracle_tflops"}), on=key)
    own = rows[[*key, "kernel_name", "tflops"]].rename(columns={"kernel_name": "selected", "tflops": "selected_tflops"})
    judged = judged.drop(columns="selected_tflops", errors="ignore").merge(own, on=[*key, "selected"])
    if not len(judged):
        raise DataError(f"{predictions.where}: the table has no measurement of a selected kernel of {target.name}")
    judged["efficiency"] = judged["selected_tflops"] / judged["oracle_tflops"]
    return Predictions(predictions.where, predictions.content_hash, target, judged)


def compare_predictions(a: Predictions, b: Predictions, settings: CompareSettings | None = None) -> Comparison:
    """Compare the selections of two files for the problems that both have; differences are b - a.

    Raises:
        ConfigError: the files are of different targets.
        DataError: they share no problem, or an efficiency is missing.
    """
    if a.target != b.target:
        raise ConfigError(f"a has predictions for {a.target.name}, b for {b.target.name}: they share no problems")
    for file in (a, b):
        if "efficiency" not in file.per_problem:
            raise DataError(f"{file.where}: has no column efficiency; judge it by measurements (data=)")
    both = Compared.of(a.target, a.per_problem, b.per_problem)
    if not len(both.table):
        raise DataError(f"{a.where} and {b.where} share no problem")
    files = tuple(Side(f.where, f.content_hash, _n_selected(f), {}) for f in (a, b))
    notes = ["the models are unknown: nothing tells whether they learnt from these problems"]
    return compare_tables(both, (files[0], files[1]), settings or CompareSettings(), notes)


def _n_selected(file: Predictions) -> int:
    """Return how many distinct kernels were selected: the pool is unknown."""
    return int(file.per_problem["selected"].nunique())


def only_slices(evaluated: pd.DataFrame, op: str, wanted: Mapping[str, str]) -> np.ndarray:
    """Return which problems lie in all the given slices: bool, (problems,).

    Args:
        evaluated: :attr:`Evaluation.per_problem`.
        op: op of the problems.
        wanted: value by slice label.

    Raises:
        ConfigError: a label or value is unknown, or no problem lies in all of them.
    """
    mask = np.ones(len(evaluated), dtype=bool)
    known = slice_names(op, evaluated)
    for name, value in wanted.items():
        if name not in known:
            raise ConfigError(f"slices: {name!r} is unknown; known are {', '.join(known)}")
        labels = evaluated[name].astype(str)
        if not (labels == str(value)).any():
            raise ConfigError(f"slices: no problem has {name}={value}; there are {', '.join(sorted(set(labels)))}")
        mask &= (labels == str(value)).to_numpy()
    if not mask.any():
        raise ConfigError(f"slices: no problem lies in all of {', '.join(f'{n}={v}' for n, v in wanted.items())}")
    return mask
