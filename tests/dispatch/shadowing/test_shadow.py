"""A shadow compares a second model with production within a budget, without mixing models or failing calls."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch.shadowing.shadows import Calls, FakeTimer, decide, generation_of
from small_model import table, write_model
from synthetic import CONV, problems
from tilewise.collect.engines import ReplayTable
from tilewise.dispatch import Dispatcher, Switches
from tilewise.dispatch._recent import Recent
from tilewise.dispatch.background import Ticker
from tilewise.dispatch.launching import _launch as launch
from tilewise.dispatch.shadowing import Case, Pair, PairTimes, PendingTimes
from tilewise.dispatch.shadowing import _shadow as shadow
from tilewise.dispatch.shadowing._gpu_timer import GpuTimer
from tilewise.dispatch.shadowing._time_budget import MAX_SAVED_MS, NEVER, TimeAccount
from tilewise.gate import Observation, Thresholds, gather_evidence, read_observations
from tilewise.kernels.triton.programs import family_of, interpreted
from tilewise.kernels.triton.programs._operand_tensors import integer_operands
from tilewise.model import load_artefact
from tilewise.ops import GroupedConvProblem, Problem, Target
from tilewise.registry import CANDIDATE, PRODUCTION, registry_session, set_alias
from tilewise.registry._history import commit_change, settle_history
from tilewise.registry.promotion import publish, roll_back_if_slower

TARGET = Target.parse(CONV)
SHAPES = problems(TARGET, 40)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return models: two good ones that differ by a note, one that picks the slowest kernel, one of another target."""
    root = tmp_path_factory.mktemp("models")
    return {
        "good": write_model(root / "good"),
        "also good": write_model(root / "also", note="second"),
        "bad": write_model(root / "bad", sign=-1.0),
        "other": write_model(root / "other", target="gemm_universal_bf16_sm90", trees=2),
    }


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "table.parquet"
    table(failures=0.0).to_parquet(path)
    return path


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable background threads."""
    monkeypatch.setattr(Ticker, "start", lambda *_, **__: None)


def simulated(folder: Path, beside: object, recorded: Path, journal: Path, **switches: Any) -> Dispatcher:
    chosen = Switches(shadow=str(beside), simulate=str(recorded), shadow_journal=str(journal), **switches)
    return Dispatcher.from_folder(folder, switches=chosen)


def hashes(folders: dict[str, Path], *names: str) -> list[str]:
    return [load_artefact(folders[n]).content_hash for n in names]


class TestSimulated:
    @pytest.mark.long
    @pytest.mark.parametrize("before", [False, True])
    def test_a_better_candidate_is_seen_to_be_better(
        self, folders: dict[str, Path], recorded: Path, tmp_path: Path, before: bool
    ) -> None:
        """The candidate may be loaded before the first decision or later."""
        journal = tmp_path / "journal"
        with simulated(folders["bad"], folders["good"], recorded, journal) as dispatcher:
            if before:
                dispatcher.refresh()
            for p in SHAPES:
                dispatcher.select(p)
            dispatcher.refresh()
        found = read_observations(journal)
        assert Counter(o.problem for o in found.valid) == Counter(SHAPES)
        assert all((o.device, o.calls) == ("recorded in table.parquet", 1) for o in found.valid)
        seen = gather_evidence(found.valid, *hashes(folders, "good", "bad"))
        assert seen.count_right()[0] > 35
        assert seen.speed_up(0.95, 200).low > 1.5
        answers = ReplayTable.load(recorded, TARGET)
        for o in found.valid:
            for pick in (o.production, o.candidate):
                assert list(pick.ms) == pytest.approx([answers.latency_ms(o.problem, pick.kernel_name)])

    @pytest.mark.long
    def test_models_that_agree_gain_nothing(self, folders: dict[str, Path], recorded: Path, tmp_path: Path) -> None:
        with simulated(folders["good"], folders["also good"], recorded, tmp_path / "j") as dispatcher:
            dispatcher.refresh()
            for p in SHAPES[:5]:
                dispatcher.select(p)
        seen = gather_evidence(read_observations(tmp_path / "j").valid, *hashes(folders, "also good", "good"))
        assert (len(seen.problems), seen.differing, seen.speed_up(0.95, 10).delta) == (5, (), 1.0)

    @pytest.mark.long
    @pytest.mark.parametrize(("beside", "said"), [
        ("good", ""), ("other", "it is a model of gemm_universal_bf16_sm90, not of"),
        ("candidate", "there is no registry"), ("none/such", "none/such"),
    ])  # fmt: skip
    def test_idle(
        self, folders: dict[str, Path], recorded: Path, tmp_path: Path, beside: str, said: str,
        caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """The same content, another target, a missing alias or folder: one warning at most, and nothing is compared."""
        monkeypatch.chdir(tmp_path)
        with simulated(folders["good"], folders.get(beside, beside), recorded, tmp_path / "j") as dispatcher:
            for _ in range(2):
                dispatcher.refresh()
            dispatcher.select(SHAPES[0])
            assert dispatcher._shadow is not None
            assert dispatcher._shadow.content_hash is None
        assert not (tmp_path / "j").exists()
        assert said in caplog.text
        assert len(caplog.records) == bool(said)

    def test_measured_decisions_are_not_compared(
        self, folders: dict[str, Path], recorded: Path, tmp_path: Path
    ) -> None:
        with simulated(folders["bad"], folders["good"], recorded, tmp_path / "j", measure="always") as dispatcher:
            dispatcher.refresh()
            assert dispatcher.select(SHAPES[0]).why == "measured"
        assert not (tmp_path / "j").exists()

    def test_a_missing_recording_is_an_error_of_the_observation(
        self, folders: dict[str, Path], recorded: Path, tmp_path: Path
    ) -> None:
        new = GroupedConvProblem(N=3, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)
        with simulated(folders["bad"], folders["good"], recorded, tmp_path / "j") as dispatcher:
            dispatcher.refresh()
            dispatcher.select(new)
        (seen,) = read_observations(tmp_path / "j").valid
        assert (seen.production.ms, seen.candidate.ms) == ((), ())
        assert "never measured" in str(seen.error)


class TestRegistry:
    @pytest.mark.long
    def test_both_models_are_kept_current_and_never_mixed(
        self, folders: dict[str, Path], uri: str, recorded: Path, tmp_path: Path
    ) -> None:
        def put(alias: str, name: str) -> None:
            with registry_session(uri):
                set_alias(publish(folders[name]), alias)

        put(PRODUCTION, "good")
        put(CANDIDATE, "bad")
        switches = Switches(shadow="candidate", simulate=str(recorded), shadow_journal=str(tmp_path / "j"))
        good, bad, also = hashes(folders, "good", "bad", "also good")
        with Dispatcher.from_registry(CONV, uri=uri, switches=switches) as dispatcher:
            dispatcher.refresh()
            dispatcher.select(SHAPES[0])
            put(CANDIDATE, "also good")
            dispatcher.refresh()
            dispatcher.select(SHAPES[1])
            put(PRODUCTION, "also good")
            dispatcher.refresh()
            assert dispatcher._shadow is not None
            assert dispatcher._shadow.content_hash is None  # the candidate is in production
            dispatcher.select(SHAPES[2])
            put(CANDIDATE, "bad")
            dispatcher.refresh()
            dispatcher.select(SHAPES[3])
        found = [
            (o.production.content_hash, o.candidate.content_hash, o.problem)
            for o in read_observations(tmp_path / "j").valid
        ]
        assert set(found) == {
            (good, bad, SHAPES[0]),
            (good, also, SHAPES[0]), (good, also, SHAPES[1]),  # earlier decisions count for the new pair as well
            (also, bad, SHAPES[2]), (also, bad, SHAPES[3]),
        }  # fmt: skip
        by_number = switches.but(shadow="2")
        with Dispatcher.from_registry(CONV, uri=uri, switches=by_number) as dispatcher:
            dispatcher.refresh()
            assert dispatcher._shadow is not None
            assert dispatcher._shadow.content_hash == bad

    @pytest.mark.long
    def test_a_bad_production_is_rolled_back_by_its_dispatchers_observations(
        self, folders: dict[str, Path], uri: str, recorded: Path, tmp_path: Path
    ) -> None:
        with registry_session(uri):
            for name in ("good", "bad"):
                version, head = publish(folders[name]), settle_history(CONV)
                commit_change(head, version.number, "promoted", "", previous=head.production)
        switches = Switches(shadow="previous", simulate=str(recorded), shadow_journal=str(tmp_path / "j"))
        with Dispatcher.from_registry(CONV, uri=uri, switches=switches) as dispatcher:
            dispatcher.refresh()
            for p in SHAPES:
                dispatcher.select(p)
            assert dispatcher._shadow is not None
            dispatcher._shadow.prepare()
            dispatcher._shadow._appender.flush()
            with registry_session(uri):
                assert roll_back_if_slower(CONV, read_observations(tmp_path / "j"), Thresholds()).rolled_back
                assert not roll_back_if_slower(CONV, read_observations(tmp_path / "j"), Thresholds()).rolled_back
            assert dispatcher.refresh()
            good, bad = hashes(folders, "good", "bad")
            assert (dispatcher.content_hash, dispatcher._shadow.content_hash) == (good, bad)


@pytest.mark.usefixtures("alone")
class TestCalls:
    @pytest.fixture
    def calls(self, folders: dict[str, Path], tmp_path: Path) -> Callable[..., Calls]:
        def _calls(timer: FakeTimer, share: float = 0.01, name: str = "journal") -> Calls:
            return Calls(generation_of(folders["good"]), folders["bad"], tmp_path / name, timer, share)

        return _calls

    def observations(self, calls: Calls) -> tuple[Observation, ...]:
        calls.shadow.close()
        return read_observations(calls.shadow._appender._path).valid

    def test_a_call_is_timed_once_it_was_earned(self, calls: Callable[..., Calls]) -> None:
        timer = FakeTimer()
        run = calls(timer)
        run(SHAPES[0], 1599)
        assert timer.asked == []  # 8 times the kernel's own time, from half of a hundredth of the calls'
        run(SHAPES[0], 2)
        assert timer.asked == [SHAPES[0]]
        run(SHAPES[0], 20000)
        seen = self.observations(run)
        assert sum(o.calls for o in seen) == 21601
        timed = [o for o in seen if o.production.ms]
        assert len(timed) == len(timer.asked) == 2 + 21601 // 1600  # twice from the pool, then from its own account
        assert {o.candidate.ms[0] / o.production.ms[0] for o in timed} == {2.0}

    def test_cheap_problems_starve_none(self, folders: dict[str, Path], calls: Callable[..., Calls]) -> None:
        run = calls(FakeTimer())
        for p in SHAPES:
            decide(run.production, p)
        by_length = sorted(SHAPES, key=lambda p: p.flops)
        cheap, dear = by_length[0], by_length[-1]
        for _ in range(12000):
            run(cheap)
            run(dear)
        counts = Counter(o.problem for o in self.observations(run) if o.production.ms)
        assert min(counts[cheap], counts[dear]) >= 4

    @pytest.mark.long
    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        data=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 400)), max_size=40),
        cost=st.sampled_from([0.2, 1.0, 5.0]),
        share=st.sampled_from([0.0, 0.005, 0.3]),
        polls=st.integers(0, 3),
    )
    def test_the_budget_is_kept(
        self, calls: Callable[..., Calls], data: list[tuple[int, int]], cost: float, share: float, polls: int
    ) -> None:
        """At any time the excess over the budget is at most that of one timing per account."""
        timer = FakeTimer(cost=cost, polls=polls)
        run = calls(timer, share)
        for which, times in data:
            run(SHAPES[which], times)
            spent, served = run.shadow.spent_ms, run.shadow.served_ms
            assert spent <= share * served + sum(timer.most_over.values()) + 1e-9
        assert share or not timer.asked

    def test_which_calls_are_timed_follows_from_the_calls(self, calls: Callable[..., Calls]) -> None:
        def once(name: str) -> list[Problem]:
            timer = FakeTimer()
            run = calls(timer, 0.1, name)
            for i in range(3000):
                run(SHAPES[i * i % 7])
            return timer.asked

        assert once("a") == once("b") != []

    def test_a_failing_kernel_is_reported_once_and_fails_no_call(
        self, calls: Callable[..., Calls], caplog: pytest.LogCaptureFixture
    ) -> None:
        run = calls(FakeTimer(error=RuntimeError("CUDA error: out of resources\nand more")), 1.0)
        run(SHAPES[0], 100)
        (seen,) = (o for o in self.observations(run) if o.error)
        assert seen.error == "RuntimeError: CUDA error: out of resources"
        assert len(caplog.records) == 1

    def test_nothing_during_a_capture(self, calls: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch) -> None:
        timer = FakeTimer()
        run = calls(timer, 1.0)
        with monkeypatch.context() as during:
            during.setattr(shadow, "is_capturing", lambda: True)
            run(SHAPES[0], 100)
        assert timer.asked == []
        run(SHAPES[0])
        assert timer.asked == [SHAPES[0]]

    def test_a_swap_while_a_timing_is_under_way(self, folders: dict[str, Path], calls: Callable[..., Calls]) -> None:
        """A timing is reported for the models it was started for; calls of an older generation count for no pair."""
        run = calls(FakeTimer(polls=3), 1.0)
        run(SHAPES[0], 17)
        assert run.shadow._queued is not None
        before, run.production = run.production, generation_of(folders["also good"], 2)
        run.shadow.follow(run.production)
        run.shadow.on_run(before, SHAPES[0], (), None)
        run(SHAPES[1], 40)
        seen = self.observations(run)
        good, also, bad = hashes(folders, "good", "also good", "bad")
        models = {(o.problem, o.production.content_hash, o.candidate.content_hash) for o in seen}
        assert models == {(SHAPES[0], good, bad), (SHAPES[1], also, bad)}
        assert sum(o.calls for o in seen if o.problem == SHAPES[0]) == 17

    def test_threads(self, calls: Callable[..., Calls]) -> None:
        run = calls(FakeTimer(polls=1), 0.5)
        for p in SHAPES[:4]:
            run(p)

        def call() -> None:
            for i in range(4000):
                run.shadow.on_run(run.production, SHAPES[i % 4], (), None)

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 0 < run.shadow.spent_ms <= 0.5 * run.shadow.served_ms
        assert all(o.error is None for o in self.observations(run))

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child_goes_on_with_accounts_of_its_own(self, calls: Callable[..., Calls]) -> None:
        run = calls(FakeTimer(polls=5), 1.0)
        run(SHAPES[0], 17)
        with run.shadow._timing, run.shadow._pairing, run.shadow._preparing:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    fresh = run.shadow.served_ms == 0 and run.shadow._queued is None
                    run(SHAPES[1], 30)
                    run.shadow.close()
                    status = 0 if fresh else 2
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        seen = self.observations(run)
        assert {(o.problem, o.pid == child) for o in seen} == {(SHAPES[0], False), (SHAPES[1], True)}

    def test_a_call_that_needs_nothing_is_short(self, calls: Callable[..., Calls]) -> None:
        """Guard against a slow step in each call; benchmarks/runtime/shadow_overhead.py has the figures."""
        run = calls(FakeTimer())
        run(SHAPES[0], 10)
        begun = perf_counter()
        for _ in range(10000):
            run.shadow.on_run(run.production, SHAPES[0], (), None)
        assert (perf_counter() - begun) / 10000 < 20e-6


class HostTimer(GpuTimer):
    """A timer that launches both kernels at once and reads the host's clock."""

    def start(
        self, pair: Pair, case: Case, tensors: Sequence[torch.Tensor], out: torch.Tensor | None
    ) -> PendingTimes | None:
        assert out is not None
        launches = self._launches(pair, case, out.get_device())
        if launches is None:
            return None
        scratch, ms = torch.empty_like(out), []
        for one in launches:
            begun = perf_counter()
            one(tensors, scratch)
            ms.append((perf_counter() - begun) * 1e3)
        return lambda: PairTimes((ms[0],), (ms[1],), 0.0)


@pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")
def test_the_launched_kernels_are_compared(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Triton's interpreter, the result is production's and the second kernel the candidate's."""
    monkeypatch.setattr(launch, "_failed", Recent(16))
    problem = GroupedConvProblem(N=1, C=16, K=16, G=1, Hi=4, Wi=4, Y=1, X=1)
    operands = integer_operands(family_of("grouped_conv", "forward"), problem, "bf16", "cpu", seed=1)
    plain = Dispatcher.from_folder(folders["good"], switches=Switches())
    right, rival = plain.run(problem, *operands), Dispatcher.from_folder(folders["bad"], switches=Switches())
    switches = Switches(shadow=str(folders["bad"]), shadow_budget=1.0, shadow_journal=str(tmp_path / "j"))
    with Dispatcher.from_folder(folders["good"], switches=switches) as dispatcher:
        assert dispatcher._shadow is not None
        dispatcher._shadow._timer = HostTimer()
        dispatcher.refresh()
        dispatcher.run(problem, *operands)
        dispatcher._shadow.prepare()
        case = dispatcher._shadow._pair.cases[problem]  # type: ignore[union-attr]
        case.cost_ms = 0.0
        out = torch.empty_like(right)
        assert torch.equal(dispatcher.run(problem, *operands, out=out), right)
        assert torch.equal(out, right)
    seen = read_observations(tmp_path / "j").valid[0]
    assert seen.production.kernel_name == plain.select(problem).kernel_name
    assert seen.candidate.kernel_name == rival.select(problem).kernel_name
    assert (len(seen.production.ms), seen.calls, seen.error) == (1, 2, None)


def test_selecting_imports_no_torch(folders: dict[str, Path], tmp_path: Path) -> None:
    from alone import run_alone

    run_alone(f"""
        import sys
        from tilewise.dispatch import Dispatcher, Switches
        switches = Switches(shadow={str(folders["bad"])!r}, shadow_journal={str(tmp_path / "j")!r})
        with Dispatcher.from_folder({str(folders["good"])!r}, switches=switches) as dispatcher:
            dispatcher.refresh()
            dispatcher.select({SHAPES[0].to_dict()!r})
            assert dispatcher._shadow.content_hash
        assert not {{"torch", "triton", "pandas", "lightgbm", "mlflow"}} & set(sys.modules)
    """)


class TestAccount:
    @given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e3)), max_size=30), st.floats(0, 1))
    def test_it_never_spends_more_than_was_earned(self, steps: list[tuple[float, float]], share: float) -> None:
        """Neither the total nor any sequence of calls spends more than was earned and saved."""
        account, spent = TimeAccount(), [0.0]
        for served, wanted in steps:
            account.served_ms += served
            affords = account.affords(wanted, share)
            account.gone_ms += wanted if affords else 0.0
            spent.append(wanted if affords else 0.0)
            assert sum(spent) <= share * account.served_ms + 1e-6
        for begin in range(len(steps)):
            for end in range(begin, len(steps) + 1):
                earned = share * sum(served for served, _ in steps[begin:end])
                assert sum(spent[begin + 1 : end + 1]) <= earned + share * MAX_SAVED_MS + 1e-6

    @given(st.floats(1e-6, 50), st.floats(1e-3, 1), st.floats(1e-3, 100))
    def test_how_long_it_takes_to_earn(self, wanted: float, share: float, ms: float) -> None:
        calls, account, earlier = TimeAccount().calls_until(wanted, share, ms), TimeAccount(), TimeAccount()
        account.served_ms, earlier.served_ms = calls * ms, (calls - 1) * ms
        assert account.affords(wanted * (1 - 1e-9), share)
        assert calls == 0 or not earlier.affords(wanted * (1 + 1e-9), share)

    @pytest.mark.parametrize(
        ("ms", "share", "ms_per_call"), [(1.0, 0.0, 1.0), (1.0, 1.0, 0.0), (1.01 * MAX_SAVED_MS, 1.0, 1.0)]
    )
    def test_unaffordable_costs(self, ms: float, share: float, ms_per_call: float) -> None:
        assert TimeAccount().calls_until(ms, share, ms_per_call) == NEVER
