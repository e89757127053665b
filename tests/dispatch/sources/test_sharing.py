"""Dispatchers of a process share requests, checks and the loaded model; processes of a host share the download."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shared_looks import WAIT_S, wait_for_threads
from small_model import write_model
from store import fresh_store
from synthetic import CONV
from tilewise.dispatch import Dispatcher, Switches
from tilewise.dispatch.sources import FetchedModel, _model_source, fetch_model
from tilewise.dispatch.sources._model_source import fetch_newer_model
from tilewise.errors import ArtefactError
from tilewise.files import locked
from tilewise.model import write_files
from tilewise.registry import PRODUCTION, Version, commit_change, registry_session, set_alias, settle_history
from tilewise.registry.promotion import publish

FIRST, SECOND, THIRD = range(3)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Version]]:
    """Return a store with three versions, of which the gate promoted the first; publishing takes seconds."""
    root = tmp_path_factory.mktemp("template")
    with registry_session(fresh_store(root / "store")) as uri:
        found = [publish(write_model(root / "models" / CONV, note=note)) for note in ("one", "two", "three")]
    promote(uri, found[FIRST])
    return root / "store", found


@pytest.fixture
def uri(template: tuple[Path, list[Version]], tmp_path: Path) -> str:
    """Return the URI of a copy of the store."""
    shutil.copytree(template[0], tmp_path / "store")
    return f"sqlite:///{tmp_path}/store/mlflow.db"


@pytest.fixture
def versions(template: tuple[Path, list[Version]]) -> list[Version]:
    return template[1]


def promote(uri: str, version: Version) -> None:
    with registry_session(uri):
        head = settle_history(CONV)
        assert commit_change(head, version.number, "promoted", "test", previous=head.production)


class Counted:
    """Counts the calls of a function of the module, and holds up the first one from :meth:`hold` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self._wrapped, self.calls = getattr(owner, name), 0
        self.began, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: self._call(*args, **kwargs))

    def hold(self) -> None:
        self.calls = 0
        self.began.clear()
        self.go_on.clear()

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        result = self._wrapped(*args, **kwargs)
        if self.calls == 1:
            self.began.set()
            assert self.go_on.wait(WAIT_S)
        return result


