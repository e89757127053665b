"""A request is answered by one model, even while models are swapped under load, in threads and processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path

import mlflow
import pytest

from dispatch.children import select_all
from small_model import write_model
from synthetic import CONV
from tilewise.dispatch import Dispatcher, Selection, Switches
from tilewise.dispatch._generation import Deployment, Generation
from tilewise.dispatch._recent import Recent
from tilewise.dispatch.measuring import GpuMeasurer
from tilewise.errors import ProblemError, RegistryUnavailableError
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import GemmProblem, GroupedConvProblem
from tilewise.registry import PRODUCTION, registry_session, set_alias
from tilewise.registry.promotion import publish

SHAPES = [
    GroupedConvProblem(N=n, C=c, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)
    for n in (1, 4, 8)
    for c in (32, 64, 256)
]
PLAIN = SHAPES[0]
QUIET = Switches()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return a good model, and one that picks the slowest kernel."""
    root = tmp_path_factory.mktemp("models")
    return [write_model(root / "good", trees=10), write_model(root / "bad", trees=10, sign=-1.0)]


@pytest.fixture(scope="module")
def models(folders: list[Path]) -> list[TrainedModel]:
    return [load_artefact(folder) for folder in folders]


def generation(model: TrainedModel, version: int) -> Generation:
    return Generation(Deployment(model.target, model.pool, model, version), QUIET, GpuMeasurer())


def test_no_error_and_no_mixed_answer_while_the_model_is_swapped(models: list[TrainedModel]) -> None:
    dispatcher = Dispatcher(models[0].target, models[0].pool, models[0], 0, switches=QUIET)
    answers = [{p: generation(m, 0).rank(p, 3) for p in SHAPES} for m in models]
    assert all(answers[0][p] != answers[1][p] for p in SHAPES)  # otherwise a mixture would not be noticed
    wrong: list[object] = []
    done = threading.Event()
    asked = [0] * 8

    def ask(thread: int) -> None:
        try:
            while not done.is_set():
                for p in SHAPES:
                    mapping = p.to_dict()
                    for got in ((dispatcher.select(p),), (dispatcher.select(mapping),), dispatcher.rank(p, 3)):
                        asked[thread] += 1
                        if not any(got == a[p][: len(got)] for a in answers):
                            wrong.append(got)
        except Exception as e:
            wrong.append(e)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for i in range(100):
        dispatcher._selector.generation = generation(models[i % 2], i)  # as refresh() does with a new model
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert min(asked) > 0
    assert dispatcher.version == 99


class TestRemembering:
    """A remembered selection equals a fresh decision."""

    def test_the_same_object_again(self, models: list[TrainedModel]) -> None:
        dispatcher = Dispatcher(models[0].target, models[0].pool, models[0], switches=QUIET)
        for p in SHAPES:
            first = dispatcher.select(p)
            assert dispatcher.select(p) is first
            assert dispatcher.select(GroupedConvProblem(**p.to_dict())) is first
            assert dispatcher.select(p.to_dict()) is dispatcher.select(p.to_dict()) is first

    @pytest.mark.parametrize(("field", "value"), [("N", True), ("N", 1.0), ("K", "64"), ("N", [1])])
    def test_values_that_equal_a_known_dimension_are_still_refused(
        self, models: list[TrainedModel], field: str, value: object
    ) -> None:
        dispatcher = Dispatcher(models[0].target, models[0].pool, models[0], switches=QUIET)
        dispatcher.select(PLAIN.to_dict())
        with pytest.raises(ProblemError, match=f"{field}: must be an integer"):
            dispatcher.select({**PLAIN.to_dict(), field: value})

    def test_another_op_with_a_known_hash_is_refused(self, models: list[TrainedModel]) -> None:
        dispatcher = Dispatcher(models[0].target, models[0].pool, models[0], switches=QUIET)
        dispatcher.select(PLAIN)
        with pytest.raises(ProblemError, match="a gemm problem"):
            dispatcher.select(GemmProblem(1, 2, 3))

    def test_it_is_bounded_and_keeps_used_values(self) -> None:
        recent: Recent[int, str] = Recent(10)
        for i in range(1000):
            recent.put(i, str(i))
            assert recent.get(0) == "0"
            assert len(recent) <= 10
        assert recent.get(998) == "998"
        assert recent.get(500) is None

    def test_a_hash_does_not_travel(self) -> None:
        """Strings hash differently in each process."""
        problem = GemmProblem(1, 2, 3)
        hash(problem)
        assert "_hash" not in pickle.loads(pickle.dumps(problem)).__dict__
        assert hash(GemmProblem(1, 2, 3)) == hash(problem) != hash(GemmProblem(1, 2, 3, "rrr"))


class _ManyReads:
    """An origin that answers after many small reads, as a database does, and has nothing new."""

    def newer_model(self, *_: object) -> None:
        for _read in range(200):
            time.sleep(0)  # gives up the interpreter, as a read does


