"""The kernels of a measurement table: those that a model may choose from, unlisted ones, and enough to judge by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data import TARGET_COLUMNS, Bools, Measurements, backend_of_frame, chunks_of, problem_index
from tilewise.errors import DataError, KernelError
from tilewise.kernels import KernelBase, Pool, load_pool
from tilewise.ops import OPS, Target

# A selection can be judged on a problem only if this share of its supported kernels was measured: the fastest measured
# kernel is then taken for the fastest of all.
MIN_MEASURED_SHARE = 0.5
# That rule is dropped unless it leaves this share of the problems, or this many of them.
MIN_JUDGED_SHARE = 0.1
ENOUGH_JUDGED = 100

_READ = ("kernel_name", "tflops", "is_valid")  # columns that the choice of a pool reads, besides


def pool_of(rows: pd.DataFrame | Measurements, target: Target) -> Pool:
    """Return the kernels with a valid row, so that a table of any architecture can be trained on.

    Order: as in the pool shipped for `target`, if any, then the others by name. The default kernel comes first. It is
    the shipped pool's default if that was measured; else the kernel that is valid on most problems, then the one that
    is most often the fastest, then the first by name.

    Args:
        rows: a measurement table.
        target: the target whose rows count.

    Raises:
        DataError: no row of `target` is valid.
    """
    measured, merits = set[KernelBase](), list[pd.DataFrame]()
    backend = backend_of_frame(rows) if isinstance(rows, pd.DataFrame) else rows.source.backend
    of_target = (*(c.name for c in TARGET_COLUMNS), *OPS[target.op].column_names())
    for chunk in chunks_of(rows, target, (*of_target, *_READ, *backend.column_kinds())):
        valid = chunk.take(chunk.rows["is_valid"].to_numpy()).rows
        if len(valid):
            measured |= _kernels(valid)
            merits.append(_merit(valid, target))
    if not measured:
        raise DataError(f"no valid row of {target.name}: nothing to learn from")
    shipped = _shipped(target)
    ordered = [k for k in shipped if k in measured]
    ordered += sorted(measured.difference(shipped), key=lambda k: _name(k, target))
    if not (shipped and shipped[0] in measured):
        default = _default(merits)
        ordered.sort(key=lambda k: _name(k, target) != default)  # stable: only the default moves
    return Pool(target.op, target.variant, target.dtype, tuple(ordered))


def is_judging(measured: npt.NDArray[np.int64], candidates: npt.NDArray[np.int64]) -> Bools:
    """Return whether a selection can be judged on each problem: enough of its kernels were measured.

    All problems count where hardly any meets the rule.

    Args:
        measured: number of measured kernels, of shape (problems,).
        candidates: number of kernels that support the problem, of shape (problems,).
    """
    judges = measured >= MIN_MEASURED_SHARE * candidates
    enough = judges.sum() >= min(ENOUGH_JUDGED, MIN_JUDGED_SHARE * len(judges))
    return judges if enough else np.ones(len(judges), dtype=bool)


def with_calls(judges: Bools, called: Bools) -> Bools:
    """Return the judging problems on which the calls that PyTorch makes by itself were measured as well.

    Such a call is a candidate that is hard to predict and costs much where it is mistaken. Problems without its row
    would flatter a model. They count all the same where too few others are left.

    Args:
        judges: from :func:`is_judging`, of shape (problems,).
        called: whether a problem has a row of such a call, of shape (problems,).
    """
    both = judges & called
    return both if both.sum() >= ENOUGH_JUDGED else judges


def _kernels(rows: pd.DataFrame) -> set[KernelBase]:
    backend = backend_of_frame(rows)
    parameters = rows[["kernel_name", *backend.column_kinds()]].drop_duplicates("kernel_name")
    return {backend.read_kernel({str(k): v for k, v in row.items()}) for row in parameters.to_dict("records")}


def _merit(rows: pd.DataFrame, target: Target) -> pd.DataFrame:
    """Return on how many problems each kernel is valid, and the fastest, indexed by its name."""
    kernel, names = pd.factorize(rows["kernel_name"], sort=True)
    problem, rates = problem_index(rows, target.op), rows["tflops"].to_numpy()
    best = np.full(problem.max() + 1, -np.inf)
    np.maximum.at(best, problem, rates)
    fastest, is_best = np.full(len(best), len(names)), rates == best[problem]
    np.minimum.at(fastest, problem[is_best], kernel[is_best])  # the first by name
    is_valid = np.zeros((len(best), len(names)), dtype=bool)
    is_valid[problem, kernel] = True
    counts = {"valid": is_valid.sum(axis=0), "fastest": np.bincount(fastest, minlength=len(names))}
    return pd.DataFrame(counts, index=names)


def _default(merits: Sequence[pd.DataFrame]) -> str:
    """Return the name of the default kernel; the merits are those of different problems."""
    merit = pd.concat(merits).groupby(level=0).sum().sort_index()
    return str(merit.sort_values(["valid", "fastest"], ascending=False, kind="stable").index[0])


def _shipped(target: Target) -> tuple[KernelBase, ...]:
    try:
        return load_pool(target).kernels
    except KernelError:
        return ()


def _name(kernel: KernelBase, target: Target) -> str:
    return kernel.name(target.op, target.variant, target.dtype)
