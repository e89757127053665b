"""A bucket keeps a run over hosts as a folder does: of two writers of a name, one succeeds."""

from __future__ import annotations

import pytest

pytest.importorskip("s3fs", reason="needs the extra servers")

from servers.conftest import Running
from tilewise.collect.hosts import open_store, take_lease

pytestmark = [pytest.mark.servers, pytest.mark.long]


def test_a_bucket_refuses_a_second_creation(servers: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in servers.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    store = open_store("s3://tilewise-data/runs", "part")
    assert store.read("shard/done-1") is None
    assert store.create("shard/done-1", b"first")
    assert not store.create("shard/done-1", b"second")
    assert store.read("shard/done-1") == b"first"
    store.write("shard/beat", b"1")
    assert store.names("shard") == ["beat", "done-1"]
    first, second = (take_lease(store, "shard", "a", 1.0) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (1, 2)
    store.delete()
    assert store.names("shard") == []
