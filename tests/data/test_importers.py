"""Files of CK Tile become tables: measurements are unchanged, broken parts are reported, and nothing vanishes."""

from __future__ import annotations

import gzip
import json
import re
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ck_files
from data import reader_fuzz
from mutate import Damage
from strategies import damages
from synthetic import measurements
from tilewise.data import measurement_columns, read_measurements
from tilewise.data.importers import ImportReport, ingest_file, quarantine_path
from tilewise.data.importers import _source as source_module
from tilewise.errors import DataError
from tilewise.ops import OPS, Target

CONV, GEMM = reader_fuzz.CONV, reader_fuzz.GEMM
REAL = Path(__file__).parents[3] / "shared" / "data" / "gfx950_forward_bf16_train.csv"
PROBLEMS = ck_files.gemm_problems(3)
MEM = ck_files.GEMM_KERNELS[2]


def csv_text(n: int = 2) -> list[str]:
    return list(ck_files.csv_lines(ck_files.conv_problems(n)))


def imported(tmp_path: Path, content: str | bytes, target: Target = CONV, name: str = "in") -> tuple[ImportReport, Any]:
    """Import `content`; return the report, and the table as a frame."""
    source = tmp_path / name
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    report = ingest_file(source, target, tmp_path / "out.parquet")
    return report, pq.read_table(report.path).to_pandas()


def lost(report: ImportReport) -> list[dict[str, Any]]:
    assert report.quarantine is not None
    return [json.loads(line) for line in report.quarantine.read_text().splitlines()]


# --- measurements are unchanged ---------------------------------------------------------------------------------------


def test_a_csv_comes_through(tmp_path: Path) -> None:
    lines = csv_text()
    report, frame = imported(tmp_path, "\n".join(lines), name="sweep.v2.csv")
    assert (report.format, report.rows, report.valid, report.lost, report.quarantine) == ("csv", 48, 48, 0, None)
    stated = pd.DataFrame([line.split(",") for line in lines[1:]], columns=lines[0].split(","))
    assert frame["kernel_name"].tolist() == stated["kernel"].tolist()
    for name in ("N", "C", "Hi", "X", "pad_w"):
        assert frame[name].tolist() == stated[name].astype(int).tolist()
    assert frame["latency_ms"].tolist() == stated["latency_ms"].astype(float).tolist()
    np.testing.assert_allclose(frame["tflops"], stated["tflops"].astype(float), rtol=1e-3)
    assert (frame["origin"] == "sweep.v2.csv").all()
    assert frame["run_id"].str.fullmatch("sweep-[0-9a-f]{12}").all()
    assert "problem_idx" not in frame
    read_measurements(report.path, CONV)  # every row fulfils the schema


def test_order_and_number_of_columns_do_not_matter(tmp_path: Path) -> None:
    table = pacsv.read_csv(pa.BufferReader("\n".join(csv_text()).encode()))
    names = [*reversed(table.column_names), "Di", "Z", "dilation_h"]
    wide = table.append_column("Di", pa.array([1] * 48)).append_column("Z", pa.array([1] * 48))
    wide = wide.append_column("dilation_h", pa.array([1] * 48)).select(names)
    sink = pa.BufferOutputStream()
    pacsv.write_csv(wide, sink)  # quotes the words
    report, frame = imported(tmp_path, sink.getvalue().to_pybytes().replace(b"\n", b"\r\n"))
    assert (report.rows, report.lost) == (48, 0)
    assert frame["kernel_name"].tolist() == table["kernel"].to_pylist()


def test_the_same_measurements_in_every_format_give_the_same_rows(tmp_path: Path) -> None:
    kernels = [k for k in ck_files.GEMM_KERNELS if "_mem_" not in k]
    value = ck_files.benchmark_json(PROBLEMS, kernels)
    _, frame = imported(tmp_path, json.dumps(value, indent=2), GEMM)
    (tmp_path / "out.parquet").unlink()
    _, from_log = imported(tmp_path, "".join(ck_files.log_pieces(PROBLEMS, kernels)), GEMM)
    key = ["M", "N", "K", "kernel_name"]
    apart = ["run_id", "origin"]
    tables = [f.drop(columns=apart).sort_values(key).reset_index(drop=True) for f in (frame, from_log)]
    pd.testing.assert_frame_equal(*tables)
    assert len(frame) == 3 * len(kernels)
    assert frame["layout"].unique().tolist() == ["rcr"]