@pytest.mark.long
def test_ten_dispatchers_ask_once_and_share_the_model(
    uri: str, versions: list[Version], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's look is checked and loaded; one more request tells the others that nothing moved since."""
    dispatchers = [Dispatcher.from_registry(CONV, uri=uri, switches=Switches()) for _ in range(10)]
    promote(uri, versions[SECOND])
    requests = Counted(monkeypatch, _model_source, "find_by_alias")
    standings = Counted(monkeypatch, _model_source, "require_standing")
    loads = Counted(monkeypatch, _model_source.LocalCopies, "load")
    standings.hold()
    with ThreadPoolExecutor(10) as pool:
        refreshed = [pool.submit(dispatcher.refresh) for dispatcher in dispatchers]
        wait_for_threads(_model_source._answers, 10)
        standings.go_on.set()
        assert all(each.result(WAIT_S) for each in refreshed)
    assert {dispatcher.version for dispatcher in dispatchers} == {2}
    assert len({id(dispatcher._selector.generation.loaded) for dispatcher in dispatchers}) == 1
    assert (requests.calls, standings.calls, loads.calls) == (2, 1, 1)
    for dispatcher in dispatchers:
        dispatcher.close()


class TestMovesDuringALook:
    """The first thread's look has read the alias when it moves on."""

    @pytest.fixture
    def after(
        self, uri: str, versions: list[Version], monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[Callable[[], object]], list[Future[FetchedModel | None]]]:
        """Return a function that does something during the first of three looks, and returns what they found."""
        fetch_model(CONV, uri=uri)
        promote(uri, versions[SECOND])
        found = Counted(monkeypatch, _model_source, "find_by_alias")
        standing = Counted(monkeypatch, _model_source.LocalCopies, "note_alias")

        def _during(action: Callable[[], object]) -> list[Future[FetchedModel | None]]:
            found.calls = 1  # it holds nothing up
            standing.hold()
            than = (versions[FIRST].content_hash, 1)
            with ThreadPoolExecutor(3) as pool:
                looks = [pool.submit(fetch_newer_model, CONV, PRODUCTION, uri=uri, than=than)]
                assert standing.began.wait(WAIT_S)
                action()
                looks += [pool.submit(fetch_newer_model, CONV, PRODUCTION, uri=uri, than=than) for _ in range(2)]
                wait_for_threads(_model_source._answers, 3)
                standing.go_on.set()
            return looks

        return _during

    @pytest.mark.long
    def test_a_later_promotion_is_not_missed(self, after: Any, uri: str, versions: list[Version]) -> None:
        looks = after(lambda: promote(uri, versions[THIRD]))
        assert [look.result().version for look in looks] == [2, 3, 3]

    @pytest.mark.long
    def test_a_return_to_the_version_in_use_is_not_missed(self, after: Any, uri: str, versions: list[Version]) -> None:
        first, *others = after(lambda: promote(uri, versions[FIRST]))
        assert first.result().version == 2
        assert [look.result() for look in others] == [None, None]

    @pytest.mark.long
    def test_an_alias_moved_by_hand_is_refused_in_all(self, after: Any, uri: str, versions: list[Version]) -> None:
        """The first look's checks stand for no other version."""

        def move() -> None:
            with registry_session(uri):
                set_alias(versions[THIRD], PRODUCTION)

        first, *others = after(move)
        assert first.result().version == 2
        for look in others:
            assert isinstance(look.exception(), ArtefactError)
            assert "without having passed the gate" in str(look.exception())


@pytest.mark.long
@pytest.mark.parametrize("other", ["registry", "alias", "model in use", "cache"])
def test_other_questions_share_nothing(
    uri: str, versions: list[Version], other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looks are in progress at the same time, so neither waits for the other's answer."""
    asked: dict[str, Any] = {"alias": PRODUCTION, "uri": uri, "than": (None, None)}
    others = dict(asked)
    if other == "registry":
        others["uri"] = fresh_store(tmp_path / "other")
        with registry_session(others["uri"]):
            set_alias(publish(write_model(tmp_path / "elsewhere" / CONV, note="other")), PRODUCTION)
    elif other == "alias":
        others["alias"] = "candidate"
    elif other == "model in use":
        others["than"] = (versions[FIRST].content_hash, 1)
    both = threading.Barrier(2)
    monkeypatch.setattr(_model_source, "prepare_reader", lambda _: both.wait(WAIT_S))
    with ThreadPoolExecutor(2) as pool:
        looks = [pool.submit(fetch_newer_model, CONV, **asked)]
        while both.n_waiting == 0:
            time.sleep(0.005)
        if other == "cache":
            monkeypatch.setenv("TILEWISE_CACHE", str(tmp_path / "other cache"))
        looks.append(pool.submit(fetch_newer_model, CONV, **others))
        found = [look.result(WAIT_S) for look in looks]
    assert found[0] is not found[1]


@pytest.mark.long
def test_a_thread_in_a_session_does_not_wait_for_those_that_wait_for_it(
    uri: str, versions: list[Version], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewise.registry._tracking.TURN_S", 5.0)
    looking = Counted(monkeypatch, _model_source, "prepare_reader")
    with ThreadPoolExecutor(1) as pool:
        with registry_session(uri):
            other = pool.submit(fetch_newer_model, CONV, PRODUCTION, uri=uri, than=(None, None))
            assert looking.began.wait(WAIT_S)
            assert fetch_model(CONV, uri=uri).from_registry
        assert other.result(WAIT_S) is not None


class TestDownloads:
    def test_the_compiled_form_is_there_before_the_copy(
        self, uri: str, versions: list[Version], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that those who wait for the copy need not all compile it."""
        forms: list[Path] = []

        def write(folder: Path, files: Any) -> None:
            forms.extend((tmp_path / "tilewise-cache" / "compiled").iterdir())
            write_files(folder, files)

        monkeypatch.setattr(_model_source, "write_files", write)
        fetch_model(CONV, uri=uri)
        assert len(forms) == 1

    def test_a_process_waits_for_the_copy_that_another_one_downloads(
        self, uri: str, versions: list[Version], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = fetch_model(CONV, uri=uri).folder
        shutil.move(folder, tmp_path / "finished")
        downloads = Counted(monkeypatch, _model_source, "download_version")
        with ThreadPoolExecutor(1) as pool, locked(folder.parent / "lock"):
            fetched = pool.submit(fetch_model, CONV, uri=uri)
            time.sleep(0.3)
            assert not fetched.done()
            shutil.move(tmp_path / "finished", folder)
            assert fetched.result(WAIT_S).from_registry
        assert downloads.calls == 0

    def test_a_process_that_holds_up_the_others_is_left(
        self, uri: str, versions: list[Version], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = fetch_model(CONV, uri=uri).folder
        shutil.rmtree(folder)
        monkeypatch.setattr(_model_source, "TURN_S", 0.2)
        with locked(folder.parent / "lock"):
            assert fetch_model(CONV, uri=uri).from_registry
        assert folder.is_dir()
