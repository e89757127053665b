"""Latencies far off a kernel's usual ones: the one rule that compares a problem with all others.

A kernel's relative time is its latency / the median of its problem. An outlier's relative time is off by a first factor
from the kernel's usual one, and by a second from the extremes on the most similar problems. If a row's own samples
agree with each other, both factors are larger: some kernels are ten times slower on one shape than on all similar ones.

Relative times come chunk by chunk, so that a table need not be in memory. They take 17 bytes per row, and 16 for each
pair of a problem and a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import KDTree

from tilewise.ops import OPS, Target

OUTLIER, OUTLIER_AMONG_SIMILAR = 5.0, 3.0
SAMPLED_OUTLIER, SAMPLED_OUTLIER_AMONG_SIMILAR = 20.0, 20.0
SAMPLES_AGREE = 1.5  # median / fastest
SIMILAR = 8  # problems
ROUNDING = 1e-9  # of distances: the tree adds the coordinates' differences in another order
OUTLIER_MIN_KERNELS, OUTLIER_MIN_PROBLEMS = 4, 5  # fewer do not show the usual time

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
_Numbers = npt.NDArray[np.integer]
_Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RelativeTimes:
    """Log latencies of a chunk's valid rows, in relation to their problem's median.

    Attributes:
        index: label of each row, of shape (rows,).
        problem, kernel: number of each row's problem and kernel, of shape (rows,).
        own: log of each row's latency / its problem's median, of shape (rows,).
        is_sampled: whether the row's samples agree, of shape (rows,).
        table: the smallest `own` of each problem and kernel, of shape (problems, kernels); NaN without a row.
        problems: columns of each problem, indexed by the label of its first row.
        kernels: name of each kernel.
    """

    index: _Numbers
    problem: _Numbers
    kernel: _Numbers
    own: _Floats
    is_sampled: _Bools
    table: _Floats
    problems: pd.DataFrame
    kernels: tuple[str, ...]

    @classmethod
    def of(cls, valid: pd.DataFrame, target: Target) -> RelativeTimes:
        """Compute the times of valid rows, all rows of some problems; the column `problem` numbers the problems."""
        problem, first = pd.factorize(valid["problem"])
        kernel, kernels = pd.factorize(valid["kernel_name"])
        latency = np.log(valid["latency_ms"].to_numpy(dtype=np.float64))
        table = np.full((len(first), len(kernels)), np.inf)
        np.minimum.at(table, (problem, kernel), latency)
        table[np.isinf(table)] = np.nan
        middle = np.nanmedian(table, axis=1)
        agree = (valid["latency_ms"] <= SAMPLES_AGREE * valid["latency_min_ms"]).to_numpy(dtype=bool)
        return cls(
            _narrow(valid.index.to_numpy()),
            _narrow(problem),
            _narrow(kernel),
            latency - middle[problem],
            agree & (valid["repeats"].fillna(0) > 1).to_numpy(dtype=bool),
            table - middle[:, None],
            valid.drop_duplicates("problem")[list(OPS[target.op].column_names())],
            tuple(kernels),
        )


@dataclass(frozen=True)
class _UsualTimes:
    """The relative times of all chunks' problems and kernels, with problems in the order of their first rows.

    Attributes:
        table: as :attr:`RelativeTimes.table`.
        middle: median of each kernel, of shape (kernels,).
        n_kernels, n_problems: of each problem and of each kernel, those with a time.
        places: of the problems, see :func:`_places`.
        numbers: of each chunk, the numbers of its problems and of its kernels.
    """

    table: _Floats
    middle: _Floats
    n_kernels: _Ints
    n_problems: _Ints
    places: _Floats
    numbers: tuple[tuple[_Ints, _Ints], ...]

    @classmethod
    def of(cls, parts: Sequence[RelativeTimes]) -> _UsualTimes:
        """Return the times of all chunks as if they were one."""
        place = {name: i for i, name in enumerate(dict.fromkeys(name for part in parts for name in part.kernels))}
        order = np.argsort(np.concatenate([part.problems.index.to_numpy() for part in parts]))
        number = np.argsort(order)  # the place of each problem in that order
        table, numbers, start = np.full((len(order), len(place)), np.nan), list[tuple[_Ints, _Ints]](), 0
        for part in parts:
            kernels = np.array([place[name] for name in part.kernels], dtype=np.int64)
            problems = number[start : start + len(part.problems)]
            table[np.ix_(problems, kernels)] = part.table
            numbers.append((problems, kernels))
            start += len(part.problems)
        is_known = np.isfinite(table)
        places = _places(pd.concat([part.problems for part in parts]).iloc[order])
        middle = np.nanmedian(table, axis=0)
        return cls(table, middle, is_known.sum(axis=1), is_known.sum(axis=0), places, tuple(numbers))


def outliers(parts: Sequence[RelativeTimes]) -> pd.Series:
    """Return the reasons of rows far off the kernel's usual times, beside the same problem and similar problems.

    Args:
        parts: the times of all chunks.

    Returns:
        A series of the outliers only, indexed by their labels.
    """
    if not parts:
        return pd.Series([], index=pd.Index([], dtype=np.int64), dtype=object)
    usual = _UsualTimes.of(parts)
    doubtful = pd.concat([_far_off(usual, part, *numbers) for part, numbers in zip(parts, usual.numbers, strict=True)])
    reasons = dict[int, str]()
    for kernel, rows in doubtful.groupby("kernel"):
        lowest, highest = _range_on_similar(usual, int(cast(int, kernel)), rows["problem"].to_numpy())
        is_off = (rows["own"] > highest + rows["slack"]) | (rows["own"] < lowest - rows["slack"])
        for row, off in rows.loc[is_off, "off"].items():
            factor, word = np.exp(abs(off)), "slower" if off > 0 else "faster"
            reasons[int(cast(int, row))] = (
                f"outlier: {factor:.3g} times {word} than this kernel usually is beside the others, "
                "and not so on similar problems"
            )
    return pd.Series(reasons, dtype=object)


def _far_off(usual: _UsualTimes, part: RelativeTimes, problems: _Ints, kernels: _Ints) -> pd.DataFrame:
    """Return the rows of a chunk that are far off their kernel's usual time.

    Args:
        usual: the times of all chunks.
        part: the times of the chunk.
        problems: numbers in `usual` of the chunk's problems.
        kernels: likewise of its kernels.

    Returns:
        Columns `problem` and `kernel` (numbers), `own`, `off` (from the usual time) and `slack` (among similar
        problems), the last three as logarithms; indexed by the rows' labels.
    """
    problem, kernel = problems[part.problem], kernels[part.kernel]
    off = part.own - usual.middle[kernel]
    has_enough = (usual.n_kernels[problem] >= OUTLIER_MIN_KERNELS) & (usual.n_problems[kernel] > OUTLIER_MIN_PROBLEMS)
    limit = np.log(np.where(part.is_sampled, SAMPLED_OUTLIER, OUTLIER))
    slack = np.log(np.where(part.is_sampled, SAMPLED_OUTLIER_AMONG_SIMILAR, OUTLIER_AMONG_SIMILAR))
    rows = np.flatnonzero(has_enough & (np.abs(off) > limit))
    cells = {"problem": problem, "kernel": kernel, "own": part.own, "off": off, "slack": slack}
    return pd.DataFrame({name: values[rows] for name, values in cells.items()}, index=part.index[rows])


def _range_on_similar(usual: _UsualTimes, kernel: int, problems: _Ints) -> tuple[_Floats, _Floats]:
    """Return the lowest and the highest time of a kernel on the problems most similar to each one.

    Of two problems that are equally similar, the one that comes first in the table counts.

    Args:
        usual: the times of all chunks.
        kernel: number of the kernel, which has times on more than one problem.
        problems: numbers of problems, of shape (rows,).

    Returns:
        Two arrays of shape (rows,).
    """
    known = np.flatnonzero(np.isfinite(usual.table[:, kernel]))
    places, times = usual.places[known], usual.table[known, kernel]
    distinct, row = np.unique(problems, return_inverse=True)
    # A tree, since comparing each problem with all others would take time that grows with their square.
    tree = KDTree(places)
    nearest = tree.query(usual.places[distinct], k=min(SIMILAR + 1, len(known)), p=1)[0]  # the problem itself is one
    around = tree.query_ball_point(usual.places[distinct], nearest[:, -1] + ROUNDING, p=1, return_sorted=True)
    ranges = np.empty((len(distinct), 2))
    for i, (problem, near) in enumerate(zip(distinct, around, strict=True)):
        others = np.array([other for other in near if known[other] != problem])
        distance = np.abs(places[others] - usual.places[problem]).sum(axis=1)
        similar = times[others[np.argsort(distance, kind="stable")[:SIMILAR]]]
        ranges[i] = similar.min(), similar.max()
    return ranges[row, 0], ranges[row, 1]


def _narrow(numbers: _Ints) -> _Numbers:
    """Return numbers, which are not negative, in the fewest bytes."""
    return numbers.astype(np.min_scalar_type(int(numbers.max())))


def _places(problems: pd.DataFrame) -> _Floats:
    """Return coordinates of shape (problems, dimensions), whose distance measures dissimilarity.

    Sizes count by their logarithm; different words lie apart.
    """
    columns = [
        np.log2(1 + values.to_numpy(dtype=np.float64))
        if pd.api.types.is_numeric_dtype(values)
        else 3.0 * pd.factorize(values)[0]
        for _, values in problems.items()
    ]
    return cast(_Floats, np.stack(columns, axis=1))