def test_kernels_of_the_mem_pipeline_pad_whatever_the_json_says(tmp_path: Path) -> None:
    report, frame = imported(tmp_path, json.dumps(ck_files.benchmark_json(PROBLEMS, [MEM])), GEMM)
    assert report.rows == 3
    assert frame[["pad_m", "pad_n", "pad_k"]].to_numpy().all()
    assert frame["kernel_name"].unique().tolist() == [MEM.replace("False_False_False_False", "True_True_True_False")]
    read_measurements(report.path, GEMM)


def test_failed_runs_are_rows_that_say_so(tmp_path: Path) -> None:
    lines = csv_text(1)[:5]
    lines[1] = lines[1].rpartition(",")[0] + ",0"
    head, rest = lines[2].split(",", 14)[:14], lines[2].split(",")[15:]
    lines[2] = ",".join([*head, "0.0", *rest])
    lines[3] = ",".join([*lines[3].split(",")[:15], "0.0", "5"])
    report, frame = imported(tmp_path, "\n".join(lines))
    assert (report.rows, report.valid, report.lost) == (4, 1, 0)
    assert frame["status"].tolist() == ["wrong_result", "runtime_error", "runtime_error", "ok"]
    assert frame["error"].tolist()[:3] == [
        "the kernel computed nothing: non_zero is 0",
        "the latency is 0 ms",
        "the file says 0 TFLOPS",
    ]
    assert frame.loc[:2, ["latency_ms", "tflops", "bandwidth_gb_s"]].isna().all(axis=None)
    read_measurements(report.path, CONV)


def test_runs_that_the_json_calls_invalid_are_kept(tmp_path: Path) -> None:
    value = ck_files.benchmark_json(PROBLEMS)
    value["results"][0]["benchmarks"][1] |= {"is_valid": False, "tflops": 0.0, "avg_time_ms": 0.0}
    report, frame = imported(tmp_path, json.dumps(value), GEMM)
    assert (report.rows, report.valid) == (27, 26)
    assert frame["error"][1] == "the file says that the run is not valid"


def test_an_empty_log_is_an_empty_table(tmp_path: Path) -> None:
    report, frame = imported(tmp_path, " \n", GEMM)
    assert (report.format, report.rows, report.lost) == ("log", 0, 0)
    assert list(frame.columns) == [c.name for c in measurement_columns("gemm", "ck_tile")]


@pytest.mark.parametrize("reader", ["csv", "json", "log"])
def test_gzip_is_read_through(reader: str, tmp_path: Path) -> None:
    sample = reader_fuzz.sample(reader)
    assert imported(tmp_path, gzip.compress(sample.content), sample.target)[0].rows == sample.parts


def test_a_parquet_table_of_others_comes_through(tmp_path: Path) -> None:
    report, frame = imported(tmp_path, reader_fuzz.sample("parquet").content)
    assert (report.format, report.rows, report.lost) == ("parquet", 72, 0)
    assert frame["kernel_name"].nunique() == 24


def test_our_own_tables_come_through_as_they_are(tmp_path: Path) -> None:
    ours = measurements(n_problems=4, n_kernels=6)
    ours.loc[2, "latency_ms"] = -1.0
    other = measurements("grouped_conv_bwd_data_bf16_sm90", n_problems=1, n_kernels=2)
    pd.concat([ours, other]).to_parquet(tmp_path / "in")
    report = ingest_file(tmp_path / "in", Target.parse("grouped_conv_forward_bf16_sm90"), tmp_path / "out.parquet")
    back = read_measurements(report.path)
    pd.testing.assert_frame_equal(back, ours.drop(2).reset_index(drop=True))
    reasons = [(loss["line"], loss["reason"]) for loss in lost(report)]
    assert reasons == [
        (2, "latency_ms must be positive, got -1.0"),
        *((24 + i, "the row belongs to grouped_conv bwd_data bf16 sm90, not to the target") for i in range(2)),
    ]


