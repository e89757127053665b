"""The core's trees against LightGBM's: equal bits and rankings, also for missing values; and the reader of texts."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.compiled import forest, needs_core, over_matrix, stumps
from tilewise.core import compiled_core
from tilewise.errors import ArtefactError
from tilewise.model import Ensemble

pytestmark = needs_core


def boost(x: np.ndarray, y: np.ndarray, trees: int, **params: Any) -> lgb.Booster:
    defaults = {"objective": "regression", "verbose": -1, "num_threads": 1, "min_data_in_leaf": 2, "min_data_in_bin": 1}
    binning = {"feature_pre_filter": False, "max_bin": params.get("max_bin", 255)}
    return lgb.train(defaults | params, lgb.Dataset(x, y, params=binning), trees)


def pool_like(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return columns like those of a pool: one value for all, a few values, or one for each row."""
    matrix = np.empty((rows, columns))
    for i in range(columns):
        levels = rng.normal(size=int(rng.choice([1, 3, rows]))) * 10.0 ** rng.integers(-40, 40)
        matrix[:, i] = rng.choice(levels, rows)
    return matrix


def best(scores: np.ndarray, dead: np.ndarray, most: int) -> list[int]:
    return [i for i in np.argsort(-scores, kind="stable").tolist() if not dead[i]][:most]


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.sampled_from([1, 2, 31, 32, 33, 63, 64, 65, 128, 129, 256, 257]),
    columns=st.integers(1, 6),
    missing=st.sampled_from([0.0, 0.3]),
    most=st.sampled_from([1, 5, 1000]),
    params=st.fixed_dictionaries(
        {
            "num_leaves": st.sampled_from([2, 3, 31]),
            "zero_as_missing": st.booleans(),
            "use_missing": st.booleans(),
        }
    ),
)
@settings(max_examples=60)
def test_scores_and_the_best_are_lightgbms(
    seed: int, rows: int, columns: int, missing: float, most: int, params: dict[str, Any]
) -> None:
    rng = np.random.default_rng(seed)
    x = np.vstack([pool_like(rng, 40, columns) for _ in range(4)])
    y = np.sign(x[:, 0]) + rng.normal(size=len(x))
    x[rng.random(x.shape) < missing] = np.nan
    x[rng.random(x.shape) < missing] = 0.0
    booster = boost(x, y, 12, **params)
    probe = pool_like(rng, rows, columns)
    for column in range(columns):  # decisive values: thresholds, and values that may count as missing
        known = np.concatenate([x[:, column], [0.0, -0.0, 1e-36, np.inf, -np.inf], [np.nan] * bool(missing)])
        mixed = rng.random(rows) < rng.choice([0.0, 0.5])
        probe[mixed, column] = rng.choice(known, mixed.sum())
        if rng.random() < 0.3:
            probe[:, column] = rng.choice(known)
    expected = np.asarray(booster.predict(probe, raw_score=True, num_threads=1))
    dead = rng.random(rows) < 0.2
    ranker, scores = over_matrix(Ensemble.from_text(booster.model_to_string()), probe, dead), np.empty(rows)
    ranker.score((), scores)
    assert scores.tobytes() == np.where(dead, -np.inf, expected).tobytes()
    kernels, found, scale = ranker.rank((), most)
    assert list(kernels) == best(expected, dead, most)
    assert found == tuple(expected[list(kernels)])
    assert scale == 0.0


def test_a_large_model_over_a_large_pool() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3000, 20))
    booster = boost(x, x[:, 0] * x[:, 1] + rng.normal(size=3000), 120, num_leaves=63)
    probe = np.round(rng.normal(size=(700, 20)), 1)
    expected = np.asarray(booster.predict(probe, raw_score=True, num_threads=1))
    ranker, scores = over_matrix(Ensemble.from_text(booster.model_to_string()), probe), np.empty(700)
    ranker.score((), scores)
    assert scores.tobytes() == expected.tobytes()
    for most in (1, 5, 17, 700):
        assert list(ranker.rank((), most)[0]) == best(expected, np.zeros(700), most)


@pytest.mark.long
@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize(
    ("rows", "trees"), [(40, 600), (100, 600), (255, 150), (256, 150), (256, 600), (257, 150), (600, 150)]
)
def test_the_search_is_exact_however_many_are_taken_at_a_time(rows: int, trees: int, missing: float) -> None:
    rng = np.random.default_rng(rows)
    x = pool_like(rng, 2000, 12)
    x[rng.random(x.shape) < missing] = np.nan
    x[:, :3] = rng.normal(size=(2000, 3))  # nothing is missing there
    booster = boost(x, x[:, 0] * x[:, 1] + np.sin(4 * x[:, 2]) + rng.normal(size=2000) / 10, trees)
    ensemble = Ensemble.from_text(booster.model_to_string())
    for _ in range(10):
        probe = x[rng.choice(len(x), rows)]
        probe[:, 4:8] = probe[0, 4:8]  # as problems do, they share many values
        expected = np.asarray(booster.predict(probe, raw_score=True, num_threads=1))
        dead = rng.random(rows) < rng.choice([0.0, 0.7])
        ranker = over_matrix(ensemble, probe, dead)
        for most in (1, 5, 300):
            kernels, found, _ = ranker.rank((), most)
            assert list(kernels) == best(expected, dead, most)
            assert found == tuple(expected[list(kernels)])


