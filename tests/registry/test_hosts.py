"""Promotions from two hosts at once: network namespaces, which reach the server over a bridge and by nothing else."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from benchmarks.scale.namespaces import THIS_MACHINE, Host, NoNamespacesError, hosts

from registry import lives
from registry.server import own_server
from registry.stress import Outcome, check, outcomes, promoting, stress, wrong_reports
from synthetic import CONV
from tilewise.registry import HistoryEntry, read_history, registry_session

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("hosts"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's"),
]

PROCESSES, EACH = 4, 5
CUT_S = 15.0  # twice as long as an impatient client tries


@pytest.fixture(scope="module")
def two() -> Iterator[list[Host]]:
    with ExitStack() as stack:
        try:
            added = stack.enter_context(hosts(2))
        except NoNamespacesError as e:
            pytest.skip(str(e))
        yield added


@pytest.fixture(scope="module")
def server(two: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URI of a server on the bridge, the only address that it listens on."""
    with own_server(tmp_path_factory.mktemp("server"), THIS_MACHINE) as uri:
        yield uri


def _host_of(outcome: Outcome) -> int:
    """Return the index of the host that promoted: processes, and so models, take turns on the hosts."""
    return int(outcome.model.removeprefix("model")) % 2


def _changes_of_host(told: list[Outcome], log: list[HistoryEntry]) -> int:
    """Return how often the next promotion in the history is of the other host."""
    by_version = {o.version: _host_of(o) for o in told if o.outcome == "promoted"}
    of_entries = [by_version[entry.production] for entry in log if entry.production in by_version]
    return sum(one != other for one, other in itertools.pairwise(of_entries))


def _wait_for_entries(number: int) -> None:
    """Wait until the history has so many entries."""
    end = time.monotonic() + 120
    while len(read_history(CONV)) < number:
        assert time.monotonic() < end, f"no {number} entries"
        time.sleep(0.1)


def test_no_update_is_lost(server: str, two: list[Host], tmp_path: Path) -> None:
    with registry_session(server):
        before = len(read_history(CONV))
        told = stress(server, tmp_path, PROCESSES, EACH, [host.command for host in two])
        counts = check(told, before)
        log = read_history(CONV)[before:]
    assert counts["promoted"] + counts["refused"] == PROCESSES * EACH
    assert counts["promoted"] >= PROCESSES * EACH * 4 // 5  # a bad one may pass while nothing is in production
    assert _changes_of_host(told, log) >= 3  # they did promote at the same time
    assert lives.inspect(server, tmp_path) == []


def test_a_host_that_is_cut_off_leaves_nothing_half_done(
    server: str, two: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other goes on; promotions that fail say so, and succeed once the host is back."""
    for name, value in lives.IMPATIENT.items():
        monkeypatch.setenv(name, value)
    with registry_session(server):
        before = len(read_history(CONV))
        with promoting(server, tmp_path, PROCESSES, EACH, [host.command for host in two]) as promoters:
            _wait_for_entries(before + 3)
            with two[1].cut_off():
                at_cut = len(read_history(CONV))
                time.sleep(CUT_S)
                _wait_for_entries(at_cut + 2)
            told = outcomes(promoters)
        assert wrong_reports(told, read_history(CONV), before, complete=True) == []
    failed = [o for o in told if o.version is None]
    assert 1 in {_host_of(o) for o in failed}
    assert all(server in o.outcome for o in failed), failed
    assert len({o.model for o in told if o.version}) == PROCESSES * EACH
    assert lives.inspect(server, tmp_path) == []
