"""MIOpen's find databases become tables of solvers: each timing is a row or a loss with its line."""

from __future__ import annotations

import bz2
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import reader_fuzz
from strategies import conv_problems, without_idle_depth
from tilewise.data import backend_of_frame, is_of, read_raw_measurements
from tilewise.data._schema import row_faults
from tilewise.data.importers import ImportReport, ingest_file
from tilewise.data.importers._find_db import COLUMNS, device_of_name
from tilewise.data.importers._find_db_line import DTYPES, LAYOUTS, VARIANTS, Conv, Timing, parse_key, parse_line
from tilewise.data.quality import prepare_measurements
from tilewise.errors import DataError
from tilewise.kernels import backend
from tilewise.kernels.miopen import Solver
from tilewise.ops import CHANNELS_FIRST, CONV_LAYOUTS, GroupedConvProblem, Target

FIND_DB = reader_fuzz.FIND_DB
REAL = Path(__file__).parents[3] / "shared" / "data"
KEY = "64-56-28-3x1-128-28-28-32-1x0-2x1-1x1-0-NHWC-NHWC-NHWC-BF16-F_g2"
TIMING = "GemmFwdRest:0.25,4096,miopenConvolutionFwdAlgoGEMM"


def imported(tmp_path: Path, content: bytes, name: str = FIND_DB.name) -> tuple[ImportReport, list[dict[str, Any]]]:
    (tmp_path / name).write_bytes(content)
    report = ingest_file(tmp_path / name, reader_fuzz.CONV, tmp_path / "out.parquet")
    return report, pq.read_table(report.path).to_pylist()


def lost(report: ImportReport) -> list[dict[str, Any]]:
    assert report.quarantine is not None
    return [json.loads(line) for line in report.quarantine.read_text().splitlines()]


# --- real lines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, bz2.compress, lambda c: bz2.compress(c[:1000]) + bz2.compress(c[1000:])])
def test_real_lines_come_through(tmp_path: Path, pack: Any) -> None:
    report, rows = imported(tmp_path, pack(FIND_DB.read_bytes()), "gfx90a68.HIP.fdb.txt.bz2")
    assert (report.format, report.rows, report.valid, report.lost) == ("find database", 21, 20, 5)
    assert [row["latency_ms"] for row in rows[:2]] == [0.373917, 29.7952]
    assert rows[0] | {"run_id": ""} == {
        **{"op": "grouped_conv", "variant": "bwd_data", "dtype": "fp32", "arch": "gfx90a", "backend": "miopen"},
        **{"layout": "NGCHW", "N": 4, "C": 512, "K": 1024, "G": 1, "Di": 1, "Hi": 27, "Wi": 27, "Z": 1, "Y": 1, "X": 1},
        **dict.fromkeys(("stride_d", "stride_h", "stride_w"), 2),
        **dict.fromkeys(("pad_d", "pad_h", "pad_w"), 0),
        **dict.fromkeys(("dilation_d", "dilation_h", "dilation_w"), 1),
        **{"algorithm": "GemmBwdRest", "kernel_name": "grouped_conv_bwd_data_fp32_miopen_GemmBwdRest"},
        **{"latency_ms": 0.373917, "status": "ok", "error": None, "is_valid": True, "run_id": ""},
        **{"origin": "gfx90a68.HIP.fdb.txt.bz2", "hw_device": "gfx90a with 104 compute units"},
        **dict.fromkeys(("hw_uuid", "driver", "libraries", "measured_at", "regime", "unrolled", "repeats")),
        **dict.fromkeys(("latency_min_ms", "latency_p20_ms", "latency_p80_ms", "sm_clock_mhz", "programs_version")),
    }
    assert rows[0]["run_id"].startswith("gfx90a68-")


def test_every_row_has_the_columns_of_the_schema(tmp_path: Path) -> None:
    imported(tmp_path, FIND_DB.read_bytes())
    reader_fuzz.check_solvers(pq.read_table(tmp_path / "out.parquet"))
    assert len({c.name for c in COLUMNS}) == len(COLUMNS)


def test_a_backward_line_states_the_gradient_first(tmp_path: Path) -> None:
    """The line begins with 1024-13-13, the output's gradient; the input of the convolution is 1024-25-25."""
    _, rows = imported(tmp_path, FIND_DB.read_bytes())
    row = next(r for r in rows if r["G"] == 64)
    assert (row["variant"], row["Hi"], row["Wi"], row["stride_h"], row["layout"]) == ("bwd_weight", 25, 25, 2, "NGCHW")
    assert next(r for r in rows if r["K"] == 2048)["C"] == 1024


def test_a_time_of_zero_is_a_row_that_failed(tmp_path: Path) -> None:
    _, rows = imported(tmp_path, FIND_DB.read_bytes())
    (failed,) = [r for r in rows if not r["is_valid"]]
    assert (failed["status"], failed["error"], failed["latency_ms"]) == ("runtime_error", "the latency is 0 ms", None)
    assert (failed["algorithm"], failed["G"]) == ("GemmFwd1x1_0_1", 3)


