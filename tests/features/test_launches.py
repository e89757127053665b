"""Features and cost terms computed in batches are those of the whole table, bit for bit."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.test_mixture import MIXED
from tilewise.arch import load_arch
from tilewise.features import Conditions, FeatureRows, Launches, feature_table, log_work, terms_of
from tilewise.features import _launches as source
from tilewise.metrics import Ints
from tilewise.ops import OPS

TABLE = feature_table("grouped_conv").within_arch()
CONDITIONS: Conditions = {"variant": "forward", "dtype": "bf16", "arch": load_arch("sm90")}


def mixed(rows: int, seed: int = 0) -> tuple[Launches, Ints, Ints, dict[str, np.ndarray]]:
    """Return launches of own kernels and of calls of cuDNN, with their problems and kernels."""
    rng = np.random.default_rng(seed)
    problems = {name: np.ones(9, dtype=np.int64) for name in OPS["grouped_conv"].column_names()}
    problems |= {name: rng.integers(4, 40, 9) * 8 for name in ("C", "K", "Hi", "Wi")} | {"layout": np.full(9, "nhwgc")}
    problem, kernel = np.sort(rng.integers(0, 9, rows)), rng.integers(0, len(MIXED), rows)
    return Launches.of(problems, MIXED.columns, CONDITIONS, problem, kernel), problem, kernel, problems


@pytest.mark.long
@given(rows=st.integers(1, 60), batch=st.integers(1, 20), drawn=st.lists(st.integers(0, 59), unique=True))
def test_a_row_does_not_depend_on_its_batch(rows: int, batch: int, drawn: list[int]) -> None:
    launches, problem, kernel, problems = mixed(rows)
    inputs = TABLE.rows_of(
        {n: v[problem] for n, v in problems.items()}, {n: v[kernel] for n, v in MIXED.columns.items()}, **CONDITIONS
    )
    matrix, terms = TABLE.compute(inputs), terms_of(TABLE, inputs)
    some = np.array(sorted(row for row in drawn if row < rows), dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BATCH_ROWS", batch)
        assert np.array_equal(launches.matrix(TABLE), matrix)
        assert np.array_equal(launches.matrix(TABLE, some), matrix[some])
        assert np.array_equal(launches.take(some).matrix(TABLE), matrix[some])
        assert np.array_equal(launches.log_work(TABLE), log_work(inputs))
        for name, values in vars(launches.terms(TABLE, some)).items():
            assert np.array_equal(values, getattr(terms, name)[some])
        twice = Launches.joined([launches, launches.take(some)])
        both = np.sort(np.concatenate([some, rows + np.arange(len(some))]))
        assert np.array_equal(twice.matrix(TABLE, both), np.concatenate([matrix[some], matrix[some]]))


def test_varying_features_are_those_with_two_values() -> None:
    launches, *_ = mixed(400)
    matrix = launches.matrix(TABLE)
    expected = matrix.min(axis=0) < matrix.max(axis=0)
    assert launches.varying(TABLE) == {n for n, varies in zip(TABLE.names, expected, strict=True) if varies}
    assert 0 < expected.sum() < len(expected)


def test_feature_rows_travel_to_another_process() -> None:
    launches, *_ = mixed(30)
    rows = FeatureRows(launches, TABLE)
    again = pickle.loads(pickle.dumps(rows))
    assert again.features == TABLE
    assert np.array_equal(again[3:20], launches.matrix(TABLE)[3:20])
    assert np.array_equal(np.concatenate(list(again.batches())), launches.matrix(TABLE))
