"""Ops, archs, backends and pipelines are added through public contracts, and then do everything the others do."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from extending import loops, pairs, row_sum
from synthetic import measurements, problems
from tilewise.arch import load_arch
from tilewise.cli.compose import compose
from tilewise.conf_files import conf_dir
from tilewise.data import read_measurements, read_raw_measurements
from tilewise.data.quality import prepare_measurements
from tilewise.dispatch import Dispatcher
from tilewise.errors import ConfigError, KernelError
from tilewise.evaluate import evaluate
from tilewise.features import FEATURES, Conditions, feature_table
from tilewise.kernels import BACKENDS, Pool, TileKernel, illegal, load_pool
from tilewise.kernels.triton import BARRIER_BYTES, OP_RULES, PIPELINES, TRITON_DTYPES, Kernel
from tilewise.kernels.triton import _rules as rules
from tilewise.model import load_artefact, write_artefact
from tilewise.ops import OPS, GemmProblem, Target
from tilewise.train import ModelSettings, TrainSettings, TuneSettings, pool_of, train

HERE, DOCS = Path(__file__).parent, Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("adding-*.md"))
SMALL = TrainSettings(
    model=ModelSettings(n_estimators=40, num_leaves=15, min_child_samples=5),
    tune=TuneSettings(n_trials=0),
    n_splits=3,
    threads=1,
)
REGISTRIES = (OPS, FEATURES, BACKENDS, PIPELINES, TRITON_DTYPES, OP_RULES)


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a copy of the settings."""
    folder = shutil.copytree(conf_dir(), tmp_path / "conf")
    monkeypatch.setenv("TILEWISE_CONF", str(folder))
    return folder


@pytest.fixture
def toy_op() -> Iterator[None]:
    before = [dict(registry) for registry in REGISTRIES]
    with row_sum.registered():
        yield
    assert [dict(registry) for registry in REGISTRIES] == before


@pytest.fixture
def toy_backend(toy_op: None) -> Iterator[None]:
    with loops.registered():
        yield


def to_selection(frame: pd.DataFrame, target: Target, folder: Path) -> Dispatcher:
    """Train a dispatcher on a table, through every file in between; check that its model beats the default kernel."""
    frame.to_parquet(folder / "raw.parquet")
    prepared = prepare_measurements(read_raw_measurements(folder / "raw.parquet"), target)
    assert prepared.quarantined_share == 0
    prepared.frame.to_parquet(folder / "table.parquet")
    table = read_measurements(folder / "table.parquet", target)
    result = train(table, target, pool_of(table, target), load_arch(target.arch), SMALL)
    write_artefact(folder / "model", result.parts)
    judged = evaluate(load_artefact(folder / "model"), table, SMALL.holdout_fraction)
    columns = list(OPS[target.op].column_names())
    default = table[table["kernel_name"] == result.parts.pool.names[0]].set_index(columns)["tflops"]
    oracle = judged.per_problem.set_index(columns)["oracle_tflops"]
    assert len(oracle) >= 5
    assert judged.metrics["mean_efficiency"] > max(0.9, (default / oracle).mean())
    return Dispatcher.from_folder(folder / "model")


@pytest.mark.long
@pytest.mark.usefixtures("toy_op")
def test_an_op_goes_from_problem_to_selection(tmp_path: Path) -> None:
    target = Target.parse("row_sum_plain_bf16_sm90")
    made = [Kernel(m, 16, k, "ones", warps, 3) for m in (16, 64, 256) for k in (16, 64, 256) for warps in (4, 8)]
    kernels = tuple(k for k in made if illegal(k, target, load_arch("sm90")) is None)
    assert 0 < len(kernels) < len(made)
    dispatcher = to_selection(row_sum.measurements(target, row_sum.problems(60), kernels), target, tmp_path)
    assert (dispatcher.target, dispatcher.kernel_count) == (target, len(kernels))
    best = dispatcher.select({"M": 5000, "K": 3000, "order": "c"})
    assert best.why == "model"
    assert best.kernel_name == f"row_sum_plain_bf16_{best.kernel.config}"
    narrow = dispatcher.rank({"M": 5000, "K": 10})
    assert {s.kernel.tile_k for s in narrow} == {16}, "rules of the op decide what may be selected"
    assert {k.tile_k for k in kernels} > {16}


def test_an_op_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="op 'row_sum' is unknown; known are gemm, grouped_conv"):
        Target("row_sum", "plain", "bf16", "sm90")