@pytest.mark.long
def test_busy_threads_do_not_starve_a_refresh(models: list[TrainedModel], monkeypatch: pytest.MonkeyPatch) -> None:
    """After each read a refresh waits for the turns of all busy threads, which take 5 ms each by default."""
    dispatcher, stopped = Dispatcher(models[0].target, models[0].pool, models[0], switches=QUIET), threading.Event()
    monkeypatch.setattr(dispatcher._refresher, "_origin", _ManyReads())

    def select() -> None:
        while not stopped.is_set():
            dispatcher.select(PLAIN)

    threads = [threading.Thread(target=select, daemon=True) for _ in range(32)]
    for thread in threads:
        thread.start()
    start = time.monotonic()
    assert not dispatcher.refresh()
    seconds = time.monotonic() - start
    stopped.set()
    for thread in threads:
        thread.join()
    assert seconds < 20


class TestRefresh:
    @pytest.fixture
    def produce(self, uri: str, folders: list[Path]) -> Callable[[int], None]:
        def _produce(which: int) -> None:
            with registry_session(uri):
                set_alias(publish(folders[which]), PRODUCTION)

        return _produce

    @pytest.mark.long
    def test_a_new_production_serves_after_a_refresh(
        self, produce: Callable[[int], None], uri: str, tmp_path: Path
    ) -> None:
        produce(0)
        with Dispatcher.from_registry(CONV, uri=uri, warm_up=[PLAIN, SHAPES[1].to_dict()]) as dispatcher:
            before = dispatcher.select(PLAIN)
            assert not dispatcher.refresh()
            produce(1)
            assert dispatcher.select(PLAIN) is before
            assert dispatcher.refresh()
            assert (dispatcher.version, dispatcher.select(PLAIN) != before) == (2, True)
            assert len(dispatcher._selector.generation.decisions) == 2  # the warm-up problems
            (tmp_path / "store" / "mlflow.db").write_bytes(b"x" * 4096)
            with pytest.raises(RegistryUnavailableError):
                dispatcher.refresh()
            assert dispatcher.version == 2

    @pytest.mark.long
    def test_refreshing_leaves_the_applications_mlflow_alone(
        self, produce: Callable[[int], None], uri: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Other threads of the application may be logging to another server at that moment."""
        produce(0)
        dispatcher = Dispatcher.from_registry(CONV, uri=uri)

        def fail(*_: object) -> None:
            raise AssertionError("MLflow was pointed elsewhere")

        monkeypatch.setattr(mlflow, "set_tracking_uri", fail)
        assert not dispatcher.refresh()

    def test_in_the_background_and_from_nothing(self, produce: Callable[[int], None], uri: str) -> None:
        with Dispatcher.from_registry(CONV, uri=uri, refresh_s=0.05) as dispatcher:
            assert dispatcher.select(PLAIN).why == "fallback"
            produce(0)
            assert _soon(lambda: dispatcher.select(PLAIN).why == "model")
        assert dispatcher.select(PLAIN).why == "model"  # selecting works after closing

    @pytest.mark.long
    def test_the_local_copy_first_and_the_registry_later(self, produce: Callable[[int], None], uri: str) -> None:
        produce(0)
        Dispatcher.from_registry(CONV, uri=uri)
        produce(1)
        off = Dispatcher.from_registry(CONV, uri=uri, switches=Switches(network="off"))
        assert (off.version, off.refresh()) == (1, False)
        with Dispatcher.from_registry(CONV, uri=uri, switches=Switches(network="later")) as later:
            assert _soon(lambda: later.version == 2)

    def test_the_network_is_off_and_there_is_no_copy(self, uri: str) -> None:
        with pytest.raises(RegistryUnavailableError, match="network=off forbids the registry"):
            Dispatcher.from_registry(CONV, uri=uri, switches=Switches(network="off"), fallback=False)
        dispatcher = Dispatcher.from_registry(CONV, uri=uri, switches=Switches(network="off"))
        assert dispatcher.select(PLAIN).why == "fallback"


def _soon(true: Callable[[], bool], seconds: float = 30) -> bool:
    waited = threading.Event()
    for _ in range(int(seconds / 0.05)):
        if true():
            return True
        waited.wait(0.05)
    return False


def test_spawned_processes_pick_alike(folders: list[Path]) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=select_all, args=(str(folders[0]), SHAPES, queue))
    process.start()
    there = queue.get(timeout=120)
    process.join()
    here = Dispatcher.from_folder(folders[0], switches=QUIET)
    assert there == [here.select(p).kernel_name for p in SHAPES]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_goes_on(folders: list[Path], tmp_path: Path) -> None:
    """Locks held in the parent are free in the child, which writes its own log lines."""
    switches = Switches(journal=str(tmp_path / "journal"), refresh_s=3600)
    dispatcher = Dispatcher.from_folder(folders[0], switches=switches)
    expected: list[Selection] = [dispatcher.select(p) for p in SHAPES[:4]]
    log = dispatcher._selector._decision_log
    assert log is not None
    with dispatcher._refresher._lock, log._appender._writing:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                same = [dispatcher.select(p) for p in SHAPES[:4]] == expected
                dispatcher.select(SHAPES[5])
                dispatcher.close()
                status = 0 if same and dispatcher._refresher._lock.acquire(blocking=False) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dispatcher.close()
    lines = (tmp_path / "journal").read_text().splitlines()
    assert [json.loads(line)["pid"] == child for line in lines].count(True) == 1
    assert len(lines) == 5
