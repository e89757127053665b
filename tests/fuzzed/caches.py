"""Caches and logs of dispatchers under fuzz: measured entries, request and decision logs, notes of aliases."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

from dispatch.measuring.measurers import MACHINE
from fuzzed.contract import Outcome, Reader, refused
from synthetic import CONV
from tilewise.collect import Outcome as Measured
from tilewise.collect import Samples
from tilewise.dispatch.logs import RequestLog, read_decision_log, read_request_log
from tilewise.dispatch.measuring import merge_caches
from tilewise.dispatch.measuring._measured_cache import MeasuredCache, MeasuredContext, MeasuredEntry
from tilewise.errors import DataError
from tilewise.files import digest_of
from tilewise.ops import GroupedConvProblem, Target

_CONTEXT = MeasuredContext(CONV, "p" * 64, MACHINE)
_PROBLEM = GroupedConvProblem(N=8, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3)
_OUTCOMES = {
    0: Measured("ok", None, Samples((0.75, 0.5, 0.25), (1980, 1950, 1965), 4)),
    1: Measured("timeout", "too long"),
    2: Measured("ok", None, Samples((0.125,), (), 1)),
}
_AT = "2026-01-01T00:00:00+00:00"


@cache
def _entry() -> MeasuredEntry:
    return MeasuredEntry.of(_CONTEXT, _PROBLEM, _OUTCOMES, _AT)


def _sealed(values: Any) -> str:
    """Return the text of an entry of the measured cache, with a checksum that is right."""
    if not isinstance(values, dict):
        return json.dumps(values)
    rest = {name: value for name, value in values.items() if name != "sha256"}
    return json.dumps(rest | {"sha256": digest_of(rest)})


def _read_measured(content: bytes, folder: Path) -> Outcome:
    """Start with a damaged entry: no start fails, nothing invalid is served, measuring again heals it."""
    file = folder / _entry().path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    opened = MeasuredCache(folder, _CONTEXT, 3)
    found = opened.get(_PROBLEM)
    if found is not None:
        assert found.tried <= {0, 1, 2}
        assert found.latency_ms[0][1] > 0
        assert MeasuredEntry.loads(found.dumps(), found.path) == found
    merge_caches(folder, folder.with_name(folder.name + "-merged"))
    opened.put(_PROBLEM, _OUTCOMES, "2027" + _AT[4:])
    assert MeasuredCache(folder, _CONTEXT, 3).get(_PROBLEM) is not None
    return "refused" if found is None else "read"


@cache
def _request_bytes() -> bytes:
    rows = [
        {"target": CONV, "problem": dataclasses.replace(_PROBLEM, N=n).stated(), "why": "model", "count": n}
        for n in (9, 5, 2)
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _read_requests(content: bytes, folder: Path) -> Outcome:
    """Add a request to a damaged log: valid lines keep their counts, and damaged ones are set aside."""
    path = folder / "requests.jsonl"
    path.write_bytes(content)
    try:
        before, outcome = read_request_log(path), "read"
    except DataError as e:
        before, outcome = None, refused(e, str(path))
    log = RequestLog(path, Target.parse(CONV))
    log._counts[_request(7)] += 1
    log.flush()
    after = read_request_log(path)
    for request, count in (before or {}).items():
        assert after[request] >= count
    assert after[_request(7)] >= 1
    (folder / "requests.jsonl.damaged").unlink(missing_ok=True)
    return outcome


def _request(n: int) -> Any:
    from tilewise.dispatch.logs._request_log import Request

    return Request(CONV, dataclasses.replace(_PROBLEM, N=n), "model")


@cache
def _decision_bytes() -> bytes:
    line = {
        "format": 1, "time": _AT, "pid": 7, "target": CONV, "problem": _PROBLEM.stated(), "kernel_name": "k",
        "why": "model", "cause": None, "predicted_tflops": 100.5, "measured_ms": None, "seconds": 1e-5,
        "model_version": 3, "content_hash": "a" * 64, "pool_hash": "b" * 64, "lost": 0,
        "ranking": [["k", 100.5], ["l", None]],
    }  # fmt: skip
    return "".join(f"{json.dumps(line | {'model_version': v})}\n" for v in (1, 2, None)).encode()


def _read_decisions(content: bytes, folder: Path) -> Outcome:
    path = folder / "decisions.jsonl"
    path.write_bytes(content)
    try:
        found = read_decision_log(path)
    except DataError as e:
        return refused(e, str(path))
    for line in found:
        assert all(isinstance(name, str) for name, _ in line["ranking"])
    return "read"


READERS = {
    "measured": Reader(lambda: _entry().dumps(), _read_measured, lines=False, seal=_sealed),
    "requests": Reader(_request_bytes, _read_requests, lines=True),
    "decisions": Reader(_decision_bytes, _read_decisions, lines=True),
}
