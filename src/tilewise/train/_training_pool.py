"""The kernels of a measurement table that a model may choose from, and its problems that judge selections."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data import Bools, TargetTable, backend_of_frame
from tilewise.errors import DataError, KernelError
from tilewise.kernels import KernelBase, Pool, load_pool
from tilewise.ops import OPS, Target

# A selection can be judged on a problem only if this share of its supported kernels was measured: the fastest measured
# kernel is then taken for the fastest of all.
MIN_MEASURED_SHARE = 0.5
# That rule is dropped unless it leaves this share of the problems, or this many of them.
MIN_JUDGED_SHARE = 0.1
ENOUGH_JUDGED = 100


def pool_of(frame: pd.DataFrame, target: Target) -> Pool:
    """Return the kernels with a valid row in `frame`, so that a table of any architecture can be trained on.

    Order: as in the pool shipped for `target`, if any, then the others by name. The default kernel comes first. It is
    the shipped pool's default if that was measured; else the kernel that is valid on most problems, then the one that
    is most often the fastest, then the first by name.

    Args:
        frame: a measurement table.
        target: the target whose rows count.

    Raises:
        DataError: no row of `target` is valid.
    """
    rows = TargetTable.of(frame, target).rows
    rows = rows[rows["is_valid"].to_numpy()]
    if not len(rows):
        raise DataError(f"no valid row of {target.name}: nothing to learn from")
    backend = backend_of_frame(rows)
    parameters = rows[["kernel_name", *backend.column_kinds()]].drop_duplicates("kernel_name")
    measured = {backend.read_kernel({str(k): v for k, v in row.items()}) for row in parameters.to_dict("records")}
    shipped = _shipped(target)
    ordered = [k for k in shipped if k in measured]
    ordered += sorted(measured.difference(shipped), key=lambda k: _name(k, target))
    if not (shipped and shipped[0] in measured):
        default = _default(rows, target)
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


def _default(rows: pd.DataFrame, target: Target) -> str:
    problem = list(OPS[target.op].column_names())
    rows = rows.sort_values("kernel_name", kind="stable").reset_index(drop=True)
    fastest = rows.loc[rows.groupby(problem)["tflops"].idxmax(), "kernel_name"].value_counts()
    valid = rows.drop_duplicates([*problem, "kernel_name"])["kernel_name"].value_counts()
    merit = pd.DataFrame({"valid": valid, "fastest": fastest.reindex(valid.index).fillna(0)}).sort_index()
    return str(merit.sort_values(["valid", "fastest"], ascending=False, kind="stable").index[0])


def _shipped(target: Target) -> tuple[KernelBase, ...]:
    try:
        return load_pool(target).kernels
    except KernelError:
        return ()


def _name(kernel: KernelBase, target: Target) -> str:
    return kernel.name(target.op, target.variant, target.dtype)
