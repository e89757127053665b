"""A shard has one holder; a silent one is replaced and fenced; nothing is written twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewise.collect import Outcome, Plan, Samples
from tilewise.collect.engines import Device
from tilewise.collect.hosts import Lease, LeaseLostError, ShardLog, open_store, take_lease

DEVICE = Device("fake", "fake-0", None, "none", "made_up")
SHARD = "shard-000000"


def outcomes(plan: Plan, ms: float) -> list[Outcome]:
    return [Outcome("ok", None, Samples((ms,), (1980,), 1)) for _ in plan.pool.names]


def take(folder: Path, session: str) -> Lease:
    lease = take_lease(open_store(str(folder), "part"), SHARD, session, 0.3)
    assert lease is not None
    return lease


def test_a_lease_is_taken_by_one_and_another_waits_until_it_is_silent(tmp_path: Path) -> None:
    first = take(tmp_path, "a")
    waited: list[float] = []
    store = open_store(str(tmp_path), "part")
    second = take_lease(store, SHARD, "b", 0.3, waited.append)
    assert second is not None
    assert (first.number, second.number) == (1, 2)
    assert sum(waited) >= 0.3
    first_beat = [0]

    def beat(_: float) -> None:
        """Let the holder show life a few times, then finish."""
        first_beat[0] += 1
        store.write(f"{SHARD}/beat", str(first_beat[0]).encode())
        if first_beat[0] == 20:
            store.create(f"{SHARD}/complete", b"")

    assert take_lease(store, SHARD, "c", 0.3, beat) is None  # never taken over while it shows life
    assert first_beat[0] == 20


def test_a_lost_worker_of_the_same_run_is_replaced_at_once(tmp_path: Path) -> None:
    take(tmp_path, "a")

    def fail(_: float) -> None:
        raise AssertionError("it waited")

    lease = take_lease(open_store(str(tmp_path), "part"), SHARD, "a", 0.3, fail)
    assert lease is not None
    assert lease.number == 2


def test_a_slow_worker_that_comes_back_writes_nothing(tmp_path: Path, plan: Plan) -> None:
    slow = ShardLog(plan, take(tmp_path, "a"))
    slow.add(0, "2026-01-01T00:00:00", DEVICE, outcomes(plan, 1.0))
    quick = ShardLog(plan, take(tmp_path, "a"))
    assert list(quick.entries) == [0]
    quick.add(1, "2026-01-01T00:00:01", DEVICE, outcomes(plan, 2.0))
    for index in (1, 2):
        with pytest.raises(LeaseLostError, match="lease 1 of shard-000000 expired, and another worker took"):
            slow.add(index, "2026-01-01T00:00:02", DEVICE, outcomes(plan, 3.0))
    with pytest.raises(LeaseLostError, match="lease 1 of shard-000000 expired"):
        slow.note_broken(2, {0: Outcome("timeout", "slow")})
    third = ShardLog(plan, take(tmp_path, "a"))
    assert [third.entries[i].ok["latency_ms"][0] for i in (0, 1)] == [1.0, 2.0]
    assert sorted(third.entries) == [0, 1]
    assert third.broken == {}


def test_of_two_writes_that_race_the_first_stays(tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is lost between the look at it and the write."""
    slow, quick = (ShardLog(plan, take(tmp_path, "a")) for _ in range(2))
    monkeypatch.setattr(Lease, "require", lambda self: None)
    slow.add(0, "2026-01-01T00:00:00", DEVICE, outcomes(plan, 1.0))
    quick.add(0, "2026-01-01T00:00:01", DEVICE, outcomes(plan, 2.0))
    assert quick.entries[0].ok["latency_ms"][0] == slow.entries[0].ok["latency_ms"][0] == 1.0


def test_a_lease_is_renewed_while_its_block_lasts(tmp_path: Path) -> None:
    lease = take(tmp_path, "a")
    with lease:
        end = 200
        while lease.store.read(f"{SHARD}/beat") is None and end:
            lease._ended.wait(0.02)
            end -= 1
    assert lease.store.read(f"{SHARD}/beat") is not None
