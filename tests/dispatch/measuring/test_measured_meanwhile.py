"""A decision that began before a measurement is not remembered after it, whatever remembers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dispatch.measuring.measurers import FakeMeasurer
from small_model import write_model
from tilewise.dispatch import Dispatcher, Selection, Switches
from tilewise.dispatch._generation import Generation
from tilewise.kernels import EMPTY_KIND, EpilogueKind
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import GroupedConvProblem

PLAIN = GroupedConvProblem(N=8, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)
RELU = EpilogueKind(activation="relu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return load_artefact(write_model(tmp_path_factory.mktemp("model") / "model", trees=10, vendor=True))


@pytest.fixture
def dispatcher(model: TrainedModel) -> Dispatcher:
    """Return a dispatcher on a machine where the model's pick is slow."""
    measurer = FakeMeasurer()
    dispatcher = Dispatcher(
        model.target, model.pool, model, switches=Switches.read({}, measure="off"), measurer=measurer
    )
    measurer.ms = {model.pool.find(dispatcher.rank(PLAIN)[0].kernel_name): 1e6}
    return dispatcher


@pytest.fixture
def measure_during(dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that lets the next call of a generation's method end after a measurement of the problem."""

    def during(name: str) -> None:
        real = getattr(Generation, name)

        def late(self: Generation, *args: Any) -> Any:
            monkeypatch.setattr(Generation, name, real)
            result = real(self, *args)
            dispatcher.measure([PLAIN])
            return result

        monkeypatch.setattr(Generation, name, late)

    return during


@pytest.mark.parametrize("problem", [PLAIN, PLAIN.to_dict()], ids=["problem", "dict"])
def test_a_selection(dispatcher: Dispatcher, measure_during: Callable[[str], None], problem: Any) -> None:
    measure_during("decide")
    early = dispatcher.select(problem)
    late = dispatcher.select(problem)
    assert (early.why, late.why) == ("model", "cache")
    assert late.kernel_name != early.kernel_name
    assert dispatcher.select(PLAIN) is late is dispatcher.select(PLAIN.to_dict())


def test_a_selection_for_an_epilogue(dispatcher: Dispatcher, measure_during: Callable[[str], None]) -> None:
    generation = dispatcher._selector.generation

    def select() -> Selection:
        return dispatcher._selector.decide_with(generation, PLAIN, RELU)

    measure_during("rank_with")
    early = select()
    assert select().kernel_name != early.kernel_name


@pytest.mark.parametrize("kind", [EMPTY_KIND, RELU], ids=["without", "relu"])
def test_a_comparison_with_pytorch(
    dispatcher: Dispatcher, measure_during: Callable[[str], None], kind: EpilogueKind
) -> None:
    measure_during("rank_with")
    early = dispatcher.compare_with_pytorch(PLAIN, kind)
    late = dispatcher.compare_with_pytorch(PLAIN, kind)
    assert late.pick.kernel_name != early.pick.kernel_name
    assert dispatcher._selector.decide_with(dispatcher._selector.generation, PLAIN, kind) == late.pick
