"""The pool of a measurement table: the kernels that a model trained on it may choose from."""

from __future__ import annotations

import pandas as pd

from tilewise.data import TargetTable, backend_of_frame
from tilewise.errors import DataError, KernelError
from tilewise.kernels import KernelBase, Pool, load_pool
from tilewise.ops import OPS, Target


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
