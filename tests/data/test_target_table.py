"""TargetTable keeps the holdout discipline: no key on both sides, no row lost, one order for every consumer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthetic import CONV, kernels, measurements
from tilewise.data import TargetTable, group_keys, holdout_mask, is_of, labelled
from tilewise.kernels import Pool
from tilewise.ops import Target

GEMM = "gemm_universal_bf16_sm90"
TABLES = {
    CONV: measurements(CONV, n_problems=24, n_kernels=12, repeats=8, failures=0.05),
    GEMM: measurements(GEMM, n_problems=24, n_kernels=12, repeats=8, failures=0.05),
}

targets = st.sampled_from([Target.parse(name) for name in TABLES])
fractions = st.floats(0.0, 1.0)
seeds = st.integers(0, 2**16)


def table_of(target: Target, seed: int | None = None) -> TargetTable:
    """All rows of a target, in an order drawn by `seed`."""
    frame = TABLES[target.name]
    return TargetTable.of(frame if seed is None else frame.sample(frac=1, random_state=seed), target)


def pool_of(target: Target, count: int = 12) -> Pool:
    return Pool(target.op, target.variant, target.dtype, kernels(target, 12)[:count])


def keys(table: TargetTable) -> set[tuple[int, ...]]:
    return set(map(tuple, group_keys(table.target.op, table.rows).tolist()))


@pytest.mark.long
@settings(max_examples=60)
@given(targets, fractions, seeds)
def test_training_and_holdout_share_no_key_and_lose_no_row(target: Target, fraction: float, seed: int) -> None:
    table = table_of(target, seed)
    training, holdout = table.training(fraction), table.holdout(fraction)
    assert not keys(training) & keys(holdout)
    assert sorted([*training.rows.index, *holdout.rows.index]) == sorted(table.rows.index)
    assert not set(training.problems) & set(holdout.problems)
    assert training.n_problems + holdout.n_problems == table.n_problems == len(table.problems)


@settings(max_examples=30)
@given(fractions, seeds)
def test_batches_of_a_layer_share_a_side_on_archs_of_amd(fraction: float, seed: int) -> None:
    """No configuration changes it: the rule asks the target's name alone."""
    target, rng = Target.parse("grouped_conv_forward_bf16_gfx942"), np.random.default_rng(seed)
    rows = TABLES[CONV].assign(arch="gfx942")
    rows["N"] = rng.integers(1, 512, len(rows))
    table = TargetTable.of(rows, target)
    training, holdout = (keys(part) for part in (table.training(fraction), table.holdout(fraction)))
    assert not {key[1:] for key in training} & {key[1:] for key in holdout}
    assert len(training | holdout) == len(table.distinct_keys)


@settings(max_examples=30)
@given(targets, fractions, seeds)
def test_the_side_of_a_problem_depends_on_its_key_alone(target: Target, fraction: float, seed: int) -> None:
    """Whatever other rows a table has, and in whatever order: a later measurement moves no problem."""
    whole = table_of(target)
    part = whole.take(np.random.default_rng(seed).random(len(whole)) < 0.3)
    assert keys(part.holdout(fraction)) == keys(part) & keys(whole.holdout(fraction))
    assert keys(part.training(fraction)) == keys(part) & keys(whole.training(fraction))


@settings(max_examples=30)
@given(targets, fractions, fractions)
def test_a_smaller_holdout_is_part_of_a_larger_one(target: Target, one: float, other: float) -> None:
    table = table_of(target)
    small, large = sorted([one, other])
    assert keys(table.holdout(small)) <= keys(table.holdout(large))


@pytest.mark.long
@settings(max_examples=20)
@given(targets, fractions)
def test_labels_and_split_can_come_in_either_order(target: Target, fraction: float) -> None:
    table = table_of(target)
    for first, second in (
        (table.training(fraction).labelled(), table.labelled().training(fraction)),
        (table.holdout(fraction).labelled(), table.labelled().holdout(fraction)),
    ):
        pool = pool_of(target)
        pd.testing.assert_frame_equal(first.ordered(pool).rows, second.ordered(pool).rows)


@pytest.mark.long
@settings(max_examples=20)
@given(targets, seeds)
def test_the_order_of_the_file_does_not_matter(target: Target, seed: int) -> None:
    pool = pool_of(target, 8)
    first, shuffled = (table.labelled().ordered(pool) for table in (table_of(target), table_of(target, seed)))
    assert first.problems == shuffled.problems
    assert first.rows["kernel_name"].tolist() == shuffled.rows["kernel_name"].tolist()
    assert first.rows["tflops"].tolist() == pytest.approx(shuffled.rows["tflops"].tolist())
    assert first.rows.index.tolist() == list(range(len(first)))


@pytest.mark.long
@settings(max_examples=20)
@given(targets, st.integers(1, 12))
def test_rows_are_ordered_by_problem_then_pool(target: Target, count: int) -> None:
    pool = pool_of(target, count)
    table = table_of(target).labelled().ordered(pool)
    assert (np.diff(table.problem) >= 0).all()
    place = np.where(table.kernel(pool) < 0, len(pool), table.kernel(pool))
    assert (np.diff(place)[np.diff(table.problem) == 0] >= 0).all()
    assert not table.rows.duplicated(["kernel_name", *table.problem_columns()]).any()


def test_labels_are_valid_and_supported_rows_are_of_the_pool() -> None:
    target = Target.parse(CONV)
    table, pool = table_of(target), pool_of(target, 5)
    labels = table.labelled()
    expected = labelled(TABLES[CONV], target.op)
    assert len(labels) == expected["is_valid"].sum()
    assert labels.rows["is_valid"].all()
    supported = labels.supported(pool)
    mask, candidates = labels.support(pool)
    assert 0 < len(supported) == mask.sum()
    assert (supported.kernel(pool) >= 0).all()
    for problem, of_row in zip(labels.problem, candidates, strict=True):
        assert of_row == pool.supported(labels.problems[problem]).sum()


def test_rows_of_other_targets_are_dropped() -> None:
    both = pd.concat(TABLES.values(), ignore_index=True)
    for name in TABLES:
        table = TargetTable.of(both, Target.parse(name))
        assert len(table) == is_of(both, Target.parse(name)).sum() == len(TABLES[name])
    assert not len(TargetTable.of(TABLES[CONV], Target.parse("grouped_conv_forward_fp16_sm90")))


def test_an_empty_table_stays_empty() -> None:
    empty = table_of(Target.parse(CONV)).take(np.zeros(len(TABLES[CONV]), dtype=bool))
    pool = pool_of(Target.parse(CONV))
    assert [len(t) for t in (empty.training(0.2), empty.holdout(0.2), empty.labelled())] == [0, 0, 0]
    assert len(empty.labelled().ordered(pool).supported(pool)) == 0


def test_the_rule_is_the_published_one() -> None:
    table = table_of(Target.parse(CONV))
    assert (table.is_holdout(0.3) == holdout_mask("grouped_conv", table.keys, 0.3)).all()


def test_a_draw_takes_whole_problems() -> None:
    target = Target.parse(CONV)
    table = table_of(target).labelled().ordered(pool_of(target))
    some = table.draw(5, seed=3)
    assert len(some.problems) == 5
    for number, problem in enumerate(some.problems):
        assert (some.problem == number).sum() == (table.problem == table.problems.index(problem)).sum()
    assert table.draw(5, seed=3).problems == some.problems != table.draw(5, seed=4).problems
    assert len(table.draw(10**6, seed=0)) == len(table)