@pytest.mark.parametrize("limit", [2, 1000])
def test_a_full_disk_leaves_no_temporary_file(tmp_path: Path, limit: int) -> None:
    """A limit on the size of files stands for the disk."""
    sample = reader_fuzz.sample("csv")
    (tmp_path / "in").write_bytes(sample.content)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            ingest_file(tmp_path / "in", sample.target, tmp_path / "out" / "table.parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(not REAL.exists(), reason="the published gfx950 table is not beside the repository")
def test_the_published_table_comes_through_completely(tmp_path: Path) -> None:
    report = ingest_file(REAL, CONV, tmp_path / "out.parquet")
    assert (report.rows, report.valid, report.lost) == (3760, 3760, 0)
    frame, stated = read_measurements(report.path, CONV), pd.read_csv(REAL)
    np.testing.assert_allclose(frame["tflops"], stated["tflops"], rtol=1e-4)
    assert frame["kernel_name"].nunique() == 20
    assert len(frame[list(OPS["grouped_conv"].column_names())].drop_duplicates()) == 185


# --- broken parts are reported ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a,b", "the line has 2 values, the header 17"),
        ("KERNEL,0,1,64,64,1,8,8,1,1,1,1,0,x,0.1,0.0,1", "pad_w must be a whole number, got 'x'"),
        ("KERNEL,0,1,64,64,1,8,8,1,1,1,1,0,,0.1,0.0,1", "pad_w: is empty"),
        ("KERNEL,0,1,64,64,1,8,8,1,1,1,1,0,0\x1c,0.1,0.0,1", r"pad_w must be a whole number, got '0\x1c'"),
        ("KERNEL,0,1,64,64,1,8,8,1,1,1,1,0,0,ms,0.0,1", "latency_ms must be a number, got 'ms'"),
        ("KERNEL,0,1,64,65,2,8,8,1,1,1,1,0,0,0.1,0.0,1", "C: must be divisible by G"),
        ("KERNEL,0,1,64,64,1,8,8,9,1,1,1,0,0,0.1,0.0,1", "Y: the filter reaches over 9 elements"),
        ("KERNEL,0,1,64,64,1,8,8,1,1,1,1,0,0,0.1,77.0,1", "tflops 77 does not follow from latency_ms"),
        ("conv_1,0,1,64,64,1,8,8,1,1,1,1,0,0,0.1,0.0,1", "'conv_1' is not a CK Tile kernel name"),
        ("KERNELxfp16,0,1,64,64,1,8,8,1,1,1,1,0,0,0.1,0.0,1", "the kernel belongs to grouped_conv forward fp16"),
        ('"KERNEL,0,1,64,64,1,8,8,1,1,1,1,0,0,0.1,0.0,1', "the line has quotes that do not match"),
        ("KERNEL,0,1,64,64,1,8,8,1,1,1,1,0,0,0.1\r,0.0,1", "the line holds a control character"),
        ("KERNEL,0,1,64,64,1,8,8,1,1,1,1,0,0,0.1,0.0,\udcff", "the line is not UTF-8 text"),
        ("x" * (source_module.MAX_LINE_BYTES + 1), "the line is longer than 1 MiB"),
    ],
)
def test_a_broken_line_costs_itself(line: str, reason: str, tmp_path: Path) -> None:
    lines = csv_text()
    kernel = ck_files.CONV_KERNELS[0]
    broken = line.replace("KERNELxfp16", kernel.replace("bf16", "fp16")).replace("KERNEL", kernel)
    if "C: must" in reason:
        broken = broken.replace(",64,65,2,", ",65,64,2,")
    lines.insert(7, broken)
    lines.insert(3, "")  # a blank line is ignored, but counts
    report, frame = imported(tmp_path, "\n".join(lines).encode(errors="surrogateescape"))
    assert (report.rows, report.lost) == (48, 1)
    (loss,) = lost(report)
    assert loss["line"] == 9
    assert reason in loss["reason"]
    assert loss["text"][:8] == broken[:8].replace("\udcff", "\ufffd")
    assert frame["kernel_name"].tolist() == [k for _ in range(2) for k in ck_files.CONV_KERNELS]


