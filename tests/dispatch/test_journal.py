"""What a dispatcher writes down: decisions in a bounded journal, requests in a record; never at a request's cost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from small_model import write_model
from synthetic import CONV
from tilewise.dispatch import Dispatcher, Switches, journal, record
from tilewise.dispatch.appender import Appender
from tilewise.dispatch.explain import agrees, model_of
from tilewise.dispatch.record import Asked, Record
from tilewise.errors import DataError
from tilewise.model.artefact import load_artefact
from tilewise.ops import GroupedConvProblem, Target

PLAIN = GroupedConvProblem(N=8, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model", trees=10)


class TestAppender:
    def test_lines_of_threads_stay_whole(self, tmp_path: Path) -> None:
        appender = Appender(tmp_path / "lines", 1 << 20)

        def write(t: str) -> None:
            for i in range(100):
                appender.put(partial(lambda i: f"{t}:{i}" * 50, i))

        threads = [threading.Thread(target=write, args=(t,)) for t in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        appender.close()
        lines = (tmp_path / "lines").read_text().splitlines()
        assert sorted(lines) == sorted(f"{t}:{i}" * 50 for t in "abcd" for i in range(100))
        assert appender.lost == 0

    def test_it_is_rotated_and_keeps_one_older_file(self, tmp_path: Path) -> None:
        appender = Appender(tmp_path / "lines", 100)
        for i in range(20):
            appender.put(lambda i=i: f"{i:030}")  # type: ignore[misc]
            appender.flush()
        appender.close()
        older, newer = ((tmp_path / name).read_text().split() for name in ("lines.1", "lines"))
        assert [int(line) for line in older + newer] == list(range(20 - len(older) - len(newer), 20))
        assert 0 < len(newer) <= len(older) == 3

    def test_the_end_of_the_process_writes_what_waits(self, tmp_path: Path) -> None:
        source = "from tilewise.dispatch.appender import Appender as A; a = A({!r}, 1 << 20); a.put(lambda: 'x')"
        subprocess.run([sys.executable, "-c", source.format(str(tmp_path / "lines"))], check=True)
        assert (tmp_path / "lines").read_text() == "x\n"

    def test_what_cannot_be_taken_is_counted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tilewise.dispatch.ticker.Ticker.start", lambda *_, **__: None)
        appender = Appender(tmp_path / "lines", 1000, most=3)
        for i in range(5):
            appender.put(lambda i=i: str(1 / (i - 1)))  # type: ignore[misc]
        appender.close()
        assert appender.lost == 3  # two did not fit, one could not be made
        assert (tmp_path / "lines").read_text().split() == ["-1.0", "1.0"]

    def test_a_file_that_cannot_be_written_costs_its_lines(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        appender = Appender(tmp_path / "file" / "lines", 1000)
        appender.put(lambda: "x")
        appender.close()
        assert appender.lost == 1


class TestJournal:
    def test_a_decision_is_one_line_that_can_be_replayed(self, folder: Path, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        with Dispatcher.from_folder(folder, switches=Switches(journal=str(path))) as dispatcher:
            selections = [dispatcher.select(PLAIN) for _ in range(3)]
            told = dispatcher.explain(PLAIN)
        (line,) = journal.read(path)
        assert (line["kernel_name"], line["why"], line["cause"]) == (selections[0].kernel_name, "model", None)
        assert (line["target"], line["problem"], line["lost"]) == (CONV, PLAIN.to_dict(), 0)
        assert line["content_hash"] == load_artefact(folder).content_hash
        assert line["ranking"] == [[s.kernel_name, s.predicted_tflops] for s in dispatcher.rank(PLAIN, 5)]
        assert line["seconds"] > 0
        assert agrees(line, told)
        model = model_of(line, folder, None)
        assert model is not None
        assert model.content_hash == line["content_hash"]

    def test_a_model_that_is_nowhere(self, folder: Path, tmp_path: Path) -> None:
        line = {"content_hash": "0" * 64, "target": CONV}
        with pytest.raises(DataError, match="neither in"):
            model_of(line, folder, f"sqlite:///{tmp_path}/none.db")

    def test_a_share(self, folder: Path, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        with Dispatcher.from_folder(folder, switches=Switches(journal=str(path), journal_share=0)) as dispatcher:
            dispatcher.select(PLAIN)
        assert not path.exists()

    def test_a_damaged_line_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "journal").write_text('{"format": 1}\n')
        with pytest.raises(DataError, match="journal:1: no decision"):
            journal.read(tmp_path / "journal")


class TestExplain:
    def test_the_features_make_the_difference_of_the_predictions(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tilewise.dispatch.explain.FEATURES", 100)  # all are shown, so that their product is whole
        told = Dispatcher.from_folder(folder, switches=Switches()).explain(PLAIN)
        first, second = told["ranking"][:2]
        assert (told["kernel_name"], told["runner_up"]) == (first[0], second[0])
        product = 1.0
        for row in told["features"]:
            product *= 1 + row["percent"] / 100
            assert row["winner"] != row["runner_up"]
        assert len(told["features"]) < 100
        assert product == pytest.approx(first[1] / second[1])

    def test_without_a_model(self) -> None:
        told = Dispatcher.from_pool(CONV).explain(PLAIN)
        assert (told["why"], told["cause"], told["features"]) == ("fallback", "there is no model", [])


class TestRecord:
    def test_requests_are_counted_and_summed_up(self, folder: Path, tmp_path: Path) -> None:
        path = tmp_path / "asked.jsonl"
        for _ in range(2):
            with Dispatcher.from_folder(folder, switches=Switches(record=str(path))) as dispatcher:
                for _ in range(3):
                    dispatcher.select(PLAIN)
                    dispatcher.select(PLAIN.to_dict())
                dispatcher.select({**PLAIN.to_dict(), "N": 1})
        assert dict(record.read(path)) == {
            Asked(CONV, PLAIN, "model"): 12,
            Asked(CONV, GroupedConvProblem(**{**PLAIN.to_dict(), "N": 1}), "model"): 2,
        }
        assert [json.loads(line)["count"] for line in path.read_text().splitlines()] == [12, 2]

    def test_no_request_of_several_threads_is_missed(self, tmp_path: Path) -> None:
        kept = Record(tmp_path / "asked", Target.parse(CONV))

        def ask() -> None:
            for _ in range(300):
                kept.note(PLAIN, "model")

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        kept.flush()
        for thread in threads:
            thread.join()
        kept.close()
        assert dict(record.read(tmp_path / "asked")) == {Asked(CONV, PLAIN, "model"): 1200}

    @pytest.mark.parametrize(
        "line", ["{", "[]", '{"target": "x"}', '{"target": "gemm_universal_bf16_sm90", "problem": {}}']
    )
    def test_a_damaged_line_is_named(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "asked").write_text(f"{line}\n")
        with pytest.raises(DataError, match="asked:1: no problem of a record"):
            record.read(tmp_path / "asked")
