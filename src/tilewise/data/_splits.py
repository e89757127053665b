"""Splits: group keys, split keys, the holdout rule, which was fixed in advance, and primary runs.

The holdout depends on a problem's split key alone. So no later measurement, reordering or seed moves a problem from one
side to the other. The split key is the group key; on archs that split by layer (:attr:`Target.splits_by_layer`) it is
the group key without the batch. It has no dtype, variant, layout or arch, so a layer is on one side in every target.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data._rows import numbered, problem_index, versions_of
from tilewise.ops import OPS, Target

HOLDOUT_RULE = "tilewise-holdout-1"

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Columns: TypeAlias = "Mapping[str, npt.ArrayLike] | pd.DataFrame"


def group_keys(op: str, columns: Columns) -> Ints:
    """Return the group key of each row, of shape (rows, dimensions): :attr:`Problem.group_key` for many problems.

    Args:
        op: a key of :data:`tilewise.ops.OPS`.
        columns: the problem columns: arrays of shape (rows,), or a frame.
    """
    problem = OPS[op]
    formula = cast(property, inspect.getattr_static(problem, "group_key")).fget
    assert formula is not None
    values = {n: np.asarray(columns[n]) for n in problem.column_names()}
    key = formula(SimpleNamespace(column_names=problem.column_names, **values))
    return np.stack([np.asarray(k, dtype=np.int64) for k in key], axis=1)


def split_keys(target: Target, keys: npt.ArrayLike) -> Ints:
    """Return the split key of each row, which decides its fold and whether it is held out.

    Args:
        target: its arch decides whether batches of a layer are split.
        keys: group keys of shape (rows, dimensions).

    Returns:
        Keys of shape (rows, dimensions); without the batch where the target splits by layer.
    """
    rows = np.asarray(keys, dtype=np.int64)
    return OPS[target.op].layer_keys(rows) if target.splits_by_layer and rows.ndim == 2 else rows


def held_out(target: Target, keys: npt.ArrayLike, fraction: float) -> Bools:
    """Return which problems of a target belong to its holdout, of shape (rows,).

    Args:
        target: decides the split key, see :func:`split_keys`.
        keys: group keys of shape (rows, dimensions).
        fraction: share of the split keys to hold out, in [0, 1].
    """
    return holdout_mask(target.op, split_keys(target, keys), fraction)


def holdout_mask(op: str, keys: npt.ArrayLike, fraction: float) -> Bools:
    """Return which rows belong to the holdout, of shape (rows,).

    A key is held out if the first 8 bytes (big-endian) of the SHA-256 of ``tilewise-holdout-1:{op}:{ints, comma}``,
    as a fraction of 2^64, are below `fraction`.

    Args:
        op: part of the hashed text, so that ops split independently.
        keys: split keys of shape (rows, dimensions), which are group keys on archs that do not split by layer.
        fraction: share of the keys to hold out, in [0, 1].
    """
    rows = np.asarray(keys, dtype=np.int64)
    if not len(rows):
        return np.zeros(0, dtype=bool)
    columns = pd.DataFrame(rows)
    number, first = numbered(columns, list(columns))
    held = np.array([_position(op, key.tolist()) < fraction for key in rows[first]])
    return cast(Bools, held[number])


def split_rule(target: Target, fraction: float, n_splits: int | None = None) -> str:
    """Return the split in words; it is printed beside every figure that depends on it."""
    unit = "layer" if target.splits_by_layer else "group key"
    holdout = f"holdout: {fraction:.0%} of the {unit}s by hash ({HOLDOUT_RULE})"
    return holdout if n_splits is None else f"{holdout}; {n_splits}-fold GroupKFold on the {unit} for the rest"


def is_primary(frame: pd.DataFrame, op: str) -> Bools:
    """Return which rows belong to the primary run of their problem, of shape (rows,). Other runs are compared with it.

    The primary run is that of the latest programs, then that with the most valid rows of the problem; ties go to the
    earliest ``measured_at``, then to the first ``run_id`` by name. Others do not count: a run whose times are
    superseded keeps rows of unsupported kernels.

    Args:
        frame: a measurement table of one target.
        op: the target's op.
    """
    return primary_of(problem_index(frame, op), frame, op)


def primary_of(problem: Ints, frame: pd.DataFrame, op: str) -> Bools:
    """Return the mask of :func:`is_primary`, given the number of each row's problem, of shape (rows,)."""
    run, at = (pd.factorize(frame[name], sort=True)[0] for name in ("run_id", "measured_at"))
    at = np.where(at < 0, len(at), at)  # unknown times come last
    rows = pd.DataFrame({"problem": problem, "run": run, "at": at, "valid": frame["is_valid"].to_numpy()})
    rows["version"] = np.where(rows["valid"], versions_of(frame, op), 0)
    runs = rows.groupby(["problem", "run"], as_index=False).agg(
        version=("version", "max"), n=("valid", "sum"), at=("at", "min")
    )
    runs = runs.sort_values(["problem", "version", "n", "at", "run"], ascending=[True, False, False, True, True])
    primary = runs.drop_duplicates("problem")["run"].to_numpy()
    return cast(Bools, primary[problem] == run)


def _position(op: str, key: Sequence[int]) -> float:
    """Return the hash of a group key as a fraction in [0, 1)."""
    text = f"{HOLDOUT_RULE}:{op}:{','.join(map(str, key))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