def test_a_2d_kernel_has_not_run_a_problem_with_depth(tmp_path: Path) -> None:
    header, line = csv_text(1)[:2]
    without_tflops = ",".join([*line.split(",")[:15], "", "1"])
    report, _ = imported(tmp_path, f"{header},Di,Z\n{line},1,1\n{without_tflops},4,1\n")
    assert report.rows == 1
    assert lost(report)[0]["reason"].startswith("a 2d kernel cannot have run a 3D problem")


def log_with(change: Any) -> str:
    """Return a log with its fourth object changed."""
    pieces = list(ck_files.log_pieces(PROBLEMS[:2], ck_files.GEMM_KERNELS[:4]))
    pieces[4] = change(pieces[4])
    return "".join(pieces)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.replace('"name": "', '"name: '), "not a JSON object"),
        (lambda t: t[: len(t) // 2] + "\n", "not a JSON object"),
        (lambda t: t.replace("perf_result", "result"), "the object has no 'perf_result'"),
        (lambda t: t.replace('"m": ', '"m": 1'), "m is 1"),
        (lambda t: t.replace('"m": ', '"m": -'), "m, n and k must be positive whole numbers"),
        (lambda t: t.replace("_16x16x128", "_16x16x128_splitk4"), "split_k is 1, but the kernel's name states 4"),
        (lambda t: t.replace('"split_k": 1', '"split_k": 0'), "split_k must be a whole number of 1 or more, got '0'"),
        (lambda t: t.replace('"split_k": 1', '"split_k": true'), "split_k must be a whole number of 1 or more"),
        (lambda t: t.replace('"split_k": 1', '"split_k": "auto"'), "split_k must be a whole number of 1 or more"),
        (lambda t: t.replace('"dtype_a": "fp8"', '"dtype_a": "bf16"'), "dtype_a is 'bf16'"),
        (lambda t: t.replace("ColumnMajor", "RowMajor"), "the layout is rrr, the Shape line above states rcr"),
        (lambda t: t.replace("ColumnMajor", "Diagonal"), "layouts must be RowMajor or ColumnMajor"),
        (lambda t: t.replace("_128x128x128_", "_128x128_"), "is not a CK Tile configuration"),
    ],
)
def test_a_broken_object_costs_itself(change: Any, reason: str, tmp_path: Path) -> None:
    report, frame = imported(tmp_path, log_with(change), GEMM)
    assert (report.rows, report.lost) == (7, 1)
    (loss,) = lost(report)
    assert reason in loss["reason"]
    text = log_with(lambda t: t)
    fourth = text.index("{\n", text.index("Launching", text.index("compv4")))
    assert loss["line"] == text.count("\n", 0, fourth) + 1
    assert len(frame) == 7


def test_each_split_of_a_log_is_a_kernel_of_its_own(tmp_path: Path) -> None:
    """So the runs of one CK Tile kernel with several splits do not contradict each other."""
    kernel, p = ck_files.GEMM_KERNELS[0], PROBLEMS[0]
    stated = [(kernel, 1), (kernel, 2), (kernel, 16), (f"{kernel}_splitk4", 4)]
    objects = [ck_files.log_object(p, name, i, split) for i, (name, split) in enumerate(stated)]
    unstated = ck_files.log_object(p, f"{kernel}_splitk8", 4).replace('    "split_k": 1,\n', "")
    report, frame = imported(tmp_path, "\n".join([*objects, unstated]), GEMM)
    assert (report.rows, report.lost) == (5, 0)
    assert frame["split_k"].tolist() == [0, 2, 16, 4, 8]
    assert frame["kernel_name"].tolist() == [kernel, *(f"{kernel}_splitk{n}" for n in (2, 16, 4, 8))]
    np.testing.assert_allclose(frame["latency_ms"], [ck_files.latency(p, i) for i in range(5)])
    read_measurements(report.path, GEMM)


