"""A record belongs to one key, one kernel's code and one machine: whatever changes one of them, changes the file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from autotuning.kernels import recorded
from tilewise.autotuning.records._tuned_entry import TunedContext, TunedEntry, TunedKey
from tilewise.autotuning.records._tuned_store import TunedStore, read_records
from tilewise.dispatch.measuring import Machine
from tilewise.errors import DataError

MACHINE = Machine("H200", "sm90", "570.1", "2.11", "3.6", "c0de")
CONTEXT = TunedContext("my_matmul", MACHINE)
KEY = TunedKey({"M": 512, "N": 64}, ("float16", "float16"))
ENTRY = TunedEntry(
    CONTEXT,
    KEY,
    {"BM=64": {"latency_ms": 0.5, "sm_clock_mhz": None}, "BM=128": {"latency_ms": 0.25, "sm_clock_mhz": 1980}},
    {"BM=256": ("compile_error", "out of shared memory")},
    "2026-01-01T00:00:00+00:00",
)
CONTEXTS = [
    *(
        dataclasses.replace(CONTEXT, machine=dataclasses.replace(MACHINE, **{f.name: "x"}))
        for f in dataclasses.fields(Machine)
    ),
    dataclasses.replace(CONTEXT, kernel="my_softmax"),
    dataclasses.replace(CONTEXT, version="2"),
]
KEYS = [
    TunedKey({"M": 513, "N": 64}, KEY.dtypes),
    TunedKey({"M": 64, "N": 512}, KEY.dtypes),
    TunedKey({"M": 512}, KEY.dtypes),
    TunedKey({"M": 512, "K": 64}, KEY.dtypes),
    TunedKey({"M": "512", "N": 64}, KEY.dtypes),
    TunedKey(KEY.sizes, ("float16", "float32")),
    TunedKey(KEY.sizes, ("float16",)),
]


@pytest.mark.parametrize("context", CONTEXTS)
def test_every_part_of_the_context_has_its_own_folder(context: TunedContext) -> None:
    assert context.folder != CONTEXT.folder


@pytest.mark.parametrize("key", KEYS)
def test_every_part_of_the_key_has_its_own_file(key: TunedKey) -> None:
    assert key.file != KEY.file


def test_the_order_of_the_sizes_does_not_matter() -> None:
    assert TunedKey({"N": 64, "M": 512}, KEY.dtypes).file == KEY.file


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = TunedStore(CONTEXT, tmp_path)
    assert store.read(KEY) is None
    store.extend(ENTRY)
    assert store.read(KEY) == ENTRY
    assert read_records(tmp_path, "my_matmul") == [ENTRY]


def test_the_fastest_is_the_first_of_equals_among_those_asked_for() -> None:
    assert ENTRY.fastest(["BM=64", "BM=128", "BM=256"]) == "BM=128"
    assert ENTRY.fastest(["BM=64", "BM=256"]) == "BM=64"
    assert ENTRY.fastest(["BM=256", "BM=512"]) is None
    equal = dataclasses.replace(ENTRY, measured={name: {"latency_ms": 1.0} for name in ENTRY.measured})
    assert equal.fastest(["BM=128", "BM=64"]) == "BM=128"


def test_later_measurements_replace_earlier_ones_of_the_same_configuration() -> None:
    later = TunedEntry(CONTEXT, KEY, {"BM=256": {"latency_ms": 1.0}}, {"BM=64": ("runtime_error", "e")}, "2027")
    both = ENTRY.extended(later)
    assert (set(both.measured), set(both.failed)) == ({"BM=128", "BM=256"}, {"BM=64"})


def _tampered(change: str) -> bytes:
    values = json.loads(ENTRY.dumps())
    values["measured"]["BM=64"]["latency_ms"] = change
    return json.dumps(values).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a record of tuning"),
        (b"[1]", "not a record of tuning"),
        (ENTRY.dumps()[:-30], "not a record of tuning"),
        (_tampered("0.1"), "its checksum is wrong"),
        (dataclasses.replace(ENTRY, key=KEYS[0]).dumps(), "does not match the key"),
        (dataclasses.replace(ENTRY, measured={"BM=64": {"latency_ms": -1.0}}).dumps(), "positive number"),
        (dataclasses.replace(ENTRY, measured={"BM=64": {"latency_ms": float("nan")}}).dumps(), "positive number"),
        (dataclasses.replace(ENTRY, measured={"BM=64": {"latency_ms": 1.0, "x": -1}}).dumps(), "positive finite"),
        (dataclasses.replace(ENTRY, measured={"BM=256": {"latency_ms": 1.0}}).dumps(), "both run and fail"),
    ],
)
def test_a_damaged_record_is_refused_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        TunedEntry.loads(data, CONTEXT.folder / KEY.file)


def test_a_damaged_record_is_measured_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tuned = recorded({1: 2.0, 2: 1.0})
    tuned(3)
    (file,) = (tmp_path / "tilewise-cache").rglob("*.json")
    file.write_text("{}")
    assert recorded({1: 1.0, 2: 2.0})(3) == 1
    assert "is ignored, and replaced when the key is measured" in caplog.text
