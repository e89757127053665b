"""Equal tables hash alike, and every change shows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from synthetic import measurements
from tilewise.data import parquet_bytes, read_measurements, table_hash

FRAME = measurements(n_problems=3, n_kernels=5)


@pytest.mark.long
def test_the_hash_survives_files_and_their_division(tmp_path: Path) -> None:
    FRAME[:7].to_parquet(tmp_path / "a.parquet", compression="gzip")
    FRAME[7:].to_parquet(tmp_path / "b.parquet")
    assert table_hash(read_measurements(tmp_path)) == table_hash(FRAME)


def test_every_kind_of_change_shows() -> None:
    row = FRAME.index[FRAME["is_valid"]][0]
    changed = [FRAME.copy() for _ in range(5)]
    changed[0].loc[row, "latency_ms"] += 1e-12
    changed[1].loc[row, "error"] = "x"
    changed[2].loc[row, "repeats"] = pd.NA
    changed[3].loc[row, "is_valid"] = False
    changed[4].loc[row, "N"] += 1
    frames = [FRAME, *changed, FRAME.iloc[::-1], FRAME.rename(columns={"N": "n"}), FRAME.iloc[:-1]]
    assert len({table_hash(f) for f in frames}) == len(frames)


def test_text_cannot_be_shifted_between_cells() -> None:
    a, b = (pd.DataFrame({"t": cells}, dtype="str") for cells in (["ab", "c"], ["a", "bc"]))
    assert table_hash(a) != table_hash(b)


def test_a_later_column_with_defaults_changes_no_hash() -> None:
    """Models of earlier versions state the hash of their table, which had no layout."""
    earlier = FRAME.drop(columns="layout")
    assert table_hash(earlier) == table_hash(FRAME)
    assert table_hash(FRAME.assign(layout="NGCHW")) != table_hash(FRAME)
    gemm = measurements("gemm_universal_bf16_sm90", n_problems=3, n_kernels=5)
    assert table_hash(gemm.assign(layout="rcr")) != table_hash(gemm.drop(columns="layout"))


def test_files_leave_out_a_later_column_with_defaults(tmp_path: Path) -> None:
    """Prepared tables keep the bytes that the pipeline's lock states; any other layout is written."""
    earlier, other = FRAME.drop(columns="layout"), FRAME.assign(layout="NGCHW")
    assert parquet_bytes(FRAME) == parquet_bytes(earlier)
    (tmp_path / "other.parquet").write_bytes(parquet_bytes(other))
    assert (read_measurements(tmp_path)["layout"] == "NGCHW").all()
