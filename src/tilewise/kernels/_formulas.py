"""The part of the backend contract that feature formulas read: traits of kernels and replaced intermediates.

Values are ints, NumPy arrays of shape (rows,), or the symbols of :mod:`tilewise.core`, which stand for such arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Array = Any  # an int, an array, or a symbol of tilewise.core
KernelLike = Any  # one kernel, or a namespace of the kernel columns of many
ProblemLike = Any  # a problem, or a namespace of its columns
FeatureInputs = Any  # an instance of tilewise.features.Inputs, which lies above this package
Mask = npt.NDArray[np.bool_]  # (rows,)
Formula = Callable[[FeatureInputs, Array], Array]


def unchanged(inputs: FeatureInputs, value: Array) -> Array:
    """Return `value`: the pipeline computes this intermediate as most do."""
    return value


@dataclass(frozen=True)
class Traits:
    """Properties of kernels that feature formulas ask for; each a bool array of shape (rows,).

    Attributes:
        matrix_units: the kernel computes with matrix instructions.
        described: operands are loaded through tensor descriptors.
        staged: operands go to shared memory ahead of their use, whatever their alignment.
        all_stages_shared: shared memory holds every stage; otherwise registers may hold the current one.
        stores_tiles: results are stored through shared memory, with a tensor descriptor.
        persistent: one program per compute unit computes many tiles.
        tapwise: a step lies within one filter tap, whose channels are padded to `tile_k`.
        filter_rows: a program without matrix units computes all taps of a filter row in bwd_weight.
        repeats_edges: rows and columns beyond the last read the last one again.
    """

    matrix_units: Mask
    described: Mask
    staged: Mask
    all_stages_shared: Mask
    stores_tiles: Mask
    persistent: Mask
    tapwise: Mask
    filter_rows: Mask
    repeats_edges: Mask

    @classmethod
    def plain(cls, columns: SimpleNamespace, **changes: Mask) -> Self:
        """Return the traits of kernels that use matrix units and have no other trait, except for `changes`.

        Args:
            columns: the kernel columns, arrays of shape (rows,).
            changes: traits by name.
        """
        no = np.zeros(np.shape(columns.tile_m), dtype=bool)
        values = {name: no for name in cls.__dataclass_fields__} | {"matrix_units": ~no} | changes
        return cls(**values)


@dataclass(frozen=True)
class Formulas:
    """The intermediates of features that a pipeline computes in its own way.

    Each formula takes the inputs of the features (:class:`tilewise.features.Inputs`) and the value so far, of shape
    (rows,), and returns the value with the rows of its own pipeline replaced. The default leaves all rows unchanged.

    Attributes:
        steps: steps along all of K.
        tiles_m: tiles along M. A pipeline with this formula counts the tiles of all residue classes of bwd_data.
        tiles_n: tiles along N of a convolution.
        reuse: steps that one load serves from registers.
        pixel_steps: steps along the pixels in bwd_weight.
        workspace: bytes of partial sums and of copies of operands.
        merged: groups of a convolution that a tile computes at once. The other formulas then see products of so many.
        program: number of the compiled program among those of the pipeline, for the cost model.
    """

    name: str
    steps: Formula = unchanged
    tiles_m: Formula = unchanged
    tiles_n: Formula = unchanged
    reuse: Formula = unchanged
    pixel_steps: Formula = unchanged
    workspace: Formula = unchanged
    merged: Formula = unchanged
    program: Formula = unchanged
