"""An op that exists outside this package only, from a user's table to a selection, by the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import own_op
from alone import run_alone
from tilewise.arch import load_arch
from tilewise.cli.main import main
from tilewise.data import read_measurements
from tilewise.data.importers.own_op import StatedColumns, define_from_table, ingest_own_op
from tilewise.dispatch import Dispatcher, Registry
from tilewise.errors import ArtefactError, KernelError
from tilewise.evaluate import evaluate
from tilewise.model import load_artefact, parts_of, write_artefact
from tilewise.ops import OPS, OpDefinition, Target, definition_of, register
from tilewise.train import ModelSettings, TrainSettings, TuneSettings, pool_of, train

TARGET = "own_matmul_universal_bf16_sm90"
SMALL = ("tune.n_trials=0", "n_splits=3", "model.n_estimators=80")
SETTINGS = TrainSettings(
    model=ModelSettings(n_estimators=40, num_leaves=31, min_child_samples=5), tune=TuneSettings(n_trials=0), n_splits=3
)
PROBLEM = "problem={M:512,N:4096,K:4096}"


@pytest.mark.long
def test_a_table_trains_and_selects(tmp_path: Path) -> None:
    """The model comes near the fastest configuration on problems that it has not seen, and beats any single one."""
    table = own_op.recorded_table(problems=200, kernels=12)
    table.to_csv(tmp_path / "timings.csv", index=False)
    stated = StatedColumns(problem=("M", "N", "K"))
    definition, _ = define_from_table(tmp_path / "timings.csv", "own_product", stated, {"flops": "2*M*N*K"})
    with own_op.registered(definition):
        target = Target("own_product", "universal", "bf16", "sm90")
        ingest_own_op(tmp_path / "timings.csv", target, tmp_path / "table.parquet", stated)
        rows = read_measurements(tmp_path / "table.parquet", target)
        trained = train(rows, target, pool_of(rows, target), load_arch("sm90"), SETTINGS)
        write_artefact(tmp_path / "model", trained.parts)
        judged = evaluate(load_artefact(tmp_path / "model"), rows, SETTINGS.holdout_fraction)
    assert judged.metrics["n_problems"] > 25
    assert judged.metrics["mean_efficiency"] > 0.95
    keys = judged.per_problem[["M", "N", "K"]]
    unseen = table.merge(keys).pivot_table(index=["M", "N", "K"], columns=[*own_op.NAMES.values()], values="time_us")
    best_single = (unseen.min(axis=1).to_numpy()[:, None] / unseen.dropna(axis=1)).mean().max()
    assert judged.metrics["mean_efficiency"] > best_single + 0.02


def test_the_registry_of_a_definition_is_light() -> None:
    heavy = ("pandas", "lightgbm", "hydra", "triton", "torch", "mlflow", "yaml")
    code = (
        "import sys, tilewise\n"
        "assert 'numpy' not in sys.modules\n"
        "d = tilewise.OpDefinition('toy', (('M', 'int'),), (('B', 'int'),), flops='2*M')\n"
        "tilewise.register(d)\n"
        f"assert [name for name in {heavy!r} if name in sys.modules] == []\n"
    )
    run_alone(code)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a user's repository with a trained and published model."""
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("TILEWISE_CACHE", str(folder / "cache"))
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        own_op.recorded_table(problems=250, kernels=20).to_csv("timings.csv", index=False)
        ingest = ["ingest", "input=timings.csv", "op=own_matmul", "problem=[M,N,K]", "flops=2*M*N*K", "dtype=bf16"]
        assert main(ingest) == 0
        assert Path("data", TARGET, "timings.parquet").is_file()
        assert main(["init", "op=own_matmul"]) == 0
        settings = ["params=params.yaml", f"target={TARGET}"]
        assert main(["data", "prepare", *settings]) == 0
        data = f"data=build/prepared/{TARGET}.parquet"
        assert main(["train", *settings, data, *SMALL]) == 0
        assert main(["evaluate", *settings, data]) == 0
        assert main(["promote", *settings, data]) == 0
        yield folder
        OPS.pop("own_matmul", None)