def test_losses_name_their_line_and_reason(tmp_path: Path) -> None:
    report, _ = imported(tmp_path, FIND_DB.read_bytes())
    assert [(loss["line"], loss["reason"]) for loss in lost(report)] == [
        *[(1, "Y: the filter reaches over 4 elements, but Hi with its padding has only 1")] * 4,
        (5, "dtype must be one of FP32, FP16, BF16, got 'INT8'"),
    ]
    assert lost(report)[4]["text"].startswith("1024-14-14-1x1-2048-7-7-1-")


def test_a_solver_is_a_candidate_known_by_its_name(tmp_path: Path) -> None:
    imported(tmp_path, FIND_DB.read_bytes())
    frame = read_raw_measurements(tmp_path / "out.parquet")
    assert backend_of_frame(frame) is backend("miopen")
    assert set(row_faults(frame[frame["is_valid"]])) == {""}
    names = frame["kernel_name"].str.extract("_(miopen_.*)")[0]
    assert [Solver.from_config(name).algorithm for name in names] == frame["algorithm"].tolist()
    assert Counter(frame["layout"])["NHWGC"] == 2
    assert set(frame["dtype"]) >= {"fp32", "bf16"}


def test_a_slower_call_of_the_same_solver_repeats_it_harmlessly(tmp_path: Path) -> None:
    imported(tmp_path, FIND_DB.read_bytes())
    frame = read_raw_measurements(tmp_path / "out.parquet")
    target = Target.parse("grouped_conv_forward_fp32_gfx90a")
    valid = frame[is_of(frame, target) & frame["is_valid"]].head(1)
    slower = valid.assign(
        run_id="as-3d",
        **{name: 3 * valid[name] for name in ("latency_ms", "latency_min_ms")},
        **{name: valid[name] / 3 for name in ("tflops", "bandwidth_gb_s")},
    )
    prepared = prepare_measurements(pd.concat([valid, slower], ignore_index=True), target)
    assert (len(prepared.frame), len(prepared.quarantined), prepared.quarantined_share) == (1, 1, 0.0)
    assert prepared.quarantined["reason"].item().startswith("repeats a faster call: took 3 times")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "rows", "lost_parts"),
    [("gfx942130.HIP.fdb.txt.bz2", 37_792, 0), ("gfx90a68.HIP.fdb.txt.bz2", 647_609, 1_315)],
)
def test_the_published_databases_come_through(tmp_path: Path, name: str, rows: int, lost_parts: int) -> None:
    if not (REAL / name).exists():
        pytest.skip("MIOpen's find databases are not beside the repository")
    report = ingest_file(REAL / name, reader_fuzz.CONV, tmp_path / "out.parquet")
    assert (report.rows, report.lost) == (rows, lost_parts)


# --- one line ---------------------------------------------------------------------------------------------------------


def test_a_line_has_a_problem_and_timings() -> None:
    line = parse_line(f"{KEY}={TIMING};ConvOclBwdWrW2<1>:1e-3,0,miopenConvolutionFwdAlgoDirect")
    problem = GroupedConvProblem(32, 64, 128, 2, 56, 28, 3, 1, stride_h=2, pad_h=1)
    assert line.conv == Conv("forward", "bf16", problem, 2)
    assert line.timings == [Timing("GemmFwdRest", 0.25, 4096, "GEMM"), Timing("ConvOclBwdWrW2<1>", 0.001, 0, "Direct")]
    assert line.faults == []


def key_of(conv: Conv, ndim: int) -> str:
    """Return the key as MIOpen writes it."""
    p, axes = conv.problem, "dhw"[3 - ndim :]
    first = "-".join(str(n) for n in (p.C, *(p.Di, p.Hi, p.Wi)[3 - ndim :]))
    sizes = "-".join(str(n) for n in (p.K, *p.output_sizes[3 - ndim :]))
    if conv.variant != "forward":
        first, sizes = sizes, first
    across = [[getattr(p, f"{name}_{a}") for a in axes] for name in ("pad", "stride", "dilation")]
    filters, pads, strides, dilations = ("x".join(str(n) for n in v) for v in ([p.Z, p.Y, p.X][3 - ndim :], *across))
    word = next(word for word, layout in LAYOUTS[ndim].items() if layout == p.layout)
    layout = word if p.layout == CHANNELS_FIRST else "-".join([word] * 3)
    dtype = next(word for word, name in DTYPES.items() if name == conv.dtype)
    direction = next(word for word, name in VARIANTS.items() if name == conv.variant)
    groups = f"_g{p.G}" if p.G > 1 else ""
    return f"{first}-{filters}-{sizes}-{p.N}-{pads}-{strides}-{dilations}-0-{layout}-{dtype}-{direction}{groups}"


