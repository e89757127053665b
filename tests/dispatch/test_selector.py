"""The selector decides each problem once, remembers, counts and logs it, and notifies the shadow."""

from __future__ import annotations

import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from small_model import write_model
from synthetic import CONV, problems
from tilewise.dispatch import Switches
from tilewise.dispatch._generation import Deployment, Generation
from tilewise.dispatch._mapping import mapping_key
from tilewise.dispatch._selector import Selector
from tilewise.dispatch.logs import read_decision_log, read_request_log
from tilewise.dispatch.measuring import local_measurer
from tilewise.errors import ProblemError
from tilewise.kernels import EMPTY_KIND, EpilogueKind
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import GroupedConvProblem, Target

FIRST, SECOND, THIRD = problems(Target.parse(CONV), 3)
TOO_LARGE = GroupedConvProblem(N=2**20, C=64, K=64, G=1, Hi=28, Wi=28, Y=1, X=1)
RELU = EpilogueKind(activation="relu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return load_artefact(write_model(tmp_path_factory.mktemp("model") / "model", trees=10))


class Watched:
    """A selector, and the notifications that its shadow got."""

    def __init__(self, model: TrainedModel, **switches: object) -> None:
        chosen, self.told = Switches.read({}, **switches), list[tuple[Generation, Any]]()
        deployment = Deployment(model.target, model.pool, model, 1)
        self.generation = Generation(deployment, chosen, local_measurer(model.pool.backend))
        shadow: Any = types.SimpleNamespace(on_decision=lambda *of: self.told.append(of))
        self.selector = Selector(self.generation, chosen, shadow)


@pytest.fixture
def watched(model: TrainedModel) -> Watched:
    return Watched(model)


def test_a_problem_is_decided_once(watched: Watched) -> None:
    selector, generation = watched.selector, watched.generation
    selection = selector.select(generation, FIRST)
    assert selection == generation.rank(FIRST, 1)[0]
    assert all(selector.select(generation, FIRST) is selection for _ in range(3))
    assert selector.select(generation, SECOND) == generation.rank(SECOND, 1)[0]
    assert watched.told == [(generation, FIRST), (generation, SECOND)]
    assert {why: n for why, n in selector.decisions.items() if n} == {"model": 2}


def test_a_dict_s_selection_is_found_by_its_key(watched: Watched) -> None:
    mapping = FIRST.to_dict()
    key = mapping_key(mapping)
    selection = watched.selector.select_by_mapping(watched.generation, mapping, key)
    assert watched.generation.fast_by_mapping.get(key) is selection is watched.generation.decisions.get(FIRST)


def test_a_decision_for_the_moment_is_not_remembered(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    generation, mapping = watched.generation, FIRST.to_dict()
    decision = generation.decide(FIRST)._replace(lasting=False)
    monkeypatch.setattr(generation, "decide", lambda _: decision)
    assert watched.selector.select_by_mapping(generation, mapping, mapping_key(mapping)) is decision.selection
    assert generation.decisions.get(FIRST) is generation.fast_by_mapping.get(mapping_key(mapping)) is None


def test_an_epilogue_is_selected_for_as_the_generation_does(watched: Watched) -> None:
    selector, generation = watched.selector, watched.generation
    plain = selector.decide_with(generation, FIRST, EMPTY_KIND)
    assert plain is selector.decide(generation, FIRST)
    found = selector.decide_with(generation, FIRST, RELU)
    assert found == generation.rank_with(FIRST, RELU)[0]
    assert generation.with_epilogue.get((FIRST, RELU)) is found


def test_kernels_of_one_launch_come_first_where_the_host_is_short_of_time(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = watched.generation
    backend = replace(generation.pool.backend, is_one_launch=lambda kernel, problem, variant: kernel.tile_m < 128)
    monkeypatch.setitem(vars(generation.pool), "backend", backend)
    usual = generation.rank_with(FIRST, RELU)
    light = [s.kernel.tile_m < 128 and backend.leaves(s.kernel, FIRST, generation.target, RELU).is_empty for s in usual]
    assert light != sorted(light, reverse=True)
    ranked = generation.rank_with(FIRST, RELU._replace(in_one_launch=True))
    order = sorted(range(len(usual)), key=lambda i: not light[i])  # as usual among each other
    assert ranked == tuple(usual[i] for i in order)


def test_the_wish_for_one_launch_alone_takes_no_pass(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    generation, hurried = watched.generation, EMPTY_KIND._replace(in_one_launch=True)
    backend = replace(generation.pool.backend, leaves=lambda kernel, problem, target, kind: kind)
    monkeypatch.setitem(vars(generation.pool), "backend", backend)
    found, plain = (generation.compare_with_pytorch(FIRST, kind) for kind in (hurried, EMPTY_KIND))
    assert found.pick == plain.pick
    assert found.pick_ms == plain.pick_ms


def test_problems_are_decided_before_they_are_requested(watched: Watched, model: TrainedModel) -> None:
    watched.selector.warm_up_with([FIRST, TOO_LARGE, SECOND.to_dict()])
    assert [problem for _, problem in watched.told] == [FIRST, SECOND]
    later = Watched(model).generation
    watched.selector.warm_up(later)
    assert watched.told[2:] == [(later, FIRST), (later, SECOND)]
    with pytest.raises(ProblemError):
        watched.selector.warm_up_with([{"N": 0}])


def test_every_request_and_each_decision_is_logged(model: TrainedModel, tmp_path: Path) -> None:
    requests, decisions = tmp_path / "requests.jsonl", tmp_path / "decisions.jsonl"
    watched = Watched(model, record=str(requests), journal=str(decisions))
    selector, generation = watched.selector, watched.generation
    for problem in (FIRST, SECOND, FIRST, FIRST):
        selector.select(generation, problem)
    assert selector.logs_requests
    assert selector.requests == {"model": 4}
    selector.close()
    counts = {request.problem: n for request, n in read_request_log(requests).items()}
    assert counts == {FIRST: 3, SECOND: 1}
    lines = read_decision_log(decisions)
    assert [line["problem"] for line in lines] == [FIRST.stated(), SECOND.stated()]
    assert all(0 < line["seconds"] < 60 for line in lines)
    assert {(line["target"], line["content_hash"]) for line in lines} == {(CONV, model.content_hash)}


def test_nothing_is_logged_unless_asked_for(watched: Watched) -> None:
    watched.selector.select(watched.generation, FIRST)
    assert not watched.selector.logs_requests
    assert watched.selector.requests == {}
    watched.selector.close()
