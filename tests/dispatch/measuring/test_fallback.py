"""Problems are measured only where allowed, once and one at a time, and the results are remembered."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import types
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from dispatch.measuring.measurers import MACHINE, FakeMeasurer
from small_model import write_model
from synthetic import CONV
from tilewise.arch import load_arch
from tilewise.conf_files import conf_dir
from tilewise.dispatch import Dispatcher, Selection, Switches
from tilewise.dispatch.measuring import Fallback
from tilewise.errors import ConfigError, KernelError, MeasurementError, UnknownTargetError
from tilewise.kernels import EpilogueKind, Pool, illegal, load_pool
from tilewise.model import Confidence, TrainedModel, load_artefact
from tilewise.ops import GroupedConvProblem, Target

TARGET = Target.parse(CONV)
PLAIN = GroupedConvProblem(N=8, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)
OTHER = GroupedConvProblem(N=4, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)
TOO_LARGE = GroupedConvProblem(N=2**20, C=64, K=64, G=1, Hi=28, Wi=28, Y=1, X=1)


@pytest.fixture(scope="module")
def pool() -> Pool:
    """Return six kernels that all support the problems."""
    whole = load_pool(TARGET)
    able = [k for k, can in zip(whole.kernels, whole.supported(PLAIN), strict=True) if can]
    return replace(whole, kernels=tuple(able[:6]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return load_artefact(write_model(tmp_path_factory.mktemp("model") / "model", trees=10))


@pytest.fixture(scope="module")
def rival(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    """Return a model whose pool has cuDNN's call."""
    return load_artefact(write_model(tmp_path_factory.mktemp("model") / "model", trees=10, vendor=True))


def without_model(pool: Pool, measurer: FakeMeasurer, **switches: object) -> Dispatcher:
    return Dispatcher(TARGET, pool, None, switches=Switches.read({}, **switches), measurer=measurer)


def with_model(model: TrainedModel, measurer: FakeMeasurer, measure: str, **switches: object) -> Dispatcher:
    chosen = Switches.read({}, measure=measure, **switches)
    return Dispatcher(model.target, model.pool, model, switches=chosen, measurer=measurer)


