"""Descriptions are checked against tables with known answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from synthetic import CONV, measurements
from tilewise.data import judge_runs, labelled, problem_index
from tilewise.data._repeats import repeated_pairs
from tilewise.data.describe import describe_tables
from tilewise.data.describe._description import (
    KINDS,
    Description,
    Repeats,
    best_subset,
    describe,
    failures,
    kind_of,
    rate,
    repeats,
    samples,
)
from tilewise.errors import DataError
from tilewise.evaluate import noise_ceiling
from tilewise.kernels import backend
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

TARGET = Target.parse(CONV)
TABLE = measurements(CONV, 30, 12, repeats=10, noise=0.02, failures=0.03)


def found_in(frame: pd.DataFrame) -> Repeats | None:
    return repeats(repeated_pairs(frame, TARGET.op), judge_runs(frame, TARGET.op))


@pytest.fixture(scope="module")
def described() -> Description:
    return describe(TABLE, TARGET, 0.3)


def test_every_row_is_counted_once(described: Description) -> None:
    assert described.rows == len(TABLE)
    assert described.by_status["ok"] == TABLE["is_valid"].sum()
    assert described.failures["rows"].sum() == (~TABLE["is_valid"]).sum()
    assert sum(run.rows for run in described.runs) == len(TABLE)
    assert [(run.run_id, run.problems) for run in described.runs] == [("synthetic-1", 30), ("synthetic-2", 10)]


def test_kernels_known_by_name_only_are_described_by_it(described: Description) -> None:
    solver = "Solver" + pd.factorize(TABLE["kernel_name"])[0].astype(str).astype(object)
    own = backend("triton").kernel.column_names()
    named = TABLE.drop(columns=list(own)).assign(
        backend="miopen", algorithm=solver, kernel_name=f"{CONV.removesuffix('_sm90')}_miopen_" + solver
    )
    found = describe(named, TARGET, 0.3).problems
    assert found["tflops"].to_list() == described.problems["tflops"].to_list()
    assert (found["pipeline"] == found["kernel_name"].str.removeprefix(f"{CONV.removesuffix('_sm90')}_")).all()
    assert found["tile_m"].nunique() == 1


def test_the_best_kernel_is_the_fastest_by_its_label(described: Description) -> None:
    labels = labelled(TABLE, TARGET.op)
    valid = labels[labels["is_valid"]]
    best = valid.groupby(problem_index(valid, TARGET.op))["latency_ms"].min()
    assert described.problems["latency_ms"].to_list() == best.to_list()
    assert len(described.problems) == 30
    assert 0 < described.problems["validation"].sum() < 30


def test_efficiency_is_one_for_the_best_and_zero_for_what_failed(described: Description) -> None:
    assert described.efficiency.shape == (30, 12)
    assert described.efficiency.max(axis=1) == pytest.approx(1)
    assert (described.efficiency > 0).sum() == labelled(TABLE, TARGET.op)["is_valid"].sum()
    best = [described.kernels[i] for i in described.efficiency.argmax(axis=1)]
    assert described.problems["kernel_name"].to_list() == best


def test_the_roofline_holds_the_shapes_figures(described: Description) -> None:
    p = described.problems
    assert (p["flops"] / p["latency_ms"] / 1e9).to_list() == pytest.approx(p["tflops"].to_list())


@pytest.mark.long
@pytest.mark.parametrize("target", [CONV, "gemm_universal_fp8_sm90", "grouped_conv_bwd_data_bf16_gfx950"])
def test_all_targets_of_a_folder_are_described(target: str, tmp_path: Path) -> None:
    other = "grouped_conv_bwd_weight_bf16_sm90"
    measurements(other, 5, 6).to_parquet(tmp_path / "a.parquet")
    measurements(target, 7, 6).to_parquet(tmp_path / "b.parquet")
    described = {d.target.name: d for d in describe_tables(tmp_path, 0.2)}
    assert list(described) == sorted([target, other])
    assert len(described[target].problems) == 7
    assert set(described[target].problems["kind"]) <= set(KINDS[Target.parse(target).op])
    assert described[target].repeats is None


class TestOnlyOneTarget:
    OTHER = "grouped_conv_bwd_weight_bf16_sm90"

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        measurements(self.OTHER, 5, 6).to_parquet(tmp_path / "a.parquet")
        measurements(CONV, 7, 6).to_parquet(tmp_path / "b.parquet")
        return tmp_path

    def test_only_its_files_are_read(self, folder: Path) -> None:
        done: list[tuple[str, int, int]] = []
        (found,) = describe_tables(folder, 0.2, TARGET, lambda *step: done.append(step))
        assert (found.target, len(found.problems)) == (TARGET, 7)
        assert done == [("reading", 1, 1)]

    def test_others_are_named_if_it_has_no_rows(self, folder: Path) -> None:
        absent = Target.parse("gemm_universal_fp8_sm90")
        with pytest.raises(DataError, match=f"no rows of {absent.name}, but of {self.OTHER}, {CONV}; name one"):
            list(describe_tables(folder, 0.2, absent))


def test_an_imported_table_without_samples_or_times_is_described() -> None:
    unknown = ["latency_p20_ms", "latency_p80_ms", "latency_min_ms", "measured_at", "hw_device", "libraries"]
    table = TABLE.assign(**{name: None for name in unknown})
    found = describe(table, TARGET, 0.2)
    assert np.isnan(found.spread())
    assert {(run.rate, run.devices, run.libraries, run.measured_on) for run in found.runs} == {(None, (), (), "-")}


def test_a_problem_without_a_valid_kernel_stays() -> None:
    table = measurements(CONV, 6, 8)
    table.loc[:7, ["status", "is_valid", "error"]] = ["timeout", False, "no answer within 20 s"]
    found = describe(table, TARGET, 0.2)
    assert len(found.problems) == 6
    assert found.problems["tflops"].isna().to_list() == [True, *[False] * 5]
    assert found.efficiency[0].max() == 0
    assert found.failures.iloc[0].to_dict() == {"status": "timeout", "reason": "no answer within # s", "rows": 8}


def test_reasons_that_differ_in_a_number_count_together() -> None:
    table = TABLE.head(4).assign(
        status=["wrong_result", "wrong_result", "unsupported", "ok"],
        error=["3 of 4,096 elements", "77 of 1.5e+06 elements", "point needs a 1x1 filter", None],
        is_valid=[False, False, False, True],
    )
    assert failures(table).to_numpy().tolist() == [
        ["wrong_result", "# of # elements", 2],
        ["unsupported", "point needs a 1x1 filter", 1],
    ]


def test_the_rate_leaves_the_pauses_of_a_resumed_run_out() -> None:
    at = ["2026-01-01T00:00:00", "2026-01-01T00:00:10", "2026-01-01T01:00:00", "2026-01-01T01:00:10"]
    many = pd.DataFrame({"measured_at": at * 100, "is_valid": [True] * 300 + [False] * 100})
    assert rate(many) == 15  # 300 in twice 10 s
    assert rate(many.assign(measured_at=None)) is None


def test_the_spread_is_of_valid_rows_and_above_a_latency(described: Description) -> None:
    columns = {
        "latency_p20_ms": [0.9, 1.9, 0.0, 0.009],
        "latency_ms": [1.0, 2.0, 1.0, 0.01],
        "latency_p80_ms": [1.1, 2.1, 9.0, 0.019],
        "is_valid": [True, True, False, True],
    }
    found = samples(pd.DataFrame(columns))
    assert found["spread"].to_list() == pytest.approx([0.2, 0.1, 1.0])
    assert described.spread(above_ms=1e9) != described.spread(above_ms=1e9)  # NaN: no row


class TestRepeats:
    @staticmethod
    def two_runs(first: list[float], second: list[float]) -> pd.DataFrame:
        """One problem, measured by two runs."""
        table = measurements(CONV, 1, 4 * len(first), failures=0)
        table = table[table["is_valid"]].head(len(first))
        assert len(table) == len(first)
        runs = []
        for name, tflops in (("a", first), ("b", second)):
            latency = [1 / t for t in tflops]
            runs.append(table.assign(run_id=name, tflops=tflops, latency_ms=latency))
        return pd.concat(runs, ignore_index=True)

    def test_picks_by_one_run_and_judges_by_the_other(self) -> None:
        found = found_in(self.two_runs([10.0, 9.0], [8.0, 10.0]))
        assert found is not None
        assert (found.problems, found.changed) == (1, 1)
        # picked by a: 8 of 10; picked by b: 9 of 10
        assert found.cost == pytest.approx(1 - (0.8 + 0.9) / 2)

    def test_agreeing_runs_cost_nothing(self) -> None:
        found = found_in(self.two_runs([10.0, 9.0], [9.9, 9.8]))
        assert found is not None
        assert (found.changed, found.cost) == (0, 0)
        assert found.difference == pytest.approx(
            np.median([1 - 10 / 9.9, 9.9 / 10 - 1, 9 / 9.8 - 1, 9.8 / 9 - 1], axis=0), abs=0.1
        )

    def test_is_the_noise_ceiling(self) -> None:
        judged = judge_runs(TABLE, TARGET.op)
        ceiling, found = noise_ceiling(TABLE, TARGET), found_in(TABLE)
        assert ceiling is not None
        assert found is not None
        assert 0 < found.changed < 1
        assert len(judged) == ceiling.n_problems
        assert 1 - found.cost == pytest.approx(ceiling.mean_efficiency)
        assert found.least == judged["efficiency"].min()

    def test_nothing_measured_twice(self) -> None:
        assert found_in(measurements(CONV, 3, 5)) is None


def test_the_best_subset_grows_to_all() -> None:
    efficiency = np.array([[1.0, 0.2, 0.0], [0.9, 1.0, 0.0], [0.0, 0.3, 1.0]])
    assert best_subset(efficiency, 9).tolist() == pytest.approx([1.9 / 3, 2.9 / 3, 1.0])


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (GroupedConvProblem(1, 8, 8, 1, 9, 9, 3, 3), "dense filter"),
        (GroupedConvProblem(1, 8, 8, 1, 9, 9, 1, 1), "pointwise"),
        (GroupedConvProblem(1, 8, 8, 4, 9, 9, 3, 3), "grouped"),
        (GroupedConvProblem(1, 8, 8, 8, 9, 9, 3, 3), "depthwise"),
        (GroupedConvProblem(1, 8, 8, 8, 9, 9, 1, 1, Di=4), "3D"),
        (GemmProblem(16, 4096, 64), "up to 16 rows or columns"),
        (GemmProblem(4096, 17, 64), "up to 256"),
        (GemmProblem(257, 300, 64), "larger"),
    ],
)
def test_kinds(problem: Problem, kind: str) -> None:
    assert kind_of(problem) == kind
    assert kind in KINDS[problem.op]
