"""`tilewise plan`, `search` and `validate` for a target of CK Tile, from an imported table, without a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ck_files import conv_problems, csv_lines
from kernels.ck.stubs import conv_name, model_of, needs_compiler
from tilewise.campaigns.search import SearchSettings, search
from tilewise.cli.main import main
from tilewise.collect import load_plan
from tilewise.kernels import illegal, unsupported
from tilewise.ops import GroupedConvProblem, Target

TARGET = "grouped_conv_forward_bf16_gfx950"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    source, output = tmp_path / "forward.csv", tmp_path / "forward.parquet"
    source.write_text("".join(f"{line}\n" for line in csv_lines(conv_problems(12))))
    assert main(["ingest", f"input={source}", f"output={output}", f"target={TARGET}"]) == 0
    return output


@pytest.mark.long
def test_a_plan_takes_the_measured_kernels_where_no_pool_is_shipped(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    assert main(["plan", f"target={TARGET}", f"data={data}", f"output={output}", "plan.budget_s=1"]) == 0
    plan = load_plan(output)
    assert plan.target == Target.parse(TARGET)
    assert {k["pipeline"] for k in json.loads(output.read_text())["pool"]["kernels"]} == {"compv3", "compv4", "compv5"}
    assert plan.items


def test_without_table_or_libraries_a_plan_says_which_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TILEWISE_CK_CONV_LIB", raising=False)
    words = ["plan", f"target={TARGET}", f"data={tmp_path}", f"output={tmp_path}/plan.json", "plan.from_scratch=true"]
    assert main(words) == 2
    assert "no CK Tile library of grouped_conv is named: set TILEWISE_CK_CONV_LIB" in capsys.readouterr().err


@needs_compiler
def test_a_search_finds_legal_kernels_beyond_the_pool(tmp_path: Path) -> None:
    model, _ = model_of(tmp_path, conv_name(64), conv_name(128))
    problem = GroupedConvProblem(N=2, C=64, K=64, G=1, Hi=14, Wi=14, Y=3, X=3)
    found = search(model, problem, SearchSettings(n_evaluations=60, caution=0.0), 10).found
    assert any(not f.in_pool for f in found)
    for f in found:
        assert illegal(f.kernel, model.target, model.arch) is None
        assert unsupported(f.kernel, problem, model.target.variant) is None
    assert search(model, replace(problem, N=3), SearchSettings(n_evaluations=5), 1).evaluations == 5