@pytest.fixture
def _inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("TILEWISE_CACHE", str(project / "cache"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{project}/mlflow.db")


@pytest.mark.long
@pytest.mark.usefixtures("_inside")
class TestProject:
    """A user's repository, by the command line."""

    def test_selections_on_unseen_problems_are_good(self, project: Path) -> None:
        metrics = json.loads((project / "reports" / TARGET / "metrics.json").read_text())["holdout"]
        assert metrics["n_problems"] >= 10
        assert metrics["mean_efficiency"] > 0.95

    @pytest.mark.parametrize("words", [["select"], ["explain"], ["select", f"input=models/{TARGET}"]])
    def test_verbs_answer_for_the_op(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*words, f"target={TARGET}", PROBLEM]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["why"] == "model"
        assert answer["kernel_name"].startswith("own_matmul_universal_bf16_BLOCK_M.")

    def test_the_registry_and_a_comparison_know_the_op(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["registry", "list"]) == 0
        assert TARGET in capsys.readouterr().out
        assert main(["compare", f"target={TARGET}", f"a=models/{TARGET}", f"b=models/{TARGET}"]) == 0

    def test_a_dispatcher_needs_no_definition(
        self, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)  # without conf/op
        OPS.pop("own_matmul")
        with Dispatcher.from_registry(TARGET) as dispatcher:
            chosen = dispatcher.select({"M": 512, "N": 4096, "K": 4096})
            assert (chosen.why, dispatcher.target.name) == ("model", TARGET)
            with pytest.raises(KernelError, match="kernels of the op own_matmul cannot be launched from here"):
                dispatcher.run({"M": 512, "N": 4096, "K": 4096})
        assert definition_of("own_matmul") is not None
        OPS.pop("own_matmul")
        with Registry("sm90", models=project / "models") as registry:
            assert registry.dispatcher(TARGET).select({"M": 512, "N": 4096, "K": 4096}).kernel == chosen.kernel

    def test_the_core_ranks_as_numpy_does(self, project: Path) -> None:
        model = load_artefact(project / "models" / TARGET)
        assert model.ranker is not None
        problem = model.target.problem({"M": 640, "N": 1000, "K": 777})
        scores = model.score_rows(problem.to_dict(), model.pool.columns)
        best = model.rank(problem, 1)[0]
        assert model.score(problem)[best] == scores[best]

    def test_a_model_of_other_columns_is_refused(self, project: Path) -> None:
        known = definition_of("own_matmul")
        assert known is not None
        OPS.pop("own_matmul")
        other = OpDefinition("own_matmul", known.problem, (*known.config, ("new", "int")))
        message = "definition.json: a model of another definition: .*column new"
        with own_op.registered(other), pytest.raises(ArtefactError, match=message):
            load_artefact(project / "models" / TARGET)
        register(known)

    def test_a_model_keeps_its_own_features(self, project: Path, tmp_path: Path) -> None:
        known = definition_of("own_matmul")
        assert known is not None
        register(replace(known, features=(("area", "BLOCK_M*BLOCK_N"),)))
        model = load_artefact(project / "models" / TARGET)
        assert "area" not in model.features.names
        write_artefact(tmp_path / "again", parts_of(model))
        assert (tmp_path / "again" / "definition.json").read_bytes() == model.files["definition.json"]
        register(known)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (('"int"', '"float"'), "definition.json: op own_matmul: problem: the kind of M must be int"),
            (("2*M*N*K", "3*M*N*K"), "definition.json: digest must be [0-9a-f]{64}, got"),
            (('"digest"', '"dig"'), "definition.json: digest is missing"),
        ],
    )
    def test_a_damaged_definition_is_refused(
        self, project: Path, tmp_path: Path, change: tuple[str, str], message: str
    ) -> None:
        for file in (project / "models" / TARGET).iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        text = (tmp_path / "definition.json").read_text()
        (tmp_path / "definition.json").write_text(text.replace(*change))
        with pytest.raises(ArtefactError, match=message):
            load_artefact(tmp_path, verify=False)
        with pytest.raises(ArtefactError, match=r"definition.json is not the file that was written with this model"):
            load_artefact(tmp_path)

    def test_what_an_own_op_cannot_do_yet_is_said(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["plan", f"target={TARGET}", "output=plan.json"]) == 2
        assert "own_matmul is no built-in op, so it has no set of problems; name a file" in capsys.readouterr().err
        assert main(["ingest", "input=timings.csv", f"target={TARGET}", "problem=[M,N]"]) == 2
        assert "problem: own_matmul has M, N, K, got M, N; leave out problem=" in capsys.readouterr().err
        assert main(["init"]) == 2
        assert "init needs op=NAME of an op of your own" in capsys.readouterr().err
        assert main(["ingest", "input=timings.csv", "op=gemm", "output=x.parquet", "unit=us"]) == 2
        assert "unit= is for tables of an op of your own, named by op=NAME; gemm is built in" in capsys.readouterr().err

    def test_a_project_keeps_files_that_exist(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (project / "README.md").write_text("mine\n")
        assert main(["init", f"target={TARGET}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["written"] == []
        assert (project / "README.md").read_text() == "mine\n"