class TestWithoutModel:
    def test_all_kernels_are_measured_once_and_the_fastest_is_remembered(self, pool: Pool) -> None:
        measurer = FakeMeasurer(bad=frozenset([5]))
        dispatcher = without_model(pool, measurer)
        selection = dispatcher.select(PLAIN)
        assert selection == Selection(pool.kernels[4], pool.names[4], None, "measured", 2.0)
        assert dispatcher.select(PLAIN) is selection
        again = without_model(pool, measurer).select(PLAIN)
        assert again == selection._replace(why="cache")
        assert measurer.asked == [(PLAIN, (0, 1, 2, 3, 4, 5))]

    def test_an_entry_tells_when_it_was_measured(self, pool: Pool) -> None:
        fallback = Fallback(TARGET, pool, None, Switches.read({}), FakeMeasurer())
        entry = fallback.measure({PLAIN: frozenset([0])})[PLAIN].entry
        assert entry is not None
        at = datetime.fromisoformat(entry.measured_at)
        assert at.utcoffset() == timedelta(0)
        assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)

    def test_a_forbidden_winner_leaves_the_next(self, pool: Pool) -> None:
        measurer = FakeMeasurer()
        without_model(pool, measurer).select(PLAIN)
        without = without_model(pool, measurer, forbid=pool.names[5]).select(PLAIN)
        assert (without.kernel_name, without.why) == (pool.names[4], "cache")

    @pytest.mark.parametrize(
        "other",
        [
            replace(MACHINE, device="x"), replace(MACHINE, driver="x"), replace(MACHINE, torch="x"),
            replace(MACHINE, triton="x"), replace(MACHINE, kernels="x"),
        ],
    )  # fmt: skip
    def test_any_change_of_the_context_causes_a_new_measurement(self, pool: Pool, other: object) -> None:
        measurer = FakeMeasurer()
        without_model(pool, measurer).select(PLAIN)
        measurer._machine = other  # type: ignore[assignment]
        without_model(pool, measurer).select(PLAIN)
        assert len(measurer.asked) == 2
        without_model(replace(pool, kernels=pool.kernels[:5]), measurer).select(PLAIN)
        assert len(measurer.asked) == 3

    def test_top_only(self, pool: Pool) -> None:
        measurer = FakeMeasurer()
        assert without_model(pool, measurer, measure_top=2).select(PLAIN).kernel_name == pool.names[1]
        # a larger wish: the kernels measured before are measured again beside the new ones
        assert without_model(pool, measurer, measure_top=4).select(PLAIN).kernel_name == pool.names[3]
        assert [kernels for _, kernels in measurer.asked] == [(0, 1), (0, 1, 2, 3)]

    @pytest.mark.parametrize("switches", [{"measure": "off"}, {"record": "requests.jsonl"}])
    def test_never_unless_allowed(
        self, pool: Pool, switches: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        measurer = FakeMeasurer()
        with without_model(pool, measurer, **switches) as dispatcher:
            assert dispatcher.select(PLAIN).why == "fallback"
        assert measurer.asked == []

    def test_no_such_gpu_here(self, pool: Pool) -> None:
        dispatcher = without_model(pool, FakeMeasurer(machine=None))
        assert dispatcher.select(PLAIN).why == "fallback"
        assert dispatcher.explain(PLAIN)["cause"] == (
            "there is no model; nothing can be measured: there is no GPU of sm90 here"
        )

    def test_no_kernel_is_right(self, pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
        measurer = FakeMeasurer(bad=frozenset(range(6)))
        dispatcher = without_model(pool, measurer)
        for n in range(1, 6):
            assert dispatcher.select(replace(PLAIN, N=n)).why == "fallback"
        assert len(measurer.asked) == 3  # then measuring ends
        assert "no kernel gave a right result: boom" in caplog.text
        assert "failed too often" in (dispatcher.explain(PLAIN)["cause"] or "")
        assert "no kernel gave a right result: boom" in (without_model(pool, measurer).explain(PLAIN)["cause"] or "")

    def test_no_kernel_supports_it(self, pool: Pool) -> None:
        measurer = FakeMeasurer()
        with pytest.raises(KernelError, match="no kernel of"):
            without_model(pool, measurer).select(TOO_LARGE)
        assert measurer.asked == []


def test_nothing_is_measured_while_a_graph_is_captured(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection made during a capture is not remembered."""
    cuda = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, is_current_stream_capturing=lambda: True
    )
    dispatcher = without_model(pool, measurer := FakeMeasurer())
    with monkeypatch.context() as during:
        during.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
        for problem in (PLAIN, PLAIN.to_dict()):
            assert dispatcher.select(problem).why == "fallback"
        assert "captured" in (dispatcher.explain(PLAIN)["cause"] or "")
    assert measurer.asked == []
    assert dispatcher.select(PLAIN.to_dict()).why == "measured"


def test_threads_measure_one_at_a_time_and_no_problem_twice(pool: Pool) -> None:
    measurer = FakeMeasurer(seconds=0.02)
    dispatchers = [without_model(pool, measurer) for _ in range(2)]
    got: list[Selection] = []

    def ask(i: int) -> None:
        got.extend(dispatchers[i % 2].select(p) for p in (PLAIN, OTHER))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not measurer.overlaps
    assert {s.kernel_name for s in got} == {pool.names[5]}
    assert len(got) == 12
    assert sorted(p.N for p, _ in measurer.asked) == [4, 8]  # type: ignore[attr-defined]


class TestWithModel:
    def test_the_model_decides_unless_more_is_asked_for(self, model: TrainedModel) -> None:
        measurer = FakeMeasurer()
        for measure in ("off", "missing", "far", "unsure"):  # the model has no calibration, so its ranking is trusted
            assert with_model(model, measurer, measure).select(PLAIN).why == "model"
        assert measurer.asked == []

    def test_always(self, model: TrainedModel) -> None:
        measurer = FakeMeasurer()
        dispatcher = with_model(model, measurer, "always", measure_top=3)
        best = model.rank(PLAIN, 3).tolist()
        assert dispatcher.select(PLAIN).kernel_name == model.pool.names[max(best)]
        assert measurer.asked == [(PLAIN, tuple(sorted(best)))]
        # a measurement here outweighs a prediction, unless only the model may decide
        assert with_model(model, measurer, "off").select(PLAIN).why == "cache"
        strict = Dispatcher(model.target, model.pool, model, switches=Switches(model="require"), measurer=measurer)
        assert strict.select(PLAIN).why == "model"

    @pytest.mark.parametrize(
        ("k", "measured"),
        [(None, {"far": 24, "unsure": 24}), (4, {"far": 0, "unsure": 4}), (1, {"far": 0, "unsure": 0})],
    )
    def test_the_confidence_decides_how_much_is_measured(
        self, model: TrainedModel, k: int | None, measured: dict[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        confidence = Confidence(0.9, (0.0, 0.1), 3.0, 0.03, k)
        monkeypatch.setattr(TrainedModel, "confidence", lambda *_, **__: confidence)
        n_supported = int(np.sum(model.supported(PLAIN)))
        for measure, expected in measured.items():
            measurer = FakeMeasurer(replace(MACHINE, device=measure))
            dispatcher = with_model(model, measurer, measure)
            assert dispatcher.select(PLAIN).why == ("measured" if expected else "model")
            assert [len(kernels) for _, kernels in measurer.asked] == ([min(expected, n_supported)] if expected else [])

    def test_nothing_is_wished_where_no_kernel_runs(self, model: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TrainedModel, "confidence", lambda *_, **__: Confidence(0.9, (0.0, 0.1), 3.0, 0.03, None))
        fallback = Fallback(model.target, model.pool, model, Switches.read({}, measure="far"), FakeMeasurer())
        able = model.supported(PLAIN)
        wish = fallback.wish(PLAIN, lambda _: able)
        assert wish is not None
        assert wish.kernels == set(np.flatnonzero(able))
        assert wish.cause == "the log2 shape distance to the training set is 3.0, too far for the calibration"
        assert fallback.wish(PLAIN, lambda _: np.zeros_like(able)) is None


class TestOnRequest:
    """Problems that the caller asks to measure, and what the times then decide."""

    @pytest.fixture
    def call(self, rival: TrainedModel) -> int:
        """Return the index of cuDNN's call."""
        return next(i for i, k in enumerate(rival.pool.kernels) if rival.pool.backend.source_of(k).in_pytorch)

    def test_all_problems_are_measured_in_one_go_beside_pytorch_s_call(self, rival: TrainedModel, call: int) -> None:
        measurer = FakeMeasurer()
        dispatcher = with_model(rival, measurer, "missing")
        dispatcher.measure([PLAIN, OTHER.to_dict(), TOO_LARGE], top_k=2)
        best = [[i for i in rival.rank(p).tolist() if i != call][:2] for p in (PLAIN, OTHER)]
        wanted = [tuple(sorted([*some, call])) for some in best]
        assert measurer.calls == 1
        assert measurer.asked == [(PLAIN, wanted[0]), (OTHER, wanted[1])]
        dispatcher.measure([PLAIN, OTHER], top_k=2)
        with_model(rival, measurer, "off").measure([OTHER])  # three kernels: it is measured again, alone
        assert measurer.calls == 2
        assert [problem for problem, _ in measurer.asked] == [PLAIN, OTHER, OTHER]

    def test_times_replace_earlier_decisions_and_comparisons(self, rival: TrainedModel, call: int) -> None:
        measurer = FakeMeasurer()
        measurer.ms = {call: 0.5}
        dispatcher = with_model(rival, measurer, "missing")
        before = dispatcher.select(PLAIN.to_dict()), dispatcher.compare_with_pytorch(PLAIN)
        assert before[0].why == "model"
        assert not before[1].is_measured
        dispatcher.measure([PLAIN])
        for problem in (PLAIN, PLAIN.to_dict()):
            assert dispatcher.select(problem) == Selection(
                rival.pool.kernels[call], rival.pool.names[call], None, "cache", 0.5
            )
        assert dispatcher.is_left_to_pytorch(PLAIN)
        found = dispatcher.compare_with_pytorch(PLAIN)
        assert (found.pick_ms, found.pytorch_ms, found.is_pytorch, found.is_measured) == (0.5, 0.5, True, True)
        assert not dispatcher.compare_with_pytorch(OTHER).is_measured

    def test_the_fastest_kernel_is_the_pick_and_an_epilogue_counts(self, rival: TrainedModel, call: int) -> None:
        first, second = [i for i in rival.rank(PLAIN).tolist() if i != call][:2]
        measurer = FakeMeasurer()
        measurer.ms = {first: 2.0, second: 1.0, call: 1.0 - 1e-6}
        dispatcher = with_model(rival, measurer, "missing")
        dispatcher.measure([PLAIN], top_k=2)
        assert dispatcher.compare_with_pytorch(PLAIN).is_pytorch
        gelu = EpilogueKind(activation="gelu")  # cuDNN's call leaves it to a pass
        found = dispatcher.compare_with_pytorch(PLAIN, gelu)
        assert (found.pick.kernel_name, found.pytorch_ms) == (rival.pool.names[second], 1.0 - 1e-6)
        assert found.pick_ms == pytest.approx(1.0, abs=1e-2)
        assert not dispatcher.is_left_to_pytorch(PLAIN, gelu)

    def test_kernels_that_the_switches_forbid_are_not_measured_but_pytorch_s_call_is(
        self, rival: TrainedModel, call: int
    ) -> None:
        measurer = FakeMeasurer()
        first = next(i for i in rival.rank(PLAIN).tolist() if i != call)
        dispatcher = with_model(rival, measurer, "missing", vendor="off", forbid=rival.pool.names[first])
        dispatcher.measure([PLAIN], top_k=2)
        ((_, kernels),) = measurer.asked
        assert first not in kernels
        assert call in kernels
        found = dispatcher.compare_with_pytorch(PLAIN)
        assert not found.is_pytorch
        assert found.is_measured

    def test_what_cannot_be_measured_is_an_error(self, rival: TrainedModel) -> None:
        with pytest.raises(MeasurementError, match="there is no GPU of sm90 here"):
            with_model(rival, FakeMeasurer(machine=None), "missing").measure([PLAIN])
        bad = FakeMeasurer(bad=frozenset(range(len(rival.pool))))
        with pytest.raises(MeasurementError, match="no kernel gave a right result: boom"):
            with_model(rival, bad, "missing").measure([PLAIN])
        strict = Dispatcher(rival.target, rival.pool, rival, switches=Switches(model="require"), measurer=bad)
        with pytest.raises(ConfigError, match="model=require lets the model alone decide"):
            strict.measure([PLAIN])
        with pytest.raises(ConfigError, match="top_k must be a whole number and at least 1, got 0"):
            strict.measure([PLAIN], 0)
        with_model(rival, bad, "missing").measure([])

    def test_a_run_that_fails_counts_once(self, rival: TrainedModel, caplog: pytest.LogCaptureFixture) -> None:
        measurer = FakeMeasurer()

        def fail() -> None:
            raise MeasurementError("the GPU is away")

        measurer.before = fail
        dispatcher = with_model(rival, measurer, "missing")
        with pytest.raises(MeasurementError, match="the GPU is away"):
            dispatcher.measure([PLAIN, OTHER])
        assert [f"{PLAIN} and 1 others: the GPU is away" in r.getMessage() for r in caplog.records] == [True]
        measurer.before = lambda: None
        dispatcher.measure([PLAIN, OTHER])
        assert dispatcher.select(OTHER).why == "cache"


def test_an_arch_without_a_pool_borrows_what_is_legal_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(conf_dir(), tmp_path / "conf")
    shutil.copy(Path(__file__).parents[2] / "extending" / "sm100.yaml", tmp_path / "conf" / "arch")
    monkeypatch.setenv("TILEWISE_CONF", str(tmp_path / "conf"))
    target = replace(TARGET, arch="sm100")
    dispatcher = Dispatcher.from_pool(target)
    assert {illegal(k, target, load_arch("sm100")) for k in dispatcher.kernels} == {None}
    assert 0 < dispatcher.kernel_count < len(load_pool(TARGET))
    assert dispatcher.select(PLAIN).why == "fallback"
    with pytest.raises(UnknownTargetError, match="sm101"):
        Dispatcher.from_pool(replace(TARGET, arch="sm101"))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_measure_one_at_a_time_and_no_problem_twice(pool: Pool, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def note() -> None:
        with log.open("a") as file:
            file.write("begin ")
        time.sleep(0.05)
        with log.open("a") as file:
            file.write("end ")

    def child() -> int:
        measurer = FakeMeasurer()
        measurer.before = note
        dispatcher = without_model(pool, measurer)
        return 0 if {dispatcher.select(p).kernel_name for p in (PLAIN, OTHER)} == {pool.names[5]} else 1

    children = []
    for _ in range(4):
        children.append(os.fork())
        if children[-1] == 0:
            status = 2
            try:
                status = child()
            finally:
                os._exit(status)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
    assert log.read_text() == "begin end begin end "
