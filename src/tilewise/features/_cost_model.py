"""The cost model: the time of a launch as a sum of physical costs, calibrated on measurements.

Each cost (see ``TILE_COSTS``) has a factor, fitted for every compiled program. A linear function of a few drivers
corrects the error of that sum, differently for every kernel: it captures, for example, that a kernel spills registers
where channels are not aligned. Trees then learn only the rest.

This module evaluates the model with NumPy; :mod:`tilewise.train.cost_model` fits it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from tilewise.errors import ArtefactError
from tilewise.features._feature_table import FeatureTable, Inputs, stack

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Goes up when the formula of a cost or driver, or the evaluation, changes without a change of name or meaning.
VERSION = 5

INTERCEPT = 3.0  # a constant driver, large so that shrinking its weight shrinks it little
MOST_DEVIATIONS = 3.0  # drivers beyond the measured range count as at its edge
MOST_CORRECTION = 1.5  # of the logarithm, either way
MOST_SHARE = 2.0  # of one cost in the sum, before its factor
MAX_PROGRAMS = 4096  # a few dozen in practice; weights are kept per program and kernel


@dataclass(frozen=True)
class Terms:
    """The inputs of the cost model for some rows.

    Attributes:
        costs: (rows, costs) clocks, up to factors.
        drivers: (rows, drivers).
        program: (rows,) number of the compiled program.
    """

    costs: Floats
    drivers: Floats
    program: Ints

    def take(self, rows: Ints) -> Terms:
        """Return the terms of some rows."""
        return Terms(self.costs[rows], self.drivers[rows], self.program[rows])


def terms_of(table: FeatureTable, rows: Inputs) -> Terms:
    """Compute the terms of rows; see :meth:`FeatureTable.rows_of`."""
    return Terms(stack(table.costs, rows), stack(table.drivers, rows), rows.program_class)


@dataclass(frozen=True)
class CostModel:
    """A calibrated estimate; immutable, safe to share between threads.

    Attributes:
        programs: (programs,) numbers of the calibrated programs, ascending.
        factors: (programs + 1, costs), not negative; the last row serves all other programs.
        centre, scale: (columns,) mean and standard deviation of :func:`correction_columns` over the calibration rows.
        weights: (kernels + 1, programs + 1, 1 + 2 columns) of :func:`correction_basis`; the last kernel serves
            unknown ones.
    """

    programs: Ints
    factors: Floats
    centre: Floats
    scale: Floats
    weights: Floats

    def log_clocks(self, terms: Terms, kernel: npt.NDArray[np.integer]) -> Floats:
        """Return the natural logarithm of the estimated clocks: (rows,).

        Args:
            terms: of the rows.
            kernel: (rows,) index into the pool, -1 for a kernel outside it.
        """
        place = self.place(terms.program)
        clocks = np.maximum((terms.costs * self.factors[place]).sum(axis=1), 1.0)
        z = correction_basis(correction_columns(terms, clocks), self.centre, self.scale)
        correction = (z * self.weights[kernel, place]).sum(axis=1)
        return cast(Floats, np.log(clocks) + np.clip(correction, -MOST_CORRECTION, MOST_CORRECTION))

    def place(self, program: Ints) -> Ints:
        """Return the row of `factors` that serves each program: (rows,)."""
        at = np.minimum(np.searchsorted(self.programs, program), len(self.programs) - 1)
        return np.where(self.programs[at] == program, at, len(self.programs))

    def to_dict(self, table: FeatureTable) -> dict[str, Any]:
        """Return plain data, without weights of 0."""
        used = np.argwhere(self.weights.any(axis=2))
        return {
            "version": VERSION,
            "terms_hash": terms_hash(table),
            "programs": self.programs.tolist(),
            "factors": self.factors.tolist(),
            "centre": self.centre.tolist(),
            "scale": self.scale.tolist(),
            "kernels": len(self.weights) - 1,
            "weights": [[int(k), int(p), self.weights[k, p].tolist()] for k, p in used],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], table: FeatureTable, n_kernels: int) -> Self:
        """Build a model from the result of :meth:`to_dict`.

        Raises:
            ArtefactError: the model belongs to other terms or another pool, or its shapes do not fit.
        """
        if values["terms_hash"] != terms_hash(table) or values["version"] != VERSION:
            raise ArtefactError("the cost model was fitted to other costs than this library computes; train again")
        programs = np.array(values["programs"], dtype=np.int64)
        n_columns = len(table.costs) + len(table.drivers)
        if programs.ndim != 1 or len(programs) > MAX_PROGRAMS:
            raise ArtefactError(f"the cost model may have at most {MAX_PROGRAMS} programs, got {programs.shape}")
        weights = np.zeros((n_kernels + 1, len(programs) + 1, 1 + 2 * n_columns))
        for kernel, program, row in values["weights"]:
            weights[kernel, program] = row
        factors, centre, scale = (np.array(values[n], dtype=np.float64) for n in ("factors", "centre", "scale"))
        read = cls(programs, factors, centre, scale, weights)
        shapes = (read.factors.shape, read.centre.shape, read.scale.shape)
        expected = ((len(programs) + 1, len(table.costs)), (n_columns,), (n_columns,))
        if values["kernels"] != n_kernels or shapes != expected or not len(programs):
            raise ArtefactError(
                f"the cost model has the shapes {shapes} for {values['kernels']} kernels, not {expected}"
            )
        if not all(np.isfinite(a).all() for a in (read.factors, read.centre, read.scale, weights)):
            raise ArtefactError("the cost model must hold finite numbers only")
        return read


def log_work(rows: Inputs) -> Floats:
    """Return log(TFLOPS) of a launch of one clock: (rows,). Minus the logarithm of clocks, it is log(TFLOPS)."""
    return np.broadcast_to(np.log(rows.flops * (rows.arch.clock_mhz * 1e-6)), (rows.n_rows,))


def correction_columns(terms: Terms, clocks: Floats) -> Floats:
    """Return the inputs of corrections: each cost's share of the sum, then the drivers: (rows, costs + drivers)."""
    n_costs = terms.costs.shape[1]
    columns = np.empty((len(clocks), n_costs + terms.drivers.shape[1]))
    # The core divides once for all costs.
    shares = np.multiply(terms.costs, (1 / clocks)[:, None], out=columns[:, :n_costs])
    np.minimum(shares, MOST_SHARE, out=shares)
    columns[:, n_costs:] = terms.drivers
    return columns


def correction_basis(values: Floats, centre: Floats, scale: Floats) -> Floats:
    """Return a constant, the columns in standard deviations, and their positive parts: (rows, 1 + 2 columns).

    The positive parts let slopes differ on both sides of the mean.
    """
    n_rows, n_columns = values.shape
    basis = np.empty((n_rows, 1 + 2 * n_columns))
    basis[:, 0], z = INTERCEPT, basis[:, 1 : 1 + n_columns]
    np.subtract(values, centre, out=z)
    np.multiply(z, 1 / scale, out=z)
    np.clip(z, -MOST_DEVIATIONS, MOST_DEVIATIONS, out=z)
    np.maximum(z, 0.0, out=basis[:, 1 + n_columns :])
    return basis


def terms_hash(table: FeatureTable) -> str:
    """Return the SHA-256 of op, version, and each term's name and meaning, in order: a calibration relies on them."""
    described = [[t.name, t.meaning] for t in (*table.costs, *table.drivers)]
    return hashlib.sha256(json.dumps([table.op, VERSION, described]).encode()).hexdigest()
