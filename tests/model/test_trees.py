"""Scores against LightGBM's, bit for bit, and the errors for invalid texts."""

from __future__ import annotations

import re
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewise.errors import ArtefactError
from tilewise.model import Ensemble


def boost(x: np.ndarray, y: np.ndarray, trees: int = 5, **params: Any) -> lgb.Booster:
    defaults = {"objective": "regression", "verbose": -1, "num_threads": 1, "min_data_in_leaf": 2, "min_data_in_bin": 1}
    return lgb.train(defaults | params, lgb.Dataset(x, y, params={"feature_pre_filter": False}), trees)


def table(
    seed: int, rows: int, columns: int, missing: float = 0.0, zeros: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-40, 40, columns)
    y = np.sign(x[:, 0]) + rng.normal(size=rows)
    x[rng.random(x.shape) < missing] = np.nan
    x[rng.random(x.shape) < zeros] = 0.0
    return x, y


def lightgbms(booster: lgb.Booster, x: np.ndarray) -> np.ndarray:
    return np.asarray(booster.predict(x, raw_score=True, num_threads=1))


def assert_equal(booster: lgb.Booster, x: np.ndarray) -> None:
    ensemble = Ensemble.from_text(booster.model_to_string())
    assert ensemble.predict(x).tobytes() == lightgbms(booster, x).tobytes()
    assert (ensemble.n_trees, ensemble.n_features) == (booster.num_trees(), booster.num_feature())


@given(
    seed=st.integers(0, 2**32 - 1),
    columns=st.integers(1, 6),
    missing=st.sampled_from([0.0, 0.3]),
    zeros=st.sampled_from([0.0, 0.3]),
    params=st.fixed_dictionaries(
        {
            "num_leaves": st.sampled_from([2, 3, 31]),
            "max_depth": st.sampled_from([-1, 1, 4]),
            "zero_as_missing": st.booleans(),
            "use_missing": st.booleans(),
            "objective": st.sampled_from(["regression", "binary", "huber"]),
        }
    ),
)
@settings(max_examples=60)
def test_scores_equal_lightgbms(seed: int, columns: int, missing: float, zeros: float, params: dict[str, Any]) -> None:
    x, y = table(seed, 80, columns, missing, zeros)
    booster = boost(x, (y > 0).astype(float) if params["objective"] == "binary" else y, **params)
    probe = np.vstack([x, -x, np.zeros_like(x), np.full_like(x, np.nan), np.full_like(x, np.inf), x * 1e-36])
    assert_equal(booster, probe)


def test_a_whole_table_scores_as_its_parts_do() -> None:
    x = np.random.default_rng(5).normal(size=(300, 3))
    booster = boost(x, x[:, 0] * np.sign(x[:, 1]), trees=20)
    ensemble = Ensemble.from_text(booster.model_to_string())
    at = ensemble.threshold[(np.abs(ensemble.threshold) > 1e-30) & (ensemble.value == 0)]  # LightGBM takes less for 0
    probe = np.random.default_rng(5).choice(np.concatenate([at, x.ravel()]), (5000, 3))  # enough to be walked by tree
    assert_equal(booster, probe)
    parts = np.concatenate([ensemble.predict(part) for part in np.array_split(probe, 3)])
    assert ensemble.predict(probe).tobytes() == parts.tobytes()


def test_values_on_a_threshold_go_left_as_lightgbms_do() -> None:
    x, y = table(3, 200, 2)
    booster = boost(x, y, trees=10)
    ensemble = Ensemble.from_text(booster.model_to_string())
    at = ensemble.threshold[np.isfinite(ensemble.threshold) & (ensemble.value == 0)]
    probe = np.array(np.meshgrid(np.concatenate([at, np.nextafter(at, np.inf)]), at)).reshape(2, -1).T
    assert_equal(booster, probe)


def test_a_large_model_over_many_rows() -> None:
    x, y = table(4, 3000, 20, missing=0.05)
    assert_equal(boost(x, y, trees=120, num_leaves=63), x)


def test_a_model_that_never_splits() -> None:
    x = np.ones((30, 2))
    booster = boost(x, np.full(30, 2.5), trees=3)
    assert_equal(booster, x)
    assert Ensemble.from_text(booster.model_to_string()).depth == 0


