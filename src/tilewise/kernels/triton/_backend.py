"""The backend contract of Triton's kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tilewise.kernels._contract import Backend
from tilewise.kernels._formulas import Formulas, Traits
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import Pipeline, any_of
from tilewise.kernels.triton._rules import (
    TRITON_DTYPES,
    checks,
    illegal,
    is_described,
    is_one_launch,
    is_persistent,
    leaves,
    store_factor,
    stores_tiles,
    uses_matrix_units,
)
from tilewise.kernels.triton.pipelines import PIPELINES, pipelines_of


def _numbers(op: str) -> dict[str, int]:
    return {name: PIPELINES[name].number for name in pipelines_of(op)}


def _traits(columns: SimpleNamespace) -> Traits:
    pipelines: list[Pipeline] = list(PIPELINES.values())
    no = np.zeros(np.shape(columns.pipeline), dtype=bool)
    described = no | is_described(columns)
    return Traits.plain(
        columns,
        matrix_units=no | uses_matrix_units(columns),
        described=described,
        staged=described,
        stores_tiles=no | stores_tiles(columns),
        persistent=no | is_persistent(columns),
        tapwise=no | any_of(columns, (p for p in pipelines if p.k_order == "tapwise")),
        filter_rows=no | any_of(columns, (p for p in pipelines if p.filter_rows)),
        repeats_edges=no | any_of(columns, (p for p in pipelines if p.repeats_edges)),
    )


def _formulas() -> tuple[Formulas, ...]:
    return tuple(p.formulas for p in PIPELINES.values() if p.formulas is not None)


TRITON = Backend(
    name="triton",
    label="Triton",
    kernel=Kernel,
    illegal=illegal,
    checks=checks,
    dtypes=TRITON_DTYPES,
    pipelines=_numbers,
    traits=_traits,
    formulas=_formulas,
    leaves=leaves,
    store_factor=store_factor,
    is_one_launch=is_one_launch,
    compiled_here=True,
    timed_in_background=True,
)
