"""A merged table holds no undecided fault; decisions are recorded, and stay with the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from synthetic import CONV, measurements
from tilewise.data import parquet_bytes, read_measurements
from tilewise.data.quality import (
    EXCLUSIONS_METADATA,
    Exclusion,
    find_exclusions,
    merge_measurements,
    prepare_measurements,
)
from tilewise.data.quality._exclusions import load_exclusions, matching
from tilewise.data.quality._merge import SOURCES
from tilewise.errors import DataError
from tilewise.ops import Target

TARGET = Target.parse(CONV)
FIRST = measurements(n_problems=12, n_kernels=6, seed=1, failures=0)
SECOND = measurements(n_problems=5, n_kernels=6, seed=2, failures=0).assign(run_id="synthetic-b")
ROW = int(np.flatnonzero(FIRST["is_valid"])[20])
ENTRY = {"rule": "contradiction", "key": {"run_id": "synthetic-1"}, "reason": "a glitch", "decided_by": "Ada"}


def tables(folder: Path, **frames: pd.DataFrame) -> list[Path]:
    for name, frame in frames.items():
        (folder / f"{name}.parquet").write_bytes(parquet_bytes(frame))
    return [folder / f"{name}.parquet" for name in frames]


def contradicted(frame: pd.DataFrame = FIRST, factor: float = 1.5) -> pd.DataFrame:
    """Return the table with one row repeated at its end with another latency."""
    again = frame.loc[[ROW]].copy()
    again[["latency_ms", "latency_min_ms"]] *= factor
    again[["tflops", "bandwidth_gb_s"]] /= factor
    return pd.concat([frame, again], ignore_index=True)


def decide(path: Path, *entries: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(list(entries)))


def test_every_row_keeps_its_provenance(tmp_path: Path) -> None:
    paths = tables(tmp_path, a=FIRST, b=SECOND)
    merged = merge_measurements(paths, TARGET)
    assert not len(merged.faults)
    pd.testing.assert_frame_equal(merged.frame, pd.concat([FIRST, SECOND], ignore_index=True))
    sources = json.loads(merged.metadata[SOURCES])
    assert [(s["file"], s["rows"]) for s in sources] == [("a.parquet", len(FIRST)), ("b.parquet", len(SECOND))]


def test_the_same_file_twice_is_one(tmp_path: Path) -> None:
    (path,) = tables(tmp_path, a=FIRST)
    assert len(merge_measurements([path, tmp_path, path], TARGET).frame) == len(FIRST)
    tables(tmp_path, copy=FIRST)
    merged = merge_measurements([tmp_path], TARGET)
    assert merged.repeats == len(FIRST)
    pd.testing.assert_frame_equal(merged.frame, FIRST)


def test_a_contradiction_blocks_until_it_is_decided_on(tmp_path: Path) -> None:
    paths = tables(tmp_path, a=contradicted())
    merged = merge_measurements(paths, TARGET)
    assert merged.faults["rule"].tolist() == ["contradiction"] * 2
    entries = yaml.safe_load(merged.template)
    assert entries[1]["key"]["latency_ms"] == pytest.approx(FIRST["latency_ms"][ROW] * 1.5)
    (tmp_path / "a.exclusions.yaml").write_text(merged.template)
    with pytest.raises(DataError, match=r"a\.exclusions\.yaml: entry 1: decided_by must be filled in, got '\?\?\?'"):
        merge_measurements(paths, TARGET)
    decide(tmp_path / "a.exclusions.yaml", {**entries[1], "decided_by": "Ada"})  # exclude the second, keep the first
    merged = merge_measurements(paths, TARGET)
    assert not len(merged.faults)
    pd.testing.assert_frame_equal(merged.frame, FIRST)
    assert [(e.decided_by, count) for e, count in merged.applied] == [("Ada", 1)]


def test_decisions_travel_with_the_table(tmp_path: Path) -> None:
    paths = tables(tmp_path, a=contradicted())
    decide(tmp_path / "a.exclusions.yaml", ENTRY)
    merged = merge_measurements(paths, TARGET)
    assert len(merged.frame) == len(FIRST) - 1
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "m.parquet").write_bytes(parquet_bytes(merged.frame, merged.metadata))
    read_measurements(tmp_path / "v1" / "m.parquet", TARGET)
    again = merge_measurements([tmp_path / "v1" / "m.parquet", *tables(tmp_path / "v1", b=SECOND)], TARGET)
    assert json.loads(again.metadata[EXCLUSIONS_METADATA]) == [{**ENTRY, "rows": 2}]
    assert [s["file"] for s in json.loads(again.metadata[SOURCES])] == ["a.parquet", "b.parquet"]


def test_preparing_keeps_to_the_decisions(tmp_path: Path) -> None:
    tables(tmp_path, a=contradicted())
    decide(tmp_path / "exclusions.yaml", ENTRY)
    prepared = prepare_measurements(contradicted(), TARGET, find_exclusions([tmp_path]))
    assert len(prepared.excluded) == 2
    assert prepared.excluded["decided_by"].unique().tolist() == ["Ada"]
    assert not len(prepared.quarantined)


def test_repeats_do_not_count_as_doubtful() -> None:
    prepared = prepare_measurements(pd.concat([FIRST, FIRST], ignore_index=True), TARGET)
    assert len(prepared.quarantined) == len(FIRST)
    assert prepared.quarantined_share == 0


def test_a_decision_takes_only_rows_that_break_its_rule(tmp_path: Path) -> None:
    decide(tmp_path / "a.exclusions.yaml", {**ENTRY, "rule": "outlier"})
    merged = merge_measurements(tables(tmp_path, a=contradicted()), TARGET)
    assert [count for _, count in merged.applied] == [0]
    assert len(merged.faults) == 2
    decide(tmp_path / "a.exclusions.yaml", {**ENTRY, "rule": "any", "key": {"kernel_name": FIRST["kernel_name"][ROW]}})
    merged = merge_measurements([tmp_path / "a.parquet"], TARGET)
    assert FIRST["kernel_name"][ROW] not in set(merged.frame["kernel_name"])


def test_tables_of_other_targets_are_passed_over(tmp_path: Path) -> None:
    other = measurements("grouped_conv_bwd_data_bf16_sm90", n_problems=2, n_kernels=3)
    tables(tmp_path, a=FIRST, b=other, c=measurements("gemm_universal_bf16_sm90", n_problems=2, n_kernels=3))
    pd.testing.assert_frame_equal(merge_measurements([tmp_path], TARGET).frame, FIRST)
    with pytest.raises(DataError, match="no row of grouped_conv_bwd_weight_bf16_sm90"):
        merge_measurements([tmp_path], Target.parse("grouped_conv_bwd_weight_bf16_sm90"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a readable list of exclusions"),
        ("a: 1", "exclusions must be a list of entries with rule, key, reason, decided_by, got mapping"),
        ("- 5", "entry 1: needs exactly rule, key, reason, decided_by, got number"),
        ("- {rule: outlier}", "entry 1: needs exactly .*, got rule"),
        (
            "- {rule: x, key: {N: 1}, reason: r, decided_by: d}",
            "rule must be one of row, superseded, .*, got 'x'",
        ),
        ("- {rule: any, key: {}, reason: r, decided_by: d}", "key must name columns and their values"),
        ("- {rule: any, key: {N: [1]}, reason: r, decided_by: d}", "key must name columns and their values"),
        ("- {rule: any, key: {N: 1}, reason: '', decided_by: d}", "reason must be filled in"),
    ],
)
def test_a_malformed_exclusions_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.exclusions.yaml").write_text(text)
    with pytest.raises(DataError, match=f"x.exclusions.yaml.*{message}"):
        load_exclusions(tmp_path / "x.exclusions.yaml")


@pytest.mark.parametrize(
    ("key", "message"),
    [({"n": 1}, "the table has no column 'n'"), ({"N": "1"}, "column N does not hold texts such as '1'")],
)
def test_a_decision_about_no_column_is_refused(key: dict[str, Any], message: str) -> None:
    faults = pd.DataFrame({"rule": "", "reason": ""}, index=FIRST.index)
    with pytest.raises(DataError, match=message):
        matching(Exclusion("any", key, "r", "d", "f: entry 1"), FIRST, faults)


def test_metadata_of_others_does_no_harm(tmp_path: Path) -> None:
    (path,) = tables(tmp_path, a=FIRST)
    for text in (b"{", b"5", b"[1]"):
        path.write_bytes(parquet_bytes(FIRST, {SOURCES: text, EXCLUSIONS_METADATA: text}))
        assert len(merge_measurements([path], TARGET).frame) == len(FIRST)
        assert pq.read_schema(path).metadata[SOURCES] == text