@pytest.mark.usefixtures("toy_op")
def test_an_op_without_kernels_says_so() -> None:
    target = Target("row_sum", "plain", "bf16", "gfx950")
    ck = load_pool(Target.parse("gemm_universal_bf16_sm90")).default
    assert illegal(ck, Target("row_sum", "plain", "bf16", "sm90"), load_arch("sm90")) == "pipeline must be one of ones"
    with pytest.raises(KernelError, match="no pool for row_sum_plain_bf16_gfx950"):
        load_pool(target)


@pytest.mark.usefixtures("toy_backend")
def test_rules_that_ask_a_problem_for_more_than_its_sizes_answer_for_many() -> None:
    pool = Pool("row_sum", "plain", "bf16", tuple(loops.LoopKernel(4, 1, 16, "rows", u) for u in (1, 2, 8)))
    problems = row_sum.problems(3)
    assert pool.supported_of(problems).tolist() == [pool.supported(p).tolist() for p in problems]


@pytest.mark.long
@pytest.mark.usefixtures("toy_backend")
def test_a_backend_goes_from_problem_to_selection(conf: Path, tmp_path: Path) -> None:
    shutil.copy(HERE / "cpu1.yaml", conf / "arch")
    target = Target.parse("row_sum_plain_bf16_cpu1")
    made = [loops.LoopKernel(m, 1, k, "rows", u) for m in (4, 8) for k in (16, 64, 256) for u in (1, 2, 8)]
    kernels: tuple[TileKernel, ...] = tuple(k for k in made if illegal(k, target, load_arch("cpu1")) is None)
    assert len(kernels) == 15, "eight rows unrolled eight times need more registers than there are"
    assert all(loops.LoopKernel.from_config(k.config) == k for k in kernels)
    dispatcher = to_selection(row_sum.measurements(target, row_sum.problems(60), kernels), target, tmp_path)
    assert json.loads((tmp_path / "model" / "pool.json").read_text())["backend"] == "loops"
    best = dispatcher.select({"M": 5000, "K": 3000})
    assert isinstance(best.kernel, loops.LoopKernel)
    assert {s.kernel.unroll for s in dispatcher.rank({"M": 9, "K": 1})} == {1}
    with pytest.raises(KernelError, match="kernels of Loops cannot be launched from here"):
        dispatcher.run({"M": 9, "K": 1})