def test_a_feature_may_have_a_thousand_thresholds() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(4000, 2))
    booster = boost(x, np.sin(9 * x[:, 0]) + x[:, 1], 60, max_bin=1000, num_leaves=127)
    ensemble = Ensemble.from_text(booster.model_to_string())
    leaf = ensemble.children[::2] == ensemble.children[1::2]
    edges = ensemble.threshold[~leaf & (ensemble.feature == 0)]
    assert len(np.unique(edges)) > 500
    picked = rng.choice(edges, 300)
    probe = np.column_stack([np.concatenate([picked, np.nextafter(picked, np.inf)]), rng.normal(size=600)])
    expected = np.asarray(booster.predict(probe, raw_score=True, num_threads=1))
    ranker, scores = over_matrix(ensemble, probe), np.empty(600)
    ranker.score((), scores)
    assert scores.tobytes() == expected.tobytes()
    assert list(ranker.rank((), 5)[0]) == best(expected, np.zeros(600), 5)


def test_many_threads_ask_one_ranker() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(500, 8))
    ensemble = Ensemble.from_text(boost(x, x[:, 0] * x[:, 1], 40).model_to_string())
    ranker = over_matrix(ensemble, x)
    expected = ranker.rank((), 10)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: ranker.rank((), 10), range(400))) == {expected}


def test_a_pool_without_supported_kernels_has_an_empty_ranking() -> None:
    assert over_matrix(stumps(2), np.ones((3, 2)), np.ones(3, dtype=bool)).rank((), 2) == ((), (), 0.0)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 300),
        (1, [0, 2]),
        (2, [9] + [0] * 5),
        (4, [5] * 12),
        (4, [2, 1, 0, 0, 2, 2, 5, 4, 4, 4, 5, 5]),
        (5, [7] * 6),
        (4, [1, 1, 1, 1, 2, 2, 5, 4, 4, 4, 5, 5]),  # one child on both sides, and a node without a parent
    ],
)
def test_inconsistent_trees_are_refused(place: int, value: Any) -> None:
    """The Python reader makes no such trees, but the core checks them."""
    core, trees = compiled_core(), list(forest(stumps(2)))
    trees[place] = value if place == 0 else np.array(value, dtype=trees[place].dtype)
    none = np.empty((0, 2), dtype=np.int32)
    assert core is not None
    with pytest.raises(ValueError, match="trees: its arrays are inconsistent or exceed the limits of the core"):
        core.Ranker(
            1, (0, 1, np.zeros(1), np.empty(0, np.int32), np.empty(0, np.int32)), [], none,
            np.array([[0, -1], [0, -1]], dtype=np.int32), none, none, none, none, tuple(trees), None, None, 0,
            np.log, np.log2,
        )  # fmt: skip


# ---- the reader of texts --------------------------------------------------------------------------------------------


@contextmanager
def without_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TILEWISE_CORE", "numpy")
        yield


def same(one: Ensemble, other: Ensemble) -> bool:
    arrays = ("roots", "feature", "threshold", "children", "missing", "default_left", "value")
    equal = all(getattr(one, a).tobytes() == getattr(other, a).tobytes() for a in arrays)
    return equal and (one.feature_names, one.depth) == (other.feature_names, other.depth)


@pytest.fixture(scope="module")
def text() -> str:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(200, 4)) * 10.0 ** rng.integers(-40, 40, 4)
    x[rng.random(x.shape) < 0.2] = np.nan
    return str(boost(x, rng.normal(size=200), 4, num_leaves=7).model_to_string())


def test_both_readers_read_the_same(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    core = compiled_core()
    assert core is not None
    assert core.parse_trees(text, text.index("Tree=0"), 4) is not None
    read = Ensemble.from_text(text)
    with without_core(monkeypatch):
        assert same(read, Ensemble.from_text(text))


@pytest.mark.parametrize("value", ["0", "00", "-0", "1", "01", "", "-", "+0", "0 0", "0.0", " 0", "0" * 10, "0" * 11])
def test_both_readers_accept_the_same_trees_as_not_linear(value: str, text: str) -> None:
    changed = text.replace("is_linear=0", f"is_linear={value}", 1)
    read: list[Ensemble | str] = []
    for reader in (contextlib.nullcontext, lambda: without_core(pytest.MonkeyPatch())):
        with reader():
            try:
                read.append(Ensemble.from_text(changed))
            except ArtefactError as e:
                read.append(str(e))
    compiled, plain = read
    if isinstance(compiled, Ensemble) and isinstance(plain, Ensemble):
        assert same(compiled, plain)
    else:
        assert compiled == plain


@given(data=st.data())
@settings(max_examples=200)
def test_both_readers_accept_the_same_damaged_texts(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, text.index("end of trees") + 5))
    how = data.draw(st.sampled_from(["cut", "drop", "change", "insert"]))
    token = data.draw(st.sampled_from([*"0123456789-.e= \nxT\r\t\0", "Tree=1\n", "inf", "nan", "é", "num_leaves=2\n"]))
    changed = {
        "cut": text[:at],
        "drop": text[:at] + text[at + 1 :],
        "change": text[:at] + token + text[at + 1 :],
        "insert": text[:at] + token + text[at:],
    }[how]
    monkeypatch = pytest.MonkeyPatch()
    with without_core(monkeypatch):
        try:
            expected = Ensemble.from_text(changed)
        except ArtefactError as e:
            error = str(e)
            expected = None
    if expected is None:
        with pytest.raises(ArtefactError, match=re.escape(error)):
            Ensemble.from_text(changed)
    else:
        assert same(Ensemble.from_text(changed), expected)