def test_trees_that_split_beside_trees_that_do_not() -> None:
    """LightGBM stops at a tree without splits, so one is put in by hand."""
    x, y = table(5, 60, 2)
    booster = boost(x, y, trees=3)
    text = re.sub(r"tree_sizes=.*\n\n", "\n", booster.model_to_string())
    stump = "Tree=3\nnum_leaves=1\nnum_cat=0\nleaf_value=0.25\nis_linear=0\nshrinkage=1\n\n\nend of trees"
    ensemble = Ensemble.from_text(text.replace("end of trees", stump))
    assert ensemble.n_trees == 4
    assert (ensemble.predict(x) == lightgbms(booster, x) + 0.25).all()


def test_a_text_saved_and_read_again_scores_the_same(tmp_path: Any) -> None:
    x, y = table(6, 100, 3)
    booster = boost(x, y)
    booster.save_model(tmp_path / "model.txt")
    scores = Ensemble.from_text((tmp_path / "model.txt").read_text()).predict(x)
    assert scores.tobytes() == lightgbms(booster, x).tobytes()


def test_rows_do_not_depend_on_their_neighbours() -> None:
    x, y = table(7, 700, 4, missing=0.1)
    ensemble = Ensemble.from_text(boost(x, y, trees=300).model_to_string())
    assert np.array([ensemble.predict(row[None])[0] for row in x[:50]]).tobytes() == ensemble.predict(x)[:50].tobytes()


def test_no_rows_give_no_scores() -> None:
    x, y = table(8, 50, 3)
    assert Ensemble.from_text(boost(x, y).model_to_string()).predict(np.empty((0, 3))).shape == (0,)


def test_a_matrix_of_another_shape_is_refused() -> None:
    x, y = table(9, 50, 3)
    ensemble = Ensemble.from_text(boost(x, y).model_to_string())
    with pytest.raises(ValueError, match=r"the matrix must be \(rows, 3\), got \(50, 2\)"):
        ensemble.predict(x[:, :2])


# ---- texts that are no model ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text() -> str:
    x, y = table(10, 100, 3)
    return str(boost(x, y, trees=3, num_leaves=4).model_to_string())


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        ("^tree\n", "forest\n", "begins with 'tree'"),
        ("end of trees", "", "a line 'end of trees'"),
        ("version=v4", "version=v9", "must have version v3 or v4, got 'v9'"),
        ("num_tree_per_iteration=1", "num_tree_per_iteration=3", "one score per row"),
        ("max_feature_idx=2", "average_output\nmax_feature_idx=2", "one score per row"),
        ("max_feature_idx=2", "max_feature_idx=7", "max_feature_idx is 7, but 3 features are named"),
        ("max_feature_idx=2", "max_feature_idx=two", "max_feature_idx must be an integer, got 'two'"),
        ("(?s)Tree=2\n.*end of trees", "end of trees", "3 trees are announced, 2 found"),
        ("(?s)tree_sizes.*end of trees", "end of trees", "the model has no trees"),
        ("num_leaves=4\n", "num_leaves=5\n", "tree 0: leaf_value must have 5 numbers, got 4"),
        ("num_leaves=4\n", "num_leaves=0\n", "tree 0: leaf_value must have 0 numbers, got 4"),
        (
            "num_leaves=4\n",
            "num_leaves=99999999999999\n",
            "tree 0: num_leaves must be at most 1048576, got 99999999999999",
        ),
        (
            "leaf_value=.*",
            "leaf_value=" + "0 " * 1000,
            "tree 0: leaf_value must have 4 numbers, got a text of 2000 char",
        ),
        ("version=v4", "version=v4\n" + "x" * (1 << 20), "the header must have at most 1048576 characters"),
        ("end of trees", "\n" * (1 << 21) + "end of trees", "a model must have at most 2097152 lines"),
        ("threshold=\\S+", "threshold=-0x10", "tree 0: threshold must be numbers"),
        ("leaf_value=\\S+", "leaf_value=-0X1p3", "tree 0: leaf_value must be numbers"),
        ("is_linear=0", "is_linear=1", "tree 0: linear leaves are not supported"),
        ("decision_type=2", "decision_type=1", "tree 0: categorical splits are not supported"),
        ("split_feature=\\d", "split_feature=3", "tree 0: a split uses a feature beyond the 3"),
        ("split_feature=\\d", "split_feature=-1", "tree 0: a split uses a feature beyond the 3"),
        ("split_feature=\\d", "split_feature=1.5", "tree 0: split_feature must be numbers"),
        ("left_child=\\S+", "left_child=0", "tree 0: its nodes do not form a tree"),
        ("left_child=\\S+", "left_child=99", "tree 0: its nodes do not form a tree"),
        ("right_child=\\S+", "right_child=-9", "tree 0: its nodes do not form a tree"),
        ("right_child=\\S+", "right_child=" + "9" * 30, "tree 0: right_child must be numbers"),
        ("threshold=\\S+", "threshold=nan", "tree 0: thresholds and leaf values must be numbers"),
        ("leaf_value=\\S+", "leaf_value=inf", "tree 0: thresholds and leaf values must be numbers"),
        ("leaf_value=\\S+", "leaf_value=many", "tree 0: leaf_value must be numbers"),
        ("leaf_value=.*", "", "tree 0: leaf_value must have 4 numbers, got 0"),
    ],
)
def test_a_text_that_is_no_model_says_why(text: str, pattern: str, replacement: str, message: str) -> None:
    changed = re.sub(pattern, replacement, text, count=1)
    assert changed != text
    with pytest.raises(ArtefactError, match=message):
        Ensemble.from_text(changed)


