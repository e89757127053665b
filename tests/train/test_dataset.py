"""Training tables hold valid labels of supported kernels of the pool, and never a holdout problem."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from synthetic import CONV, with_few_kernels
from tilewise.arch import load_arch
from tilewise.data import Measurements, group_keys, holdout_mask, labelled, open_measurements, parquet_bytes
from tilewise.errors import DataError
from tilewise.evaluate import noise_ceiling
from tilewise.files import write_bytes
from tilewise.kernels import Pool
from tilewise.ops import Target
from tilewise.train import Table, build_table, pool_of
from tilewise.train._training_pool import ENOUGH_JUDGED, is_judging, with_calls

TARGET = Target.parse(CONV)
ARCH = load_arch("sm90")


def table_of(frame: pd.DataFrame, fraction: float = 0.18, pool: Pool | None = None) -> Table:
    return build_table(frame, TARGET, pool or pool_of(frame, TARGET), ARCH, fraction)


def test_holdout_problems_are_dropped_whatever_is_handed_in(frame: pd.DataFrame) -> None:
    table = table_of(frame, 0.3)
    held = holdout_mask("grouped_conv", group_keys("grouped_conv", frame), 0.3)
    forbidden = set(map(tuple, group_keys("grouped_conv", frame[held]).tolist()))
    assert forbidden
    assert not forbidden & {p.group_key for p in table.problems}
    assert table.split.n_holdout_problems == len(forbidden)
    assert len(table.problems) + len(forbidden) == 45


def test_rows_are_the_valid_labels(frame: pd.DataFrame) -> None:
    table = table_of(frame, 0)
    expected = labelled(frame, "grouped_conv")
    expected = expected[expected["is_valid"]]
    assert len(expected) < frame["is_valid"].sum()
    assert sorted(table.tflops) == sorted(expected["tflops"])
    best = expected.groupby(["N", "C", "K", "G", "Hi", "Y", "stride_h"])["tflops"].max()
    assert sorted(table.best) == sorted(best)


def test_rows_are_sorted_by_problem_and_pool_order(frame: pd.DataFrame) -> None:
    table = table_of(frame.sample(frac=1, random_state=4), 0)
    again = table_of(frame, 0)
    assert (np.diff(table.problem) >= 0).all()
    assert (np.diff(table.kernel)[np.diff(table.problem) == 0] > 0).all()
    assert np.array_equal(table.matrix, again.matrix)
    assert table.problems == again.problems


def test_features_belong_to_their_row(frame: pd.DataFrame) -> None:
    table = table_of(frame, 0)
    row = 100
    problem, kernel = table.problems[table.problem[row]], table.pool.kernels[table.kernel[row]]
    alone = table.features.matrix(problem.to_dict(), kernel.to_dict(), variant="forward", dtype="bf16", arch=ARCH)
    assert np.array_equal(table.matrix[row], alone[0])
    of_problem = table.features.of_role("problem")
    alone = of_problem.matrix(problem.to_dict(), {}, variant="forward", dtype="bf16", arch=ARCH)
    assert np.array_equal(table.problem_matrix[table.problem[row]], alone[0])


def test_constant_features_are_left_out(frame: pd.DataFrame) -> None:
    table = table_of(frame, 0)
    assert (table.matrix.min(axis=0) < table.matrix.max(axis=0)).all()
    assert not {"Di", "Z", "is_3d"} & set(table.features.names)


def test_kernels_outside_the_pool_are_not_learnt(frame: pd.DataFrame) -> None:
    whole = pool_of(frame, TARGET)
    small = Pool(whole.op, whole.variant, whole.dtype, whole.kernels[:4])
    table = table_of(frame, 0, small)
    assert set(table.kernel) == {0, 1, 2, 3}


def test_rows_that_the_dispatcher_would_not_launch_are_not_learnt(frame: pd.DataFrame) -> None:
    unsupported = frame.index[frame["status"] == "unsupported"][0]
    lied = frame.copy()
    lied.loc[unsupported, ["status", "is_valid", "tflops", "latency_ms", "bandwidth_gb_s"]] = [
        "ok",
        True,
        9.0,
        1.0,
        1.0,
    ]
    assert len(table_of(lied, 0).problem) == len(table_of(frame, 0).problem)


def test_nothing_to_learn_is_said(frame: pd.DataFrame) -> None:
    pool = pool_of(frame, TARGET)
    with pytest.raises(DataError, match="no row of grouped_conv_forward_fp16_sm90"):
        build_table(frame, Target.parse("grouped_conv_forward_fp16_sm90"), pool, ARCH, 0.2)
    with pytest.raises(DataError, match=r"no valid row of .* outside the holdout \(45 problems\)"):
        build_table(frame, TARGET, pool, ARCH, 1.0)
    with pytest.raises(DataError, match=r"no valid row of .* outside the holdout \(0 problems\)"):
        build_table(frame.assign(is_valid=False), TARGET, pool, ARCH, 0)


def test_rows_of_problems(frame: pd.DataFrame, tmp_path: Path) -> None:
    table = table_of(frame, 0)
    rows = table.rows_of(np.array([3, 1]))
    assert set(table.problem[rows]) == {1, 3}
    assert len(rows) == np.isin(table.problem, [1, 3]).sum()


def test_problems_with_few_kernels_are_learnt_from_but_judge_nothing(frame: pd.DataFrame) -> None:
    partial, thin = with_few_kernels(frame, 0.5)
    table = build_table(partial, TARGET, pool_of(frame, TARGET), ARCH, 0)
    assert thin
    assert {p.group_key for p in table.problems} >= thin
    assert {p.group_key for p, judges in zip(table.problems, table.judges, strict=True) if not judges} == thin
    rows = table.rows_of(np.arange(3, len(table.problems)))
    assert np.array_equal(table.take(rows).judges, table.judges[3:])


@pytest.mark.parametrize(("many", "of"), [(100, 5000), (3, 30)])
def test_a_hundred_or_a_tenth_of_the_problems_are_enough_to_judge(many: int, of: int) -> None:
    measured = np.where(np.arange(of) < many, 6, 5)
    assert is_judging(measured, np.full(of, 12)).tolist() == [True] * many + [False] * (of - many)
    measured[0] = 5
    assert is_judging(measured, np.full(of, 12)).all()


@pytest.mark.parametrize(("called", "judging"), [(ENOUGH_JUDGED, ENOUGH_JUDGED), (ENOUGH_JUDGED - 1, 300)])
def test_problems_without_a_call_of_pytorch_judge_only_where_few_have_one(called: int, judging: int) -> None:
    number = np.arange(400)
    judges, has_call = number < 300, number >= 300 - called
    found = with_calls(judges, has_call)
    assert found.sum() == judging
    assert (found == judges & has_call).all() == (called == judging)
    assert not found[300:].any()


def test_a_table_says_whether_calls_of_pytorch_judge(frame: pd.DataFrame) -> None:
    assert not table_of(frame).judges_calls


def test_where_no_problem_has_many_kernels_all_judge(frame: pd.DataFrame) -> None:
    partial, _ = with_few_kernels(frame, 1.0)
    assert build_table(partial, TARGET, pool_of(frame, TARGET), ARCH, 0).judges.all()


def test_large_tables_keep_no_cost_terms(frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(frame)
    rows = np.arange(0, len(table.problem), 3)
    kept = table.terms_of(rows)
    monkeypatch.setattr("tilewise.train._dataset._KEPT_TERMS", 10)
    for name, values in vars(table.terms_of(rows)).items():
        assert np.array_equal(values, getattr(kept, name))


@pytest.mark.long
def test_a_table_that_is_read_in_chunks_gives_the_same_rows(frame: pd.DataFrame, tmp_path: Path) -> None:
    mixed = frame.sample(frac=1, random_state=1)
    write_bytes(tmp_path / "table.parquet", parquet_bytes(mixed))
    rows, whole = open_measurements(tmp_path / "table.parquet", TARGET, 150), table_of(frame)
    assert isinstance(rows, Measurements)
    assert len(list(rows.chunks())) > 3
    assert pool_of(rows, TARGET) == pool_of(mixed, TARGET) == whole.pool
    assert noise_ceiling(rows, TARGET) == noise_ceiling(mixed, TARGET)
    parts = build_table(rows, TARGET, whole.pool, ARCH, 0.18)
    assert parts.features == whole.features
    assert parts.problems == whole.problems
    assert parts.split == whole.split
    for name in ("group", "problem", "kernel", "matrix", "problem_matrix", "log_work", "tflops", "latency_ms",
                 "bandwidth_gb_s", "spread", "is_measured", "judges"):  # fmt: skip
        assert np.array_equal(getattr(parts, name), getattr(whole, name)), name
