"""`tilewise ck` builds libraries of CK Tile's kernels, and `collect` builds those that it lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from capi.client import needs_compiler
from collect.building.checkout import compiled_names, make_checkout, make_compiler
from kernels.ck.stubs import gemm_name, stub
from tilewise.arch import load_arch
from tilewise.cli.main import main
from tilewise.collect import Item, Plan, Timing
from tilewise.kernels import Pool
from tilewise.kernels.ck import complete_instance, parse_name
from tilewise.ops import GemmProblem, Target

pytestmark = needs_compiler
TARGET = Target.parse("gemm_universal_fp16_gfx942")
NAMES = [gemm_name(tile) for tile in (16, 32)]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "log"))
    monkeypatch.delenv("TILEWISE_CK_GEMM_LIB", raising=False)
    (tmp_path / "instances.txt").write_text("".join(f"{name}\n" for name in NAMES))
    (tmp_path / "problems.csv").write_text("M,N,K,layout,origin\n32,32,32,rcr,a\n64,32,96,rcr,b\n")
    checkout, compiler = make_checkout(tmp_path / "ck"), make_compiler(tmp_path)
    return [
        f"ck.checkout={checkout}", f"ck.compiler={compiler}", f"ck.cache={tmp_path}/cache", f"target={TARGET.name}",
    ]  # fmt: skip


@pytest.mark.long
def test_build_prints_each_library_and_link_their_manifest(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["ck", "build", *words, f"input={tmp_path}/instances.txt", f"output={tmp_path}/out"]
    assert main(call) == 0
    assert {line.split()[1] for line in capsys.readouterr().out.splitlines()} == {
        f"{tmp_path}/out/{name}.so" for name in NAMES
    }
    assert main([*call, "--json", "filter=c.tile_m == 16"]) == 0
    (built,) = json.loads(capsys.readouterr().out)
    assert (built["name"], built["from_cache"]) == (NAMES[0], True)
    assert main(["ck", "link", f"input={tmp_path}/out"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/out/manifest.json: 2 libraries\n"


def test_a_failed_kernel_is_an_error_with_its_log(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUB_FAIL", "32x16x16")
    call = ["ck", "build", *words, f"input={tmp_path}/instances.txt", f"output={tmp_path}/out"]
    assert main(call) == 1
    assert "1 of 2 kernels were not built" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (["ck"], "ck needs an action, one of build, link"),
        (["ck", "build"], "input: missing; ck build reads instances"),
        (["ck", "link"], "input: missing; ck link reads a folder of libraries"),
        (["ck", "build", "input=x.txt"], "output: missing; name the folder of the libraries"),
    ],
)
def test_a_call_without_its_settings_is_refused(
    call: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(call) == 2
    assert message in capsys.readouterr().err


@pytest.mark.long
def test_collect_builds_the_candidates_that_have_no_library(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    stub(libraries, "own", NAMES[0], TILE=1)
    call = [
        "collect", *words, f"collect.libraries={libraries}", f"ck.instances={tmp_path}/instances.txt",
        f"ck.output={tmp_path}/built", f"collect.problems={tmp_path}/problems.csv", f"output={tmp_path}/out.parquet",
    ]  # fmt: skip
    assert main(call) == 0
    rows = pq.read_table(tmp_path / "out.parquet").to_pandas()
    assert set(rows["kernel_name"]) == set(NAMES)
    assert [path.name for path in (tmp_path / "built").glob("*.so")] == [f"{NAMES[1]}.so"]
    assert len(compiled_names(tmp_path / "log")) == 1


@pytest.mark.long
def test_a_plans_kernels_are_built(words: list[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pool = Pool(TARGET.op, TARGET.variant, TARGET.dtype, tuple(parse_name(name).kernel for name in NAMES))
    plan = Plan(TARGET, load_arch("gfx942"), pool, (Item(GemmProblem(64, 32, 32), "test"),), Timing(), "r")
    (tmp_path / "plan.json").write_text(plan.dumps())
    call = ["collect", *words, f"input={tmp_path}/plan.json", f"ck.output={tmp_path}/b", f"output={tmp_path}/o.parquet"]
    assert main(call) == 0
    assert pq.read_table(tmp_path / "o.parquet")["status"].to_pylist() == ["ok", "ok"]


def test_a_name_without_warps_is_completed_as_a_sweep_would() -> None:
    target = Target.parse("grouped_conv_forward_bf16_gfx950")
    kernel = parse_name("grouped_conv_forward_bf16_2d_128x128x64_compv3_intrawave").kernel
    completed = complete_instance(kernel, target, load_arch("gfx950"))
    assert completed.name == kernel.name("grouped_conv", "forward", "bf16")
    assert (completed.kernel.warp_m, completed.kernel.warp_tile_m, completed.kernel.vector_a) == (4, 32, 4)