def chain(splits: int) -> str:
    """Return a model of one tree in which the left child of each split is a leaf and the right child the next split."""
    columns = {
        "split_feature": [0] * splits,
        "threshold": range(splits),
        "decision_type": [2] * splits,
        "left_child": [-(i + 1) for i in range(splits)],
        "right_child": [*range(1, splits), -(splits + 1)],
        "leaf_value": range(splits + 1),
    }
    header = "tree\nversion=v4\nnum_tree_per_iteration=1\nmax_feature_idx=0\nfeature_names=a\ntree_sizes=1\n\n"
    rows = "".join(f"{name}={' '.join(map(str, numbers))}\n" for name, numbers in columns.items())
    return f"{header}Tree=0\nnum_leaves={splits + 1}\n{rows}\nend of trees\n"


@pytest.mark.long
@pytest.mark.parametrize("core", ["c", "numpy"])
def test_a_deep_chain_of_splits_is_refused(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its traversal takes a step per split, so the self-test of such a model would take many seconds."""
    monkeypatch.setenv("TILEWISE_CORE", core)
    assert Ensemble.from_text(chain(4096)).depth == 4096
    for splits in (4097, 200_000):
        with pytest.raises(ArtefactError, match=f"a path must have at most 4096 splits, got {splits}; train with a sm"):
            Ensemble.from_text(chain(splits))


@pytest.mark.parametrize("core", ["c", "numpy"])
def test_hexadecimal_numbers_are_refused(text: str, core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_CORE", core)
    for number in ("0x10", "-0x10", "-0X1p3"):
        with pytest.raises(ArtefactError, match="must be numbers"):
            Ensemble.from_text(re.sub(r"leaf_value=\S+", f"leaf_value={number}", text, count=1))


def test_categorical_models_are_refused() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, (200, 2)).astype(float)
    data = lgb.Dataset(x, x[:, 0] % 2, categorical_feature=[0])
    params = {"verbose": -1, "num_threads": 1, "min_data_in_leaf": 2, "max_cat_to_onehot": 1, "min_data_per_group": 2}
    booster = lgb.train(params, data, 2)
    with pytest.raises(ArtefactError, match="tree 0: categorical splits are not supported"):
        Ensemble.from_text(booster.model_to_string())


@given(data=st.data())
@settings(max_examples=150)
def test_a_damaged_text_is_refused_or_still_walks(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, text.index("end of trees") + 5))
    how = data.draw(st.sampled_from(["cut", "drop", "change"]))
    character = data.draw(st.sampled_from("0123456789-.e= \nxT"))
    changed = {"cut": text[:at], "drop": text[:at] + text[at + 1 :], "change": text[:at] + character + text[at + 1 :]}[
        how
    ]
    try:
        ensemble = Ensemble.from_text(changed)
    except ArtefactError:
        return
    assert np.isfinite(ensemble.predict(np.zeros((2, ensemble.n_features)))).all()