def test_a_split_run_of_a_json_is_a_kernel_of_its_own(tmp_path: Path) -> None:
    value = ck_files.benchmark_json(PROBLEMS[:2], [MEM])
    value["results"][0]["benchmarks"][0]["split_k"] = 4
    value["results"][0]["benchmarks"][1]["split_k"] = 1
    report, frame = imported(tmp_path, json.dumps(value, indent=1), GEMM)
    padded = MEM.replace("False_False_False_False", "True_True_True_False")
    assert (report.rows, report.lost) == (2, 0)
    assert frame["kernel_name"].tolist() == [f"{padded}_splitk4", padded]


def test_an_impossible_split_of_a_json_costs_itself(tmp_path: Path) -> None:
    value = ck_files.benchmark_json(PROBLEMS[:3], ck_files.GEMM_KERNELS[:1])
    for benchmark, split in zip(value["results"][0]["benchmarks"], (0, 10**9, 2), strict=True):
        benchmark["split_k"] = split
    report, frame = imported(tmp_path, json.dumps(value, indent=1), GEMM)
    assert frame["split_k"].tolist() == [2]
    assert [loss["reason"][:50] for loss in lost(report)] == [
        "split_k must be a whole number of 1 or more, got '",
        "split_k must be 0 (K is not split) or 2 or more, a",
    ]


@pytest.mark.parametrize("as_parquet", [False, True])
def test_a_table_may_state_the_split_of_each_row(as_parquet: bool, tmp_path: Path) -> None:
    kernel, p = ck_files.GEMM_KERNELS[0], PROBLEMS[0]
    stated = [(kernel, 1), (kernel, 4), (kernel, None), (f"{kernel}_splitk4", 2), (kernel, 0), ("no name", 2)]
    rows = [
        {"kernel": name, "M": p.M, "N": p.N, "K": p.K, "latency_ms": ck_files.latency(p, i), "split_k": split}
        for i, (name, split) in enumerate(stated)
    ]
    table, sink = pa.Table.from_pylist(rows), pa.BufferOutputStream()
    pq.write_table(table, sink) if as_parquet else pacsv.write_csv(table, sink)
    report, frame = imported(tmp_path, sink.getvalue().to_pybytes(), GEMM)
    assert frame["kernel_name"].tolist() == [kernel, f"{kernel}_splitk4", kernel]
    assert frame["split_k"].tolist() == [0, 4, 0]
    assert [loss["reason"][:40] for loss in lost(report)] == [
        "split_k is 2, but the kernel's name stat",
        "split_k must be a whole number of 1 or m",
        "'no name' is not a CK Tile kernel name s",
    ]


