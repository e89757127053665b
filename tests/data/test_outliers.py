"""Outliers are those that a plain comparison of each row with all others finds, in time that grows with the rows."""

from __future__ import annotations

from time import process_time

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.data.quality._outliers import SIMILAR, RelativeTimes, outliers
from tilewise.ops import OPS, Target

TARGET = Target.parse("gemm_universal_bf16_sm90")
COLUMNS = list(OPS["gemm"].column_names())
KERNELS = 5


def timed_rows(problems: int, sizes: int, rng: np.random.Generator, odd: float) -> pd.DataFrame:
    """Return valid rows of distinct problems, each with all kernels.

    Args:
        problems: their number.
        sizes: different values of each dimension; few make many problems equally similar.
        rng: for everything random.
        odd: share of rows whose time is far off, in either direction.
    """
    places = rng.permutation(sizes**3)[:problems]
    m, n, k = np.unravel_index(places, (sizes, sizes, sizes))
    problem = pd.DataFrame({"M": 8 * (m + 1), "N": 8 * (n + 1), "K": 8 * (k + 1)}).assign(layout="rcr")
    problem = problem.assign(**{n: v for n, v in OPS["gemm"].defaults().items() if n not in problem})[COLUMNS]
    rows = problem.assign(problem=np.arange(problems)).loc[np.repeat(np.arange(problems), KERNELS)]
    factor = rng.choice([1, 8, 30, 1 / 8, 1 / 30], len(rows), p=[1 - odd, *[odd / 4] * 4])
    latency = factor * rng.uniform(1, 2, len(rows))
    return rows.reset_index(drop=True).assign(
        kernel_name=np.tile([f"kernel {i}" for i in range(KERNELS)], problems),
        latency_ms=latency,
        latency_min_ms=latency / rng.choice([1.1, 2.0], len(rows)),
        repeats=12,
    )


def found_plainly(rows: pd.DataFrame) -> list[int]:
    """Return the outliers among rows of :func:`timed_rows`, which are compared one by one."""
    times = np.log(rows["latency_ms"].to_numpy()).reshape(-1, KERNELS)
    times -= np.median(times, axis=1)[:, None]
    sizes = np.log2(1 + rows[COLUMNS].select_dtypes("number").to_numpy(dtype=np.float64))[::KERNELS]
    sampled = (rows["latency_ms"] <= 1.5 * rows["latency_min_ms"]).to_numpy()
    found = []
    for row in range(len(rows)):
        problem, kernel = divmod(row, KERNELS)
        limit, slack = np.log([20, 20] if sampled[row] else [5, 3])
        others = np.delete(np.arange(len(times)), problem)
        distance = np.abs(sizes[others] - sizes[problem]).sum(axis=1)
        similar = times[others[np.argsort(distance, kind="stable")[:SIMILAR]], kernel]
        is_off_similar = not similar.min() - slack <= times[problem, kernel] <= similar.max() + slack
        if abs(times[problem, kernel] - np.median(times[:, kernel])) > limit and is_off_similar:
            found.append(row)
    return found


@pytest.mark.long
@given(seed=st.integers(0, 2**32), problems=st.integers(6, 60), sizes=st.integers(4, 9), odd=st.floats(0.02, 0.5),
       second=st.floats(0, 1))  # fmt: skip
def test_a_row_is_an_outlier_where_a_plain_comparison_says_so(
    seed: int, problems: int, sizes: int, odd: float, second: float
) -> None:
    rng = np.random.default_rng(seed)
    rows = timed_rows(problems, sizes, rng, odd)
    chunk: npt.NDArray[np.bool_] = (rng.random(problems) < second)[rows["problem"]]
    chunks = [RelativeTimes.of(part, TARGET) for part in (rows[chunk], rows[~chunk]) if len(part)]
    assert sorted(outliers(chunks).index) == found_plainly(rows)


def test_time_grows_with_the_rows_and_not_with_their_square() -> None:
    def seconds(problems: int) -> float:
        times = RelativeTimes.of(timed_rows(problems, 30, np.random.default_rng(0), 0.2), TARGET)
        begun = process_time()
        assert len(outliers([times])) > 10
        return process_time() - begun

    seconds(100)  # the first call imports and allocates
    assert seconds(16000) < 16 * seconds(2000)
