"""`tilewise plan`, `search` and `validate` for a target of CK Tile, from an imported table, without a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ck_files import CONV_KERNELS, conv_problems, csv_lines
from extending.test_extending import SMALL
from kernels.ck.stubs import conv_name, gemm_name, model_of, needs_compiler
from tilewise.arch import load_arch
from tilewise.campaigns.search import SearchSettings, search
from tilewise.campaigns.validate import REPRESENTATIVE_LAYERS
from tilewise.cli.main import main
from tilewise.collect import load_plan
from tilewise.data import read_measurements
from tilewise.data.importers import ingest_file
from tilewise.errors import KernelError
from tilewise.kernels import illegal, unsupported
from tilewise.kernels.ck import CkKernel
from tilewise.model import write_artefact
from tilewise.ops import GemmProblem, GroupedConvProblem, Target
from tilewise.train import pool_of, train

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


@pytest.mark.long
def test_without_table_or_libraries_a_plan_says_which_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TILEWISE_CK_CONV_LIB", raising=False)
    words = ["plan", f"target={TARGET}", f"data={tmp_path}", f"output={tmp_path}/plan.json", "plan.from_scratch=true"]
    assert main(words) == 2
    assert "no CK Tile library of grouped_conv is named: set TILEWISE_CK_CONV_LIB" in capsys.readouterr().err


@pytest.mark.long
@needs_compiler
def test_a_search_finds_legal_kernels_beyond_the_pool(tmp_path: Path) -> None:
    model, _ = model_of(tmp_path, conv_name(64), conv_name(128))
    problem = GroupedConvProblem(N=2, C=64, K=64, G=1, Hi=14, Wi=14, Y=3, X=3)
    found = search(model, problem, SearchSettings(n_evaluations=60, caution=0.0), 10).found
    assert any(not f.in_pool for f in found)
    for f in found:
        assert illegal(f.kernel, model.target, model.arch) is None
        assert unsupported(f.kernel, problem, model.target.variant, model.target.dtype) is None
    assert search(model, replace(problem, N=3), SearchSettings(n_evaluations=5), 1).evaluations == 5


@needs_compiler
def test_a_search_combines_the_values_of_the_pools_matrix_products(tmp_path: Path) -> None:
    padded = gemm_name(32, pads=True).replace("compv3", "mem")
    names = (gemm_name(16), f"{gemm_name(64)}_splitk2", padded, gemm_name(48, layout="rrr"))
    model, _ = model_of(tmp_path, *names)
    problem = GemmProblem(64, 128, 64)
    found = search(model, problem, SearchSettings(n_evaluations=80, caution=0.0), 80).found
    new = [f.kernel for f in found if not f.in_pool and isinstance(f.kernel, CkKernel)]
    assert {k.tile_m for k in new} == {16, 32, 64}  # 48 belongs to a kernel of another layout
    assert {k.split_k for k in new} == {0, 2}
    assert {(k.pipeline, k.pad_m, k.pad_n, k.pad_k) for k in new} == {
        ("compv3", False, False, False),
        ("mem", True, True, True),
    }
    warp_tiles = {(k.warp_tile_m, k.warp_tile_n, k.warp_tile_k) for k in new}
    assert warp_tiles == {(16, 16, 16), (64, 4, 16)}  # those of the arch that divide a tile
    assert {k.gemm_layout for k in new} == {"rcr"}
    for f in found:
        assert illegal(f.kernel, model.target, model.arch) is None
        assert unsupported(f.kernel, problem, model.target.variant, model.target.dtype) is None
    with pytest.raises(KernelError, match="no kernel of the pool is compiled for layout ccr"):
        search(model, replace(problem, layout="ccr"), SearchSettings(n_evaluations=5), 1)


def write_gradient_model(variant: str, folder: Path) -> None:
    """Import a benchmark of CK Tile's kernels of a variant, and write the model that it trains to `folder`."""
    target = Target.parse(TARGET.replace("forward", variant))
    source = folder / f"{variant}.csv"
    kernels = [name.replace("forward", variant) for name in CONV_KERNELS[:6]]
    source.write_text("".join(f"{line}\n" for line in csv_lines(conv_problems(24), kernels)))
    table = read_measurements(ingest_file(source, target, folder / f"{variant}.parquet").path, target)
    result = train(table, target, pool_of(table, target), load_arch(target.arch), SMALL)
    write_artefact(folder / target.name, result.parts)


@pytest.mark.long
def test_the_gradients_models_are_asked_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["validate", "mode=backward", f"target={TARGET}", f"model_dir={tmp_path / TARGET}", f"out={tmp_path}"]
    write_gradient_model("bwd_data", tmp_path)
    assert main(command) == 2  # the published table of gfx950 has forward alone
    assert f"{tmp_path} has no {TARGET.replace('forward', 'bwd_weight')}: train them" in capsys.readouterr().err
    write_gradient_model("bwd_weight", tmp_path)
    assert main(command) == 0
    report = json.loads((tmp_path / "validate_backward.json").read_text())
    assert report["sound"]
    assert [m["target"] for m in report["models"]] == [TARGET.replace("forward", v) for v in ("bwd_data", "bwd_weight")]
    for model in report["models"]:
        assert model["problems"] + model["unsupported"] == len(REPRESENTATIVE_LAYERS) == 7
        assert model["problems"] == 4  # three layers have too few channels a group for the vectors
        assert model["median_tflops"] > 0
