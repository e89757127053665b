"""A split of K is a parameter of CK Tile's matrix products: from a log to a selection, and beside tables without it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from math import ceil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from ck_files import GEMM_KERNELS, log_object
from extending.test_extending import to_selection
from tilewise.arch import load_arch
from tilewise.collect.engines import ReplayTable
from tilewise.data import parquet_bytes, read_measurements, table_hash
from tilewise.data.importers import ingest_file
from tilewise.features import Conditions, feature_table
from tilewise.kernels import Pool
from tilewise.kernels.ck import CkKernel, get_instance_string, parse_instance_string, parse_name
from tilewise.model import load_artefact
from tilewise.ops import GemmProblem, Target
from tilewise.train import pool_of

TARGET = Target.parse("gemm_universal_fp8_gfx950")
SPLITS = (1, 2, 4, 8)
PADDED = GEMM_KERNELS[1]
WIDE, DEEP = GemmProblem(4096, 4096, 1024), GemmProblem(128, 256, 16384)


def milliseconds(p: GemmProblem, split: int) -> float:
    """Return a plausible time: more parts fill more of the 256 compute units, and their sum costs a pass over C."""
    blocks, steps = ceil(p.M / 128) * ceil(p.N / 128), ceil(p.K / 128 / split)
    waves = ceil(blocks * split / 256)
    return round(0.003 + waves * (0.001 + steps * 0.0008) + (split > 1) * (0.004 + p.M * p.N * split * 2e-9), 6)


def log_of(problems: list[GemmProblem]) -> str:
    """Return a log of one kernel, run with each split."""
    lines = [f"Loading kernels for {TARGET.arch}"]
    for index, p in enumerate(problems, 1):
        lines.append(f"Shape {index}: M={p.M} N={p.N} K={p.K} dtype=fp8 layout=rcr")
        for split in SPLITS:
            lines.append(f"Launching kernel with args: grid: {{{p.M}, 1, {split}}}, blocks: {{256, 1, 1}}")
            lines.append(log_object(p, PADDED, 0, split, milliseconds(p, split)))
    return "\n".join(lines)


def table_of(problems: list[GemmProblem], folder: Path) -> pd.DataFrame:
    (folder / "fp8.log").write_text(log_of(problems))
    report = ingest_file(folder / "fp8.log", TARGET, folder / "fp8.parquet")
    assert (report.rows, report.lost) == (len(problems) * len(SPLITS), 0)
    return read_measurements(report.path, TARGET)


@pytest.mark.long
def test_from_a_log_with_splits_to_a_selection(tmp_path: Path) -> None:
    sides, depths = (128, 256, 512, 1024, 2048, 4096), (1024, 2048, 8192, 16384)
    problems = [GemmProblem(*s) for s in product(sides, (256, 1024, 4096), depths)]
    dispatcher = to_selection(table_of(problems, tmp_path), TARGET, tmp_path)
    model = load_artefact(tmp_path / "model")
    assert sorted(k.split_k for k in model.pool.kernels) == [0, 2, 4, 8]
    assert dispatcher.select(replace(WIDE, M=3072)).kernel_name == PADDED
    deep = dispatcher.select(replace(DEEP, K=12288)).kernel_name
    assert parse_name(deep).kernel.split_k >= 4


def test_a_pool_and_its_features_tell_splits_apart(tmp_path: Path) -> None:
    frame = table_of([WIDE, DEEP], tmp_path)
    pool = pool_of(frame, TARGET)
    again = Pool.from_dict(json.loads(json.dumps(pool.to_dict())))
    assert again == pool
    assert pool.find(f"{PADDED}_splitk4") == [k.split_k for k in pool.kernels].index(4)
    table, arch = feature_table("gemm"), load_arch(TARGET.arch)
    table.check_distinct(pool, arch)
    matrix = table.of_role("kernel").of_pool(pool, arch)
    column = matrix[:, table.of_role("kernel").names.index("split_k")]
    assert column.tolist() == [max(k.split_k, 1) for k in pool.kernels]  # 1 where K is not split
    instance = parse_instance_string(f"{PADDED}_splitk4")
    assert get_instance_string(instance) == f"{PADDED}_splitk4"


@pytest.mark.long
def test_tables_and_pools_without_splits_stay_as_they_were(tmp_path: Path) -> None:
    frame = table_of([WIDE], tmp_path)
    unsplit = frame[frame["split_k"] == 0].reset_index(drop=True)
    earlier = unsplit.drop(columns=list(CkKernel.later_columns))
    assert parquet_bytes(unsplit) == parquet_bytes(earlier)
    assert table_hash(unsplit) == table_hash(earlier)
    assert table_hash(frame) != table_hash(earlier)
    pool = pool_of(unsplit, TARGET)
    assert not {*CkKernel.later_columns} & {*pool.to_dict()["kernels"][0]}
    assert Pool.from_dict(pool.to_dict()).kernels == pool.kernels
    (tmp_path / "earlier.parquet").write_bytes(parquet_bytes(earlier))
    pd.testing.assert_frame_equal(read_measurements(tmp_path / "earlier.parquet", TARGET), unsplit)
    replayed = ReplayTable.load(tmp_path / "earlier.parquet", TARGET)
    assert replayed.latency_ms(WIDE, pool.kernels[0]) == milliseconds(WIDE, 1)
    report = ingest_file(tmp_path / "earlier.parquet", TARGET, tmp_path / "again.parquet")
    assert pq.read_table(report.path)["split_k"].to_pylist() == [0]


def test_columns_without_a_split_are_those_of_unsplit_kernels(tmp_path: Path) -> None:
    pool = pool_of(table_of([WIDE], tmp_path), TARGET)
    unsplit = Pool("gemm", "universal", "fp8", tuple(k for k in pool.kernels if not k.split_k))
    columns = {name: values for name, values in unsplit.columns.items() if name != "split_k"}
    table, arch = feature_table("gemm"), load_arch(TARGET.arch)
    problem, conditions = WIDE.to_dict(), Conditions(variant="universal", dtype="fp8", arch=arch)
    expected = table.matrix(problem, unsplit.columns, **conditions)
    np.testing.assert_array_equal(table.matrix(problem, columns, **conditions), expected)