def test_an_arch_is_one_file(conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "grouped_conv_forward_bf16_sm100"
    with pytest.raises(ConfigError, match="arch=sm100 is unknown; arch has gfx90a, gfx942, gfx950, sm90"):
        compose([f"target={name}"])
    shutil.copy(HERE / "sm100.yaml", conf / "arch")
    assert compose([f"target={name}"]).arch.compute_units == 160
    target, sm100 = Target.parse(name), load_arch("sm100")
    counting = ("relay", "slide")  # the shared memory themselves
    shipped = load_pool(Target.parse("grouped_conv_forward_bf16_sm90")).kernels
    pool = [k for k in shipped if k.pipeline not in counting]
    why = {k: illegal(k, target, sm100) for k in pool}
    barriers = {k: BARRIER_BYTES * PIPELINES[k.pipeline].described for k in pool}
    stored = {k: 2 * k.tile_m * k.tile_n * (k.pipeline == "persistent" and k.split_k == 1) for k in pool}
    needed = {k: rules.shared_memory_bytes(k, "bf16") + barriers[k] + stored[k] for k in pool}
    assert {k for k in pool if why[k]} == {k for k in pool if needed[k] > sm100.shared_memory_bytes}
    assert 0 < sum(map(bool, why.values())) < len(pool)
    assert all("sm100 has 65536 a block" in reason for reason in why.values() if reason)


@pytest.mark.long
def test_a_table_of_a_new_arch_trains_and_selects(conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(HERE / "sm100.yaml", conf / "arch")
    target = Target.parse("grouped_conv_forward_bf16_sm100")
    dispatcher = to_selection(measurements(target, n_problems=50, n_kernels=12), target, tmp_path)
    assert dispatcher.kernel_count == 12
    shape = problems(target, 1)[0]
    best = dispatcher.select(shape)
    assert best.why == "model"
    monkeypatch.delenv("TILEWISE_CONF")  # the model carries the profile along
    assert Dispatcher.from_folder(tmp_path / "model").select(shape) == best


# ---- a pipeline ------------------------------------------------------------------------------------------------------

GEMM = Target.parse("gemm_universal_fp16_sm90")
PAIRS, PLAIN = (Kernel.from_config(f"16x16x16_{name}_w1_s2_g1_k1") for name in ("pairs", "plain"))


@pytest.fixture
def toy_pipeline() -> Iterator[None]:
    before = dict(PIPELINES)
    with pairs.registered():
        yield
    assert before == PIPELINES


def test_a_pipeline_that_is_not_registered_is_refused() -> None:
    reason = illegal(PAIRS, GEMM, load_arch("sm90"))
    assert reason == "pipeline must be one of plain, tma, persistent"
    assert "pipeline_pairs" not in feature_table("gemm").names


@pytest.mark.usefixtures("toy_pipeline")
def test_a_pipeline_states_its_own_rules() -> None:
    sm90 = load_arch("sm90")
    assert illegal(PAIRS, GEMM, sm90) is None
    assert (
        illegal(Kernel.from_config("16x16x16_pairs_w1_s2_g2_k1"), GEMM, sm90) == "pairs takes group_m 1 and split_k 1"
    )
    assert illegal(PAIRS, Target.parse("grouped_conv_forward_fp16_sm90"), sm90) is not None
    pool = Pool("gemm", "universal", "fp16", (PAIRS, PLAIN))
    assert pool.supported(GemmProblem(32, 48, 64)).tolist() == [True, True]
    assert pool.unsupported(GemmProblem(32, 48, 48)).tolist() == ["pairs needs sizes that its tiles divide", None]
    assert pool.unsupported(GemmProblem(32, 48, 64, "rrr")).tolist() == ["pairs needs the layout rcr", None]


def test_a_pipeline_adds_a_feature_and_its_formulas() -> None:
    problem, conditions = (
        GemmProblem(32, 48, 256),
        Conditions(variant="universal", dtype="fp16", arch=load_arch("sm90")),
    )
    before = feature_table("gemm")
    plain = Pool("gemm", "universal", "fp16", (PLAIN,))
    known = before.matrix(problem.to_dict(), plain.columns, **conditions)
    with pairs.registered():
        table, pool = feature_table("gemm"), Pool("gemm", "universal", "fp16", (PLAIN, PAIRS))
        rows = table.rows_of(problem.to_dict(), pool.columns, **conditions)
        matrix = table.compute(rows)
    added = table.names.index("pipeline_pairs")
    assert (*table.names[:added], *table.names[added + 1 :]) == before.names
    assert np.array_equal(np.delete(matrix[:1], added, axis=1), known), "features of other pipelines stay as they were"
    assert matrix[:, added].tolist() == [0, 1]
    assert matrix[:, table.names.index("steps_log2")].tolist() == [4, 3]  # 256 / 16, and 256 / 32
    assert (rows.program_class // 64).tolist() == [PIPELINES["plain"].number, pairs.PAIRS.number]


@pytest.mark.usefixtures("toy_pipeline")
def test_a_pipeline_launches_its_programs() -> None:
    torch = pytest.importorskip("torch")
    programs = pytest.importorskip("tilewise.kernels.triton.programs")
    device = "cpu" if programs.interpreted() else "cuda"
    family, problem = programs.family_of("gemm", "universal"), GemmProblem(32, 48, 64)
    a, b = programs.random_operands(family, problem, "fp16", device, seed=1)
    c = programs.empty_result(family, problem, "fp16", device)
    programs.launch_all(family.launches(PAIRS, problem, "fp16", a, b, c, torch.empty(0, device=device)))
    assert torch.allclose(c.float(), a.float() @ b.float().T, rtol=1e-2, atol=1e-2)


# ---- the pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [row_sum, loops, pairs], ids=lambda module: module.__name__)
def test_only_public_names_are_used(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {f".{node.module}.{alias.name}" for node in imports for alias in node.names}
    names |= {f".{node.attr}" for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {n for n in names if "._" in n} == {".__future__.annotations"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_code_that_runs_and_names_files_that_exist(page: Path) -> None:
    text = page.read_text()
    sources = [path.read_text() for path in (*HERE.glob("*.py"), *HERE.glob("*.yaml"))]
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", text, re.DOTALL)
    assert blocks
    assert [block for block in blocks if not any(block in source for source in sources)] == []
    named = re.findall(r"`((?:src|conf|tests|docs)/[\w/.]+\.(?:py|yaml|txt|md))`", text)
    root = DOCS.parent
    missing = [name for name in named if not (root / name).exists()]
    assert [name for name in missing if not re.search("row_sum|loops|_pairs|NAME", name)] == []


def test_there_is_a_page_for_each() -> None:
    assert [page.stem for page in PAGES] == ["adding-a-backend", "adding-a-pipeline", "adding-an-arch", "adding-an-op"]
