"""Several processes share out whole problems and learn one model; one alone grows the trees of the usual path."""

from __future__ import annotations

import dataclasses
import socket
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import lightgbm as lgb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthetic import CONV, measurements
from tilewise.arch import load_arch
from tilewise.cluster import LOCAL
from tilewise.metrics import select
from tilewise.ops import Target
from tilewise.train import ModelSettings, TrainingData, TrainSettings, build_table, make_labels, pool_of
from tilewise.train.hosts import Learning, Stop, grow_model
from tilewise.train.hosts._together import (
    _Job,
    _learn_here,
    _part,
    _Tested,
    shares_of,
)

MODEL = ModelSettings(n_estimators=12, num_leaves=15, shortlist=0, bagging_freq=0)
TARGET = Target.parse(CONV)


def learning(label: str) -> tuple[TrainingData, Learning, Stop]:
    """Return a model to learn: 20 problems to learn from, 10 to test, and a rule that never stops."""
    frame = measurements(n_problems=30, n_kernels=12, seed=3)
    table = build_table(frame, TARGET, pool_of(frame, TARGET), load_arch("sm90"), 0.0)
    data = TrainingData.prepare(table, TrainSettings(dataclasses.replace(MODEL, label=label)))
    rows, scores = np.arange(len(table.problem)), data.baselines.of_all().scores
    train, test = rows[table.problem < 20], rows[table.problem >= 20]
    labels = make_labels(table, data.settings.model, scores)
    return data, Learning(table, data.settings.model, data.fit, labels, train, test), Stop(0, scores[test])


@given(sizes=st.lists(st.integers(1, 9), min_size=4, max_size=20), count=st.integers(1, 4))
def test_shares_hold_whole_problems_and_every_row_once(sizes: list[int], count: int) -> None:
    problem = np.repeat(np.arange(len(sizes)) * 3, sizes)
    shares = shares_of(problem, count)
    assert len(shares) == count
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(len(problem)))
    problems = [set(problem[share].tolist()) for share in shares]
    assert sum(map(len, problems)) == len(set().union(*problems)) == len(sizes)


@pytest.mark.parametrize("label", ["lambdarank", "regret"])
def test_the_path_of_several_processes_grows_the_same_trees_in_one(label: str) -> None:
    data, model, stop = learning(label)
    alone = list(grow_model(LOCAL, data.bins, model, every=4, stop=stop))
    job = _Job(model.table.features.names, model.settings, model.fit, 4, _Tested.of(model, stop))
    # The bins are those of the rows that are learnt from or tested: here all of them.
    steps, _ = _learn_here(job, _part(model), (), 0)
    assert [n for n, _ in steps] == [g.n_trees for g in alone] == [4, 8, 12]
    assert all(np.array_equal(scores, g.scores) for (_, scores), g in zip(steps, alone, strict=True))


def test_growing_stops_without_a_better_selection() -> None:
    data, model, stop = learning("lambdarank")
    stop = dataclasses.replace(stop, patience=2)
    grown = list(grow_model(LOCAL, data.bins, model, every=1, stop=stop))
    problem, tflops = model.table.problem[model.test] - 20, model.table.tflops[model.test]
    means = [float(select(problem, tflops, stop.baseline + g.scores).efficiency.mean()) for g in grown]
    assert len(grown) < 12
    assert max(means) == means[-3]
    assert max(means[-2:]) <= means[-3]


@pytest.mark.long
def test_two_processes_learn_one_model() -> None:
    _, model, stop = learning("lambdarank")
    job = _Job(model.table.features.names, model.settings, model.fit, 4, _Tested.of(model, stop))
    shares = shares_of(model.table.problem[model.train], 2)
    parts = [_part(dataclasses.replace(model, train=model.train[share])) for share in shares]
    sockets = [socket.socket() for _ in parts]
    for free in sockets:
        free.bind(("127.0.0.1", 0))
    peers = tuple(f"127.0.0.1:{free.getsockname()[1]}" for free in sockets)
    for free in sockets:
        free.close()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_learn_here, job, part, peers, i) for i, part in enumerate(parts)]
        (steps, text), (others, no_text) = (future.result(timeout=120) for future in futures)
    assert text
    assert not no_text
    # Both have the same trees, learnt from the rows of both.
    assert all(np.array_equal(one, other) for (_, one), (_, other) in zip(steps, others, strict=True))
    first = lgb.Booster(model_str=text).dump_model()["tree_info"][0]["tree_structure"]
    assert first["internal_count"] == len(model.train)
