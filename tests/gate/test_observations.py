"""The journal of observations: it reads back as written, and damage costs only the damaged line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gate.shadowed import A, B, observed
from tilewise.errors import DataError
from tilewise.gate import Observation, Thresholds, check_evidence, gather_evidence, read_observations

OBSERVED = observed([2.0, None, 0.5])
LINES = [o.dumps() for o in OBSERVED]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "j.1").write_text(f"{LINES[0]}\n")
    (tmp_path / "j").write_text("".join(f"{line}\n" for line in LINES[1:]))
    found = read_observations(tmp_path / "j")
    assert (list(found.valid), found.damaged) == (OBSERVED, 0)
    assert [o.agrees for o in found.valid] == [False, True, False]


def test_a_journal_that_was_copied_onto_itself_says_nothing_more(tmp_path: Path) -> None:
    """Else one slow observation, five times over, would be significant."""
    slow = observed([0.5])[0].dumps()
    (tmp_path / "j.1").write_text(f"{slow}\n" * 4)
    (tmp_path / "j").write_text(f"{slow}\n{LINES[1]}\n{LINES[1]}\n")
    found = read_observations(tmp_path / "j")
    assert [o.agrees for o in found.valid] == [False, True, True], "calls of equal selections add up"
    evidence = gather_evidence(found.valid, B, A)
    assert not check_evidence(evidence, Thresholds()).surely_worse


def _changed(**values: Any) -> str:
    return json.dumps(json.loads(LINES[0]) | values)


PICK = dataclasses.asdict(OBSERVED[0].candidate)


@pytest.mark.parametrize("line", [
    "", "[]", "null", "{", LINES[0][:-9], _changed(format=2), _changed(problem={"N": 0}), _changed(target="no"),
    _changed(calls=-1), _changed(calls="3"), _changed(ms_a_call=0), _changed(ms_a_call=float("nan")), _changed(extra=1),
    _changed(time=1), _changed(device=None), _changed(error={}), _changed(error=[1]), _changed(pid="7"),
    _changed(candidate={**PICK, "ms": [1.0, 2.0]}), _changed(candidate={**PICK, "ms": [-1.0]}),
    _changed(candidate={**PICK, "ms": ["1"]}), _changed(candidate={**PICK, "content_hash": "b"}),
    _changed(candidate={**PICK, "kernel_name": None}), _changed(candidate="b"), _changed(candidate=None),
])  # fmt: skip
def test_what_is_no_observation(line: str) -> None:
    with pytest.raises(DataError, match="no observation of a shadow"):
        Observation.loads(line)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2), st.integers(0, len(LINES[0]) - 1), st.binary(max_size=20))
def test_damage_costs_a_line(tmp_path: Path, which: int, at: int, junk: bytes) -> None:
    """A killed process or foreign bytes cost one line; the other lines count."""
    lines = [line.encode() for line in LINES]
    lines[which] = (
        lines[which][: min(at, len(lines[which]) - 1)] + b"\xff" + junk.replace(b"\n", b"").replace(b"\r", b"")
    )
    (tmp_path / "j").write_bytes(b"".join(line + b"\n" for line in lines))
    found = read_observations(tmp_path / "j")
    assert all(o in found.valid for i, o in enumerate(OBSERVED) if i != which)
    assert len(found.valid) <= 3


@pytest.mark.parametrize(
    ("text", "message"), [(None, "cannot be read"), ("", "it is empty"), ("{}\n", "j:1: the line is no obs")]
)
def test_nothing_to_read(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "j").write_text(text)
    with pytest.raises(DataError, match=message):
        read_observations(tmp_path / "j")
