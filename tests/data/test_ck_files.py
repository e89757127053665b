"""Tables written in CK Tile's formats are read back with the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from ck_files import CONV_KERNELS, CSV_COLUMNS, benchmark_json, conv_problems, csv_lines, gemm_problems
from synthetic import CONV, measurements
from tilewise.cli.main import main
from tilewise.data import read_measurements, to_ck_text
from tilewise.data.importers import ingest_file
from tilewise.errors import ConfigError, DataError
from tilewise.ops import Target

CK_CONV, CK_GEMM = (Target.parse(f"{name}_gfx950") for name in ("grouped_conv_forward_bf16", "gemm_universal_fp8"))
COMPARED = ("kernel_name", "is_valid", "status", "latency_ms", "tflops")


def again(frame: pd.DataFrame, target: Target, path: Path) -> pd.DataFrame:
    """Return the table of the written file."""
    path.write_text(to_ck_text(frame, target, path))
    return read_measurements(ingest_file(path, target, path.with_suffix(".parquet")).path, target)


def compared(frame: pd.DataFrame, target: Target) -> pd.DataFrame:
    key = [*target.problem_type.column_names(), "kernel_name"]
    return frame[[*key, *COMPARED[1:]]].sort_values(key, ignore_index=True)


@pytest.fixture
def convolutions(tmp_path: Path) -> pd.DataFrame:
    lines = list(csv_lines(conv_problems(6), CONV_KERNELS[:5]))
    lines[3] = lines[3].rpartition(",")[0] + ",0"  # the kernel computed nothing
    (tmp_path / "in.csv").write_text("".join(f"{line}\n" for line in lines))
    return read_measurements(ingest_file(tmp_path / "in.csv", CK_CONV, tmp_path / "in.parquet").path, CK_CONV)


@pytest.fixture
def products(tmp_path: Path) -> pd.DataFrame:
    (tmp_path / "in.json").write_text(json.dumps(benchmark_json(gemm_problems(6))))
    return read_measurements(ingest_file(tmp_path / "in.json", CK_GEMM, tmp_path / "in.parquet").path, CK_GEMM)


@pytest.mark.long
def test_convolutions_survive_the_csv(convolutions: pd.DataFrame, tmp_path: Path) -> None:
    assert (~convolutions["is_valid"]).sum() == 1
    found = again(convolutions, CK_CONV, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == CSV_COLUMNS
    pd.testing.assert_frame_equal(compared(found, CK_CONV), compared(convolutions, CK_CONV))


def test_dilated_convolutions_have_the_newer_columns(convolutions: pd.DataFrame, tmp_path: Path) -> None:
    dilated = convolutions.assign(dilation_w=2, Wi=64)
    text = to_ck_text(dilated, CK_CONV, tmp_path / "a.csv")
    assert text.splitlines()[0].split(",")[14:18] == ["Di", "Z", "stride_d", "pad_d"]
    assert "dilation_w" in text.splitlines()[0]
    with pytest.raises(DataError, match="states no layout"):
        to_ck_text(convolutions.assign(layout="NGCHW"), CK_CONV, tmp_path / "a.csv")


def test_matrix_products_survive_the_json(products: pd.DataFrame, tmp_path: Path) -> None:
    found = again(products, CK_GEMM, tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["metadata"] == {"dtype": "fp8", "layout": "rcr", "num_kernels": 9, "num_problems": 6}
    pd.testing.assert_frame_equal(compared(found, CK_GEMM), compared(products, CK_GEMM))


def test_other_endings_and_kernels_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = measurements(CONV, n_problems=3, n_kernels=3)
    with pytest.raises(ConfigError, match=r"ends with \.csv, got .*\.json"):
        to_ck_text(frame, Target.parse(CONV), tmp_path / "a.json")
    with pytest.raises(DataError, match="only measurements of CK Tile's kernels"):
        to_ck_text(frame, Target.parse(CONV), tmp_path / "a.csv")
    with pytest.raises(DataError, match=f"has no row of {CK_CONV.name}"):
        to_ck_text(frame, CK_CONV, tmp_path / "a.csv")
    assert main(["data", "export", f"input={tmp_path}", f"target={CONV}"]) == 2
    assert "output: missing; name the file to write" in capsys.readouterr().err


@pytest.mark.long
def test_the_verb_writes_the_file_once(products: pd.DataFrame, tmp_path: Path) -> None:
    products.to_parquet(tmp_path / "t.parquet")
    command = ["data", "export", f"input={tmp_path}/t.parquet", f"output={tmp_path}/b.json", f"target={CK_GEMM.name}"]
    assert main(command) == 0
    assert json.loads((tmp_path / "b.json").read_text())["results"]
    assert main(command) != 0  # earlier results are never overwritten