def test_ck_tiles_training_data_comes_through(tmp_path: Path) -> None:
    """CK Tile's data pipeline writes parquet files with these names; a row that failed has zeros and is_valid false."""
    kernel, p = ck_files.GEMM_KERNELS[0], PROBLEMS[0]
    common = {"op_type": "gemm_universal", "dtype": "fp8", "layout": p.layout, "kernel_name": kernel}
    latency = ck_files.latency(p, 0)
    stated = [(1, latency, GEMM.arch), (4, 2 * latency, GEMM.arch), (8, 0.0, None), (1, latency, "gfx90a")]
    rows = [
        common
        | {"arch": arch, "m": p.M, "n": p.N, "k": p.K, "split_k": split, "latency_ms": ms, "is_valid": ms > 0}
        | {"measured_tflops": p.flops / ms * 1e-9 if ms else 0.0, "bandwidth_gb_s": 1.0, "tile_m": 1}
        for split, ms, arch in stated
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    report, frame = imported(tmp_path, sink.getvalue().to_pybytes(), GEMM)
    assert frame["kernel_name"].tolist() == [kernel, f"{kernel}_splitk4", f"{kernel}_splitk8"]
    assert frame["status"].tolist() == ["ok", "ok", "runtime_error"]
    assert frame["latency_ms"].tolist()[:2] == [latency, 2 * latency]
    assert frame[["M", "N", "K"]].to_numpy().tolist() == [[p.M, p.N, p.K]] * 3
    assert [loss["reason"] for loss in lost(report)] == [f"arch is 'gfx90a', but the target is of {GEMM.arch}"]


def test_rates_of_training_data_are_compared_with_the_latency(tmp_path: Path) -> None:
    p = PROBLEMS[0]
    row = {"kernel_name": ck_files.GEMM_KERNELS[0], "m": p.M, "n": p.N, "k": p.K, "latency_ms": 1.0}
    sink = pa.BufferOutputStream()
    right = p.flops * 1e-9
    pq.write_table(pa.Table.from_pylist([row | {"measured_tflops": rate} for rate in (right, 2 * right)]), sink)
    report, _ = imported(tmp_path, sink.getvalue().to_pybytes(), GEMM)
    assert (report.rows, report.lost) == (1, 1)


def test_a_split_of_a_convolution_is_a_loss(tmp_path: Path) -> None:
    header, line, other = csv_text(1)[:3]
    report, frame = imported(tmp_path, f"{header},split_k\n{line},1\n{other},2\n")
    assert frame["kernel_name"].tolist() == [ck_files.CONV_KERNELS[0]]
    assert lost(report)[0]["reason"] == "split_k must be 0 for a convolution, whose name cannot state it; got 2"


def test_objects_may_share_a_line(tmp_path: Path) -> None:
    objects = [json.dumps(json.loads(ck_files.log_object(PROBLEMS[0], k, 0))) for k in ck_files.GEMM_KERNELS[:3]]
    report, _ = imported(tmp_path, f"[{objects[0]}, {objects[1]},\n{objects[2]}]\n", GEMM)
    assert (report.rows, report.lost) == (3, 0)


def test_a_torn_json_gives_what_is_whole_in_it(tmp_path: Path) -> None:
    text = json.dumps(ck_files.benchmark_json(PROBLEMS, ck_files.GEMM_KERNELS[:3]), indent=1)
    torn = text[: text.rindex('"tflops"')]
    report, _ = imported(tmp_path, torn, GEMM)
    assert report.rows == 8
    assert next(loss["line"] for loss in lost(report)) == torn[: torn.rindex("{")].count("\n") + 1
    (tmp_path / "out.parquet").unlink()
    broken = text.replace('"m":', '"m"', 1)
    report, _ = imported(tmp_path, broken, GEMM)
    assert (report.rows, report.lost) == (8, 1)
    assert lost(report)[0]["line"] == broken[: broken.index('"m" ')].count("\n")


def test_a_configuration_that_contradicts_its_name_is_not_taken(tmp_path: Path) -> None:
    value = ck_files.benchmark_json(PROBLEMS)
    value["results"][1]["kernel_config"]["tile_m"] = 32
    report, _ = imported(tmp_path, json.dumps(value, indent=1), GEMM)
    assert (report.rows, report.lost) == (24, 3)
    assert lost(report)[0]["reason"] == "its kernel_config: tile_m is '32', the kernel's name states 128"


# --- unusable files are refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "target", "message"),
    [
        ("hello\n", "gemm_universal_fp8_gfx950", "not a format that tilewise imports .* it begins with 'hello'"),
        (
            "kernel,N,C\n",
            "grouped_conv_forward_bf16_gfx950",
            "column G, Hi, K, Wi, X, Y, pad_h, pad_w, stride_h, stride_w, latency_ms is missing",
        ),
        ("kernel,N,N,C\n", "grouped_conv_forward_bf16_gfx950", "column names must be unique, got N more than once"),
        (
            "CSV",
            "grouped_conv_bwd_data_bf16_gfx950",
            "no kernel belongs to .*; the file holds grouped_conv forward bf16",
        ),
        (
            "CSV",
            "grouped_conv_forward_bf16_sm90",
            "the file holds CK Tile's grouped_conv .*give arch=gfx90a or arch=gfx942 or arch=gfx950",
        ),
        (
            "LOG",
            "gemm_universal_bf16_gfx950",
            "no measurement of 8 can be imported; line .* the Shape line states dtype=fp8",
        ),
        ("LOG", "grouped_conv_forward_bf16_gfx950", "a streaming log is for gemm"),
        (
            "JSON",
            "gemm_universal_bf16_gfx950",
            "its metadata states dtype 'fp8', but the target is gemm_universal_bf16",
        ),
        ("JSON", "grouped_conv_forward_bf16_gfx950", "a benchmark JSON is for gemm, not for grouped_conv"),
        ('{"metadata": {}}', "gemm_universal_fp8_gfx950", 'must have a list "results"'),
        ("PAR1....", "grouped_conv_forward_bf16_gfx950", "not a readable parquet file"),
    ],
)
def test_an_unusable_file_is_refused(content: str, target: str, message: str, tmp_path: Path) -> None:
    made = {
        "CSV": "\n".join(csv_text(1)),
        "LOG": log_with(lambda t: t),
        "JSON": json.dumps(ck_files.benchmark_json(PROBLEMS)),
    }
    with pytest.raises(DataError, match=message):
        imported(tmp_path, made.get(content, content), Target.parse(target))
    assert not (tmp_path / "out.parquet").exists()


