"""Import of any table: the columns that are found, the definition that follows, rows, samples and losses."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tilewise.data import read_measurements
from tilewise.data.importers import quarantine_path
from tilewise.data.importers.own_op import StatedColumns, define_from_table, ingest_own_op
from tilewise.errors import ConfigError, DataError
from tilewise.ops import OPS, Target, register

CSV = """rows,cols,dtype,BLOCK,num_warps,fast,time_us,note
128,1000,fp32,256,4,True,10.0,a
128,1000,fp32,512,8,False,8.0,b
64,77,fp32,256,4,True,inf,c
64,77,fp32,512,8,False,2.0,d
"""


_numbers = itertools.count()  # of ops: columns are remembered by op, and a process never changes them


@pytest.fixture(autouse=True)
def op() -> Iterator[str]:
    name = f"toy{next(_numbers)}"
    yield name
    OPS.pop(name, None)


def _target(op: str) -> Target:
    return Target(op, "universal", "fp32", "sm90")


NONE, SHAPE = StatedColumns(), StatedColumns(problem=("rows", "cols"))


def _file(folder: Path, text: str = CSV, name: str = "t.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def _imported(op: str, path: Path, stated: StatedColumns = NONE) -> tuple[pd.DataFrame, Path]:
    register(define_from_table(path, op, stated, {})[0])
    output = path.with_suffix(".out.parquet")
    ingest_own_op(path, _target(op), output, stated)
    return read_measurements(output, _target(op)), output


def test_a_definition_follows_from_the_columns(op: str, tmp_path: Path) -> None:
    stated = StatedColumns(("rows", "cols", "note"), ("BLOCK", "num_warps", "fast"))
    found, columns = define_from_table(_file(tmp_path), op, stated, {"flops": "5*rows*cols"})
    assert found.problem == (("rows", "int"), ("cols", "int"), ("note", ("a", "b", "c", "d")))
    assert found.config == (("BLOCK", "int"), ("num_warps", "int"), ("fast", "bool"))
    assert (found.flops, columns.latency, columns.unit) == ("5*rows*cols", "time_us", "us")


def test_columns_that_are_not_named_are_found(op: str, tmp_path: Path) -> None:
    text = "M,N,BLOCK_M,num_stages,ms,tflops\n8,8,16,2,0.5,1\n"
    found, columns = define_from_table(_file(tmp_path, text), op, NONE, {})
    assert (found.problem_names, found.config_names) == (("M", "N"), ("BLOCK_M", "num_stages"))
    assert (columns.latency, columns.unit) == ("ms", "ms")


def test_rows_become_measurements(op: str, tmp_path: Path) -> None:
    frame, _ = _imported(op, _file(tmp_path, CSV), SHAPE)
    assert frame["latency_ms"].dropna().tolist() == pytest.approx([0.01, 0.008, 0.002])
    failed = frame[~frame["is_valid"]]
    assert failed[["status", "error"]].to_numpy().tolist() == [["runtime_error", "the table has no latency"]]
    assert frame["kernel_name"].iloc[0] == f"{op}_universal_fp32_BLOCK.256-num_warps.4-fast.1-note.a"
    assert set(frame["backend"]) == {op}
    assert frame["tflops"].dropna().tolist() == pytest.approx([1e6 / 1e9 / ms for ms in (0.01, 0.008, 0.002)])


def test_rows_of_another_type_are_not_mixed_in(op: str, tmp_path: Path) -> None:
    register(define_from_table(_file(tmp_path), op, SHAPE, {})[0])
    mixed = _file(tmp_path, CSV.replace("77,fp32", "77,fp16"), "mixed.csv")
    report = ingest_own_op(mixed, _target(op), tmp_path / "mixed.parquet", NONE)
    assert (report.rows, report.lost) == (2, 2)
    ((kind, losses),) = report.first.items()
    assert kind == "dtype is '...', the target is of fp32"
    assert [loss.line for loss in losses] == [4, 5], "lines of the file, the header among them"


def test_repeated_rows_are_samples(op: str, tmp_path: Path) -> None:
    rows = "".join(f"8,16,{us}\n" for us in (1, 2, 9, 3, 4)) + "8,32,5\n"
    frame, _ = _imported(op, _file(tmp_path, f"M,BLOCK_M,us\n{rows}"))
    sampled = frame.iloc[0]
    assert sampled[["latency_ms", "latency_min_ms", "repeats"]].tolist() == pytest.approx([0.003, 0.001, 5])
    assert sampled["latency_p20_ms"] < sampled["latency_ms"] < sampled["latency_p80_ms"]
    assert frame.iloc[1]["repeats"] == 1
    assert np.isnan(frame.iloc[1]["latency_min_ms"]), "one sample has no spread"


def test_a_later_table_needs_only_the_definition(op: str, tmp_path: Path) -> None:
    _imported(op, _file(tmp_path, "M,BLOCK_M,us\n8,16,1\n"))
    later = _file(tmp_path, "BLOCK_M,M,latency,other\n64,9,0.25,x\n", "later.csv")
    report = ingest_own_op(later, _target(op), tmp_path / "later.parquet", NONE)
    assert (report.rows, report.valid) == (1, 1)
    assert read_measurements(tmp_path / "later.parquet")["latency_ms"].tolist() == [0.25]


def test_rows_that_break_the_definition_are_kept_apart(op: str, tmp_path: Path) -> None:
    _imported(op, _file(tmp_path, "M,BLOCK_M,us\n8,16,1\n"))
    text = "M,BLOCK_M,us\n8,16,1\n8.5,16,1\n-8,16,1\n,16,1\n8,1.5,1\n8,x,1\n"
    report = ingest_own_op(_file(tmp_path, text, "b.csv"), _target(op), tmp_path / "b.parquet", NONE)
    assert (report.rows, report.lost) == (1, 5)
    lost = [json.loads(line) for line in quarantine_path(tmp_path / "b.parquet").read_text().splitlines()]
    assert [row["line"] for row in lost] == [3, 4, 5, 6, 7]
    reasons = " | ".join(row["reason"] for row in lost)
    for expected in ("M: must be an integer, got 8.5", "M: must be at least 0, got -8", "M is empty", "BLOCK_M"):
        assert expected in reasons
    bad = _file(tmp_path, "M,BLOCK_M,us\n-8,16,1\n", "c.csv")
    with pytest.raises(DataError, match="no measurement of 1 can be imported: M: must be at least 0, got -8"):
        ingest_own_op(bad, _target(op), tmp_path / "c.parquet", NONE)


def test_caches_of_triton_are_a_table(op: str, tmp_path: Path) -> None:
    config = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None, "pre_hook": None, "ir_override": None}
    for folder, m in (("a", 128), ("b", 256)):
        timings = [[config | {"kwargs": {"BLOCK_M": b}}, [b * 1e-3, 1e-3, 1.0]] for b in (32, 64)]
        timings.append([config | {"kwargs": {"BLOCK_M": 999}}, [float("inf")] * 3])
        (tmp_path / "cache" / folder).mkdir(parents=True)
        content = {"key": [m, 7, "torch.float16"], "configs_timings": timings}
        (tmp_path / "cache" / folder / "k.autotune.json").write_text(json.dumps(content))
    frame, _ = _imported(op, tmp_path / "cache", StatedColumns(problem=("M", "N")))
    assert (len(frame), int(frame["is_valid"].sum())) == (6, 4)
    assert frame[["M", "N", "BLOCK_M", "latency_ms"]].to_numpy().tolist()[:2] == [
        [128, 7, 32, 0.032],
        [128, 7, 64, 0.064],
    ]
    with pytest.raises(DataError, match=r"the key has 2 values, but 3 names are given: M, N, K"):
        define_from_table(tmp_path / "cache", op, StatedColumns(problem=("M", "N", "K")), {})
    with pytest.raises(DataError, match="a cache states values without names; name them in order"):
        define_from_table(tmp_path / "cache", op, NONE, {})


@pytest.mark.parametrize(
    ("text", "stated", "message"),
    [
        ("a,b\n", NONE, "has no rows"),
        (CSV, StatedColumns(problem=("rows", "X")), "column 'X' is missing; the table has rows, cols"),
        (CSV, StatedColumns(("rows",), ("rows",)), "column 'rows' is named twice"),
        (CSV, NONE, "column fast may be of the problem or the configuration; name all"),
        (CSV, StatedColumns(("rows",), ("BLOCK",), "time_us", "h"), "time_us must be one of s, ms, us, ns, got 'h'"),
        ("M,BLOCK_M\n1,2\n", NONE, "the column of the latency is not clear: the table has M, BLOCK_M"),
        ("M,BLOCK_M,ms,us\n1,2,3,4\n", NONE, "ms, us may each be it; name it, as in latency=ms"),
        ("M,K,ms\n1,2,3\n", NONE, "the columns M, K, ms cannot be told apart; name them, as in 'problem="),
    ],
)  # fmt: skip
def test_a_table_that_is_not_clear_is_refused(
    op: str, tmp_path: Path, text: str, stated: StatedColumns, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        define_from_table(_file(tmp_path, text), op, stated, {})


def test_a_size_must_be_whole(op: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column M: must hold whole numbers, true and false, or texts, got 1\.5"):
        define_from_table(_file(tmp_path, "M,BLOCK_M,ms\n1.5,2,3\n"), op, StatedColumns(problem=("M",)), {})
    reserved = _file(tmp_path, "status,BLOCK_M,ms\n1,2,3\n")
    with pytest.raises(ConfigError, match="problem: the name 'status' is reserved"):
        define_from_table(reserved, op, StatedColumns(problem=("status",)), {})


def test_one_wrong_cell_makes_no_category_of_a_size(op: str, tmp_path: Path) -> None:
    text = "M,BLOCK_M,ms\n8,16,1\n9,16,1\nx12,16,1\n"
    with pytest.raises(DataError, match="column M: 'x12' in row 3 is among whole numbers; correct it, or leave"):
        define_from_table(_file(tmp_path, text), op, StatedColumns(problem=("M",)), {})


@pytest.mark.parametrize("value", ["-3", "fast"])
def test_a_column_without_a_positive_number_is_no_latency(op: str, tmp_path: Path, value: str) -> None:
    path = _file(tmp_path, f"M,BLOCK_M,us\n8,16,{value}\n")
    with pytest.raises(DataError, match=rf"column us has no positive number, but .*{value}.*; name the column"):
        _imported(op, path)


def test_a_table_of_failures_alone_is_imported(op: str, tmp_path: Path) -> None:
    register(define_from_table(_file(tmp_path, "M,BLOCK_M,us\n8,16,1\n"), op, NONE, {})[0])
    failed = _file(tmp_path, "M,BLOCK_M,us\n8,32,inf\n", "f.csv")
    report = ingest_own_op(failed, _target(op), tmp_path / "f.parquet", NONE)
    assert (report.rows, report.valid, report.format) == (1, 0, "table with us in us")


def test_earlier_results_are_never_overwritten(op: str, tmp_path: Path) -> None:
    _, output = _imported(op, _file(tmp_path, "M,BLOCK_M,us\n8,16,1\n"))
    with pytest.raises(DataError, match="exists already; earlier results are never overwritten"):
        ingest_own_op(tmp_path / "t.csv", _target(op), output, NONE)