@given(
    problem=conv_problems(layouts=CONV_LAYOUTS),
    choices=st.tuples(st.sampled_from([*VARIANTS.values()]), st.sampled_from([*DTYPES.values()])),
)
def test_a_problem_survives_its_key(problem: GroupedConvProblem, choices: tuple[str, str]) -> None:
    problem = without_idle_depth(problem)
    for ndim in {problem.ndim, 3}:
        conv = Conv(*choices, problem, ndim)
        assert parse_key(key_of(conv, ndim)) == conv


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (KEY, "", "a problem must be C-H-W-YxX-K-Ho-Wo-N-PAD-STRIDE-DILATION-BIAS-LAYOUT-DTYPE-DIRECTION, got ''"),
        ("64-56", "064-56", "a problem must be C-H-W"),
        ("2x1-1x1", "2x1-1", "a problem must be C-H-W"),
        ("-F_g2", "-T_g2", "a problem must be C-H-W"),
        ("-F_g2", "-F_g0", "a problem must be C-H-W"),
        ("-F_g2", "-F_g3", "C: must be divisible by G = 3, got 64"),
        ("32-1x0", "0-1x0", "N: must be at least 1, got 0"),
        ("1x0-2x1", "1x0-0x1", "stride_h: must be at least 1, got 0"),
        ("-0-NHWC", "-1-NHWC", "only convolutions without a bias are imported, got bias 1"),
        ("BF16", "INT8", "dtype must be one of FP32, FP16, BF16, got 'INT8'"),
        ("NHWC-BF16", "NCHW-BF16", "layout of all tensors must be one of NCHW, NHWC in 2D, got 'NHWC-NHWC-NCHW'"),
        ("NHWC-NHWC-NHWC", "NCDHW", "layout of all tensors must be one of NCHW, NHWC in 2D, got 'NCDHW'"),
        ("128-28-28", "128-27-28", "the output is stated as 27x28, but the other sizes give 28x28"),
        ("-F_g2", "-B_g2", "the output is stated as 56x28, but the other sizes give 14x28"),
        (TIMING, "", "a timing must be SOLVER:MS,WORKSPACE,ALGORITHM with MIOpen's names, got ''"),
        ("0.25", "nan", "a timing must be SOLVER:MS"),
        ("0.25", "-0.25", "a timing must be SOLVER:MS"),
        ("4096", "4k", "a timing must be SOLVER:MS"),
        ("FwdAlgo", "BwdDataAlgo", "an algorithm of bwd_data cannot have run a problem of forward"),
        (TIMING, f"{TIMING};{TIMING}", "the line has solver 'GemmFwdRest' already"),
        ("=", " ", "a line must be PROBLEM=SOLVER:MS,WORKSPACE,ALGORITHM;..., this one has no '='"),
    ],
)
def test_a_broken_timing_costs_itself(tmp_path: Path, before: str, after: str, reason: str) -> None:
    sound = f"{KEY}={TIMING}\n"
    broken = sound.replace(before, after, 1)
    assert broken != sound
    report, rows = imported(tmp_path, (sound + "\n" + broken + sound).encode())
    assert report.lost == 1
    (loss,) = lost(report)
    assert (loss["line"], loss["reason"][: len(reason)]) == (3, reason)
    assert len(rows) == 2 + ("already" in reason)


@given(st.text(alphabet="0123456789x-NCHWDFP16B_g=;:,.eGmwdTAlgo<>\x00é", max_size=200))
def test_any_text_is_timings_or_faults(text: str) -> None:
    line = parse_line(text)
    assert len(line.timings) + len(line.faults) == (text.partition("=")[2].count(";") + 1)
    assert all(reason for reason, _ in line.faults)


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("gfx942130.HIP.fdb.txt.bz2", ("gfx942", 304)),
        ("gfx90a68.HIP.fdb.txt", ("gfx90a", 104)),
        ("gfx906_60.OpenCL.fdb.txt.gz", ("gfx906", 60)),
        ("gfx1030_36.HIP.fdb.txt", ("gfx1030", 36)),
        ("gfx942130.HIP.3_2_0_2d1fd99.ufdb.txt", ("gfx942", 304)),
    ],
)
def test_the_name_states_the_gpu(name: str, device: tuple[str, int]) -> None:
    assert device_of_name(Path(name)) == device


@pytest.mark.parametrize("name", ["find.txt", "gfx942.HIP.fdb.txt", "gfx942130.HIP.txt", "mi300.fdb.txt"])
def test_a_name_without_the_gpu_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        DataError, match=r"must state the GPU as MIOpen writes it, such as gfx942130.*; rename the file"
    ):
        imported(tmp_path, FIND_DB.read_bytes(), name)
    assert not (tmp_path / "out.parquet").exists()


def test_a_database_without_a_sound_timing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no measurement of 1 can be imported; line 1: dtype must be one of FP32"):
        imported(tmp_path, FIND_DB.read_bytes().splitlines(keepends=True)[4])


def test_what_lies_before_the_damage_is_read(tmp_path: Path) -> None:
    """The file is cut within its second stream."""
    content = FIND_DB.read_bytes()
    end = content.index(b"\n", 1000) + 1
    packed = bz2.compress(content[:end]) + bz2.compress(content[end:])[:-20]
    report, rows = imported(tmp_path, packed)
    whole = [line for text in content[:end].decode().splitlines() for line in parse_line(text).timings]
    assert len(rows) == len(whole) > 0
    assert lost(report)[-1]["reason"] == "the compressed stream is damaged from here on: it ends early"