def test_an_output_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out.parquet").write_bytes(b"mine")
    with pytest.raises(DataError, match="exists already"):
        imported(tmp_path, "\n".join(csv_text(1)))
    assert (tmp_path / "out.parquet").read_bytes() == b"mine"


def test_a_refused_import_still_says_what_was_wrong(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"out\.quarantined\.jsonl lists all"):
        imported(tmp_path, log_with(lambda t: t), Target.parse("gemm_universal_bf16_gfx950"))
    assert len(quarantine_path(tmp_path / "out.parquet").read_text().splitlines()) == 8


# --- arbitrary bytes --------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("reader", reader_fuzz.READERS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damages=damages())
def test_a_damaged_file_never_breaks_an_importer(reader: str, damages: list[Damage], tmp_path: Path) -> None:
    reader_fuzz.check(reader, damages, tmp_path)


@settings(max_examples=30)
@given(cuts=st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_where_the_blocks_of_a_log_end_does_not_matter(cuts: list[int]) -> None:
    """Objects split between blocks give the same parts."""
    from tilewise.data.importers import _ck_log as ck_log

    class Pieces:
        def __init__(self, content: bytes) -> None:
            self.content, self.cuts = content, [*cuts]

        def read(self, size: int = 0) -> bytes:
            size = self.cuts.pop() if self.cuts else 10_000
            block, self.content = self.content[:size], self.content[size:]
            return block

    content = reader_fuzz.sample("log").content.replace(b"latency", "läten¢y".encode())
    whole = list(ck_log._parts(source_module.TextWindow(_All(content))))  # type: ignore[arg-type]
    before, ck_log._AHEAD = ck_log._AHEAD, 8
    try:
        found = list(ck_log._parts(source_module.TextWindow(Pieces(content))))  # type: ignore[arg-type]
    finally:
        ck_log._AHEAD = before
    assert [p for p in found] == whole
    assert len(whole) == 15


class _All:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, size: int = 0) -> bytes:
        block, self.content = self.content, b""
        return block


def test_numbers_may_be_padded_and_whole_numbers_written_as_floats(tmp_path: Path) -> None:
    lines = csv_text(1)
    name, index, *values = lines[1].split(",")
    lines[1] = ",".join([name, index, *(f" {v}.0" for v in values[:12]), *(f" {v} " for v in values[12:])])
    report, frame = imported(tmp_path, "\n".join(lines))
    assert (report.rows, report.lost) == (24, 0)
    assert (frame.iloc[0]["C"], frame.iloc[0]["pad_w"]) == (int(values[1]), int(values[11]))


# --- names that no tool writes ----------------------------------------------------------------------------------------

