"""A launch's time, estimated from what it costs and calibrated on measurements.

The estimate is a sum of physical costs (see ``TILE_COSTS``) with a factor each, found for every compiled program; what
that sum misses is a linear function of a few drivers, different for every kernel. So a kernel that spills registers
where channels are not aligned is known to, without anybody having written it down. Trees then only learn the rest.

Only the evaluation is here, in NumPy; :mod:`tilewise.train.calibrate` fits.
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
from tilewise.features._base import FeatureTable, Inputs, stack

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Goes up when a cost's or driver's formula, or the evaluation below, changes without a change of name or meaning.
VERSION = 3

INTERCEPT = 3.0  # a constant driver, large so that shrinking its weight shrinks it little
MOST_DEVIATIONS = 3.0  # drivers beyond what was measured count as at its edge
MOST_CORRECTION = 1.5  # of the logarithm, either way
MOST_SHARE = 2.0  # of one cost in the sum, before its factor


@dataclass(frozen=True)
class Terms:
    """What the estimate sees of rows.

    Attributes:
        costs: (rows, costs) clocks, up to factors.
        drivers: (rows, drivers).
        program: (rows,) number of the compiled program.
    """

    costs: Floats
    drivers: Floats
    program: Ints

    def take(self, rows: Ints) -> Terms:
        """The terms of some rows."""
        return Terms(self.costs[rows], self.drivers[rows], self.program[rows])


def terms_of(table: FeatureTable, rows: Inputs) -> Terms:
    """The terms of rows; see :meth:`FeatureTable.rows_of`."""
    return Terms(stack(table.costs, rows), stack(table.drivers, rows), rows.program_class)


@dataclass(frozen=True)
class LaunchEstimate:
    """A calibrated estimate; immutable, safe to share between threads.

    Attributes:
        programs: (programs,) numbers of the compiled programs that were calibrated, ascending.
        factors: (programs + 1, costs), not negative; the last row serves programs that were not.
        centre, scale: (columns,) of :func:`columns`, over the rows it was calibrated on.
        weights: (kernels + 1, programs + 1, 1 + 2 columns) of :func:`basis`; the last kernel serves unknown ones.
    """

    programs: Ints
    factors: Floats
    centre: Floats
    scale: Floats
    weights: Floats

    def log_clocks(self, terms: Terms, kernel: Ints) -> Floats:
        """The natural logarithm of the estimated clocks: (rows,).

        Args:
            terms: of the rows.
            kernel: (rows,) index into the pool, -1 where the kernel is not of it.
        """
        place = self.place(terms.program)
        clocks = np.maximum((terms.costs * self.factors[place]).sum(axis=1), 1.0)
        z = basis(columns(terms, clocks), self.centre, self.scale)
        correction = (z * self.weights[kernel, place]).sum(axis=1)
        return cast(Floats, np.log(clocks) + np.clip(correction, -MOST_CORRECTION, MOST_CORRECTION))

    def place(self, program: Ints) -> Ints:
        """(rows,) which row of `factors` serves a program."""
        at = np.minimum(np.searchsorted(self.programs, program), len(self.programs) - 1)
        return np.where(self.programs[at] == program, at, len(self.programs))

    def to_dict(self, table: FeatureTable) -> dict[str, Any]:
        """Plain data; weights that are 0 are left out."""
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
        """The inverse of :meth:`to_dict`.

        Raises:
            ArtefactError: it belongs to other terms or another pool, or its shapes do not fit.
        """
        if values["terms_hash"] != terms_hash(table) or values["version"] != VERSION:
            raise ArtefactError("the estimate's costs mean something else in this library; train again")
        programs = np.array(values["programs"], dtype=np.int64)
        n_columns = len(table.costs) + len(table.drivers)
        weights = np.zeros((n_kernels + 1, len(programs) + 1, 1 + 2 * n_columns))
        for kernel, program, row in values["weights"]:
            weights[kernel, program] = row
        factors, centre, scale = (np.array(values[n], dtype=np.float64) for n in ("factors", "centre", "scale"))
        read = cls(programs, factors, centre, scale, weights)
        shapes = (read.factors.shape, read.centre.shape, read.scale.shape)
        expected = ((len(programs) + 1, len(table.costs)), (n_columns,), (n_columns,))
        if values["kernels"] != n_kernels or shapes != expected or not len(programs):
            raise ArtefactError(f"the estimate has the shapes {shapes} for {values['kernels']} kernels, not {expected}")
        if not all(np.isfinite(a).all() for a in (read.factors, read.centre, read.scale, weights)):
            raise ArtefactError("the estimate holds what is no number")
        return read


def log_work(rows: Inputs) -> Floats:
    """log(TFLOPS) of a launch of one clock: minus the logarithm of its clocks, that of its TFLOPS."""
    return np.broadcast_to(np.log(rows.flops * (rows.arch.clock_mhz * 1e-6)), (rows.n_rows,))


def columns(terms: Terms, clocks: Floats) -> Floats:
    """What corrections depend on: each cost's share of the sum, then the drivers: (rows, costs + drivers)."""
    shares = np.minimum(terms.costs * (1 / clocks)[:, None], MOST_SHARE)  # the core divides once for all costs
    return np.concatenate([shares, terms.drivers], axis=1)


def basis(values: Floats, centre: Floats, scale: Floats) -> Floats:
    """A constant, the columns in standard deviations, and their positive parts: slopes may differ on both sides."""
    z = np.clip((values - centre) * (1 / scale), -MOST_DEVIATIONS, MOST_DEVIATIONS)
    return np.concatenate([np.full((len(z), 1), INTERCEPT), z, np.maximum(z, 0.0)], axis=1)


def terms_hash(table: FeatureTable) -> str:
    """SHA-256 of what a calibration relies on: op, version, and each term's name and meaning, in order."""
    described = [[t.name, t.meaning] for t in (*table.costs, *table.drivers)]
    return hashlib.sha256(json.dumps([table.op, VERSION, described]).encode()).hexdigest()
