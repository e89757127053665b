"""The request log counts every request, across threads and processes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from small_model import write_model
from synthetic import CONV
from tilewise.dispatch import Dispatcher, Switches
from tilewise.dispatch.background import Ticker
from tilewise.dispatch.logs import Request, RequestLog, _request_log, read_request_log
from tilewise.errors import DataError
from tilewise.ops import GroupedConvProblem, Target

PLAIN = GroupedConvProblem(N=8, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model", trees=10)


class TestRequestLog:
    def test_requests_are_counted_and_summed_up(self, folder: Path, tmp_path: Path) -> None:
        path = tmp_path / "asked.jsonl"
        for _ in range(2):
            with Dispatcher.from_folder(folder, switches=Switches(record=str(path))) as dispatcher:
                for _ in range(3):
                    dispatcher.select(PLAIN)
                    dispatcher.select(PLAIN.to_dict())
                dispatcher.select({**PLAIN.to_dict(), "N": 1})
        assert dict(read_request_log(path)) == {
            Request(CONV, PLAIN, "model"): 12,
            Request(CONV, GroupedConvProblem(**{**PLAIN.to_dict(), "N": 1}), "model"): 2,
        }
        assert [json.loads(line)["count"] for line in path.read_text().splitlines()] == [12, 2]

    def test_no_request_of_several_threads_is_missed(self, tmp_path: Path) -> None:
        log = RequestLog(tmp_path / "asked", Target.parse(CONV))

        def ask() -> None:
            for _ in range(300):
                log.note(PLAIN, "model")

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        log.flush()
        for thread in threads:
            thread.join()
        log.close()
        assert dict(read_request_log(tmp_path / "asked")) == {Request(CONV, PLAIN, "model"): 1200}

    @pytest.mark.parametrize(
        "line", ["{", "[]", '{"target": "x"}', '{"target": "gemm_universal_bf16_sm90", "problem": {}}']
    )
    def test_a_damaged_line_is_named(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "asked").write_text(f"{line}\n")
        with pytest.raises(DataError, match="asked:1: not a line of a request log"):
            read_request_log(tmp_path / "asked")

    @pytest.mark.parametrize(
        "line",
        [
            b"{", b"[" * 100_000, b"\xff\xfe", b'{"target": "x"}',
            b'{"target": "%s", "problem": {}, "why": "model", "count": 1e400}' % CONV.encode(),
        ],
    )  # fmt: skip
    def test_a_damaged_line_costs_only_itself(self, tmp_path: Path, line: bytes) -> None:
        path = tmp_path / "asked"
        for _ in range(2):
            log = RequestLog(path, Target.parse(CONV))
            log.note(PLAIN, "model")
            log.close()
            path.write_bytes(line + b"\n" + path.read_bytes())
        assert dict(read_request_log(path)) == {Request(CONV, PLAIN, "model"): 2}
        assert (tmp_path / "asked.damaged").read_bytes() == line + b"\n"

    def test_counts_wait_while_the_file_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Ticker, "start", lambda *_, **__: None)
        (tmp_path / "folder").touch()
        log = RequestLog(tmp_path / "folder" / "asked", Target.parse(CONV))
        for _ in range(3):
            log.note(PLAIN, "model")
            log.flush()
        (tmp_path / "folder").unlink()
        log.close()
        assert read_request_log(tmp_path / "folder" / "asked").total() == 3

    def test_memory_and_file_are_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Ticker, "start", lambda *_, **__: None)
        monkeypatch.setattr(_request_log, "MAX_REQUESTS", 2)
        log = RequestLog(tmp_path / "asked", Target.parse(CONV))
        problems = [GroupedConvProblem(**{**PLAIN.to_dict(), "N": n}) for n in (1, 2, 3)]
        for problem in (*problems, problems[0]):
            log.note(problem, "model")
        log.flush()
        for problem in (problems[2], problems[2], problems[2]):
            log.note(problem, "model")
        log.close()
        counts = {request.problem: count for request, count in read_request_log(tmp_path / "asked").items()}
        assert counts == {problems[0]: 2, problems[2]: 3}  # the most requested


def test_a_missing_log_says_what_writes_one(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with pytest.raises(DataError) as raised:
        read_request_log(path)
    told = (
        "cannot be read: No such file or directory; a dispatcher writes such logs (TILEWISE_RECORD, TILEWISE_JOURNAL)"
    )
    assert str(raised.value) == f"{path}: {told}"