CONV_NAME = "grouped_conv_forward_bf16_2d_16x64x128_compv4"
GEMM_NAME = "gemm_universal_fp8_rcr_compv3_cshuffle_intrawave_False_False_False_False_128x128x128_1x4x1_16x16x128"
SHAPE_COLUMNS = "kernel,N,C,K,G,Hi,Wi,Y,X,stride_h,stride_w,pad_h,pad_w,Di,Z,latency_ms"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (CONV_NAME + "_vec4_4", "pipeline must be one of .*, got 'compv4_vec4_4'"),
        (CONV_NAME.replace("16x64x128", "0x64x64"), "tile_m must be at least 1, got 0"),
        (CONV_NAME.replace("16x64x128", "016x64x128"), "is not a CK Tile configuration"),
        (CONV_NAME.replace("compv4", "compv9"), "pipeline must be one of .*, got 'compv9'"),
        (CONV_NAME + "_dsb_intrawave", "pipeline must be one of .*, got 'compv4_dsb'"),
        (CONV_NAME.replace("2d", "3d"), "a 3d kernel cannot have run a 2D problem"),
        (CONV_NAME.replace("2d", "1d"), "a 1d kernel cannot have run a problem of more dimensions"),
    ],
)
def test_a_malformed_convolution_is_a_loss(tmp_path: Path, name: str, fault: str) -> None:
    shape = "1,64,64,1,8,8,3,3,1,1,1,1,1,1,0.5"
    text = f"{SHAPE_COLUMNS}\n{CONV_NAME},{shape}\n{name},{shape}\n"
    report, frame = imported(tmp_path, text)
    assert (report.rows, frame["kernel_name"].tolist()) == (1, [CONV_NAME])
    (loss,) = lost(report)
    assert re.search(fault, loss["reason"]), loss["reason"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (GEMM_NAME + "_vec4_4", "is not a CK Tile configuration"),
        (GEMM_NAME + "_vec4_4_4_4", "vector widths must be _vecA_B_C"),
        (GEMM_NAME + "_more_vec4_4", "vector widths must be _vecA_B_C"),
        (GEMM_NAME.replace("128x128x128", "0x64x64"), "tile_m must be at least 1, got 0"),
        (GEMM_NAME.replace("1x4x1", "1x0x1"), "warp_n must be at least 1, got 0"),
        (GEMM_NAME.replace("16x16x128", "16x16x0"), "warp_tile_k must be at least 1, got 0"),
        (GEMM_NAME.replace("compv3", "compv9"), "pipeline must be one of .*, got 'compv9'"),
    ],
)
def test_a_malformed_matrix_product_is_a_loss(tmp_path: Path, name: str, fault: str) -> None:
    whole = GEMM_NAME + "_vec8_4_2_more"
    text = f"kernel,M,N,K,latency_ms\n{whole},64,64,64,0.5\n{name},64,64,64,0.5\n"
    report, frame = imported(tmp_path, text, GEMM)
    assert frame["kernel_name"].tolist() == [whole]
    (loss,) = lost(report)
    assert re.search(fault, loss["reason"]), loss["reason"]


@pytest.mark.parametrize("number", ["0x10", "0X10", "-0x10", " 0x10"])
@pytest.mark.parametrize("column", [1, 5, 15])
def test_a_hexadecimal_number_is_a_loss(tmp_path: Path, number: str, column: int) -> None:
    """Pyarrow reads 0x10 as 16. Names such as 160x64x128 hold 0x too, and stay."""
    name = CONV_NAME.replace("16x64x128", "160x64x128")
    row = [name, *["1", "64", "64", "1", "8", "8", "3", "3", "1", "1", "1", "1", "1", "1", "0.5"]]
    damaged = [*row[:column], number, *row[column + 1 :]]
    report, frame = imported(tmp_path, f"{SHAPE_COLUMNS}\n{','.join(row)}\n{','.join(damaged)}\n")
    assert (report.rows, frame["kernel_name"].tolist()) == (1, [name])
    (loss,) = lost(report)
    assert (loss["line"], loss["reason"].rpartition(" number, got ")[2]) == (3, repr(number))
