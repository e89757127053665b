"""The verbs data, train and evaluate: files, exit status and output."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import mlflow
import pandas as pd
import pytest
import yaml

from small_model import write_model
from synthetic import CONV, measurements
from tilewise.cli.compose import _composed, compose
from tilewise.cli.main import main
from tilewise.cli.models.train import _page
from tilewise.conf_files import conf_dir
from tilewise.data import read_measurements
from tilewise.metrics import METRICS
from tilewise.model import load_artefact

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def client_of(project: Path) -> mlflow.MlflowClient:
    uri = f"sqlite:///{project / 'mlflow.db'}"
    return mlflow.MlflowClient(uri, uri)


TUNE = ("tune.n_trials=2", "tune.n_estimators=10")
SMALL = (*TUNE, "model.n_estimators=30", "model.num_leaves=15", "n_splits=3", "threads=1")
TABLE = measurements(n_problems=40, n_kernels=10, repeats=5, seed=4)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which prepare, train and evaluate ran in turn."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "data").mkdir()
    TABLE.to_parquet(folder / "data" / "table.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert main(["data", "prepare"]) == 0
        assert main(["train", f"data=build/prepared/{CONV}.parquet", *SMALL]) == 0
        assert main(["evaluate"]) == 0
    return folder


@pytest.fixture
def _inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("https://mlflow.example.org", "https://mlflow.example.org/#/x"),
        ("sqlite:////a/b.db", "http://127.0.0.1:5000/#/x, served by: mlflow ui --backend-store-uri sqlite:////a/b.db"),
    ],
)
def test_a_run_s_page_is_told_with_the_command_that_serves_it(uri: str, told: str) -> None:
    """A project of one's own has no Makefile, so `make ui` cannot be the command."""
    assert _page(uri, "#/x") == told


@pytest.mark.usefixtures("_inside")
class TestAfterTraining:
    def test_prepared_table_is_the_measured_one(self) -> None:
        pd.testing.assert_frame_equal(read_measurements(Path(f"build/prepared/{CONV}.parquet")), TABLE)
        assert not Path(f"build/prepared/{CONV}.quarantined.parquet").exists()

    def test_the_model_is_where_it_belongs(self) -> None:
        model = load_artefact(f"models/{CONV}")
        assert model.target.name == CONV
        assert model.manifest["parameters"]["n_estimators"] == 30

    def test_the_training_is_logged_to_the_sandbox_and_not_registered(self, tmp_path: Path) -> None:
        client = client_of(Path.cwd())
        assert client.search_registered_models() == []
        assert client.get_experiment_by_name(CONV) is None
        experiment = client.get_experiment_by_name(f"{CONV}_experiments")
        assert experiment is not None
        assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
        runs = client.search_runs([experiment.experiment_id], filter_string="tags.`tilewise.kind` = 'train'")
        assert runs[0].data.metrics["cv/mean_efficiency"] > 0.5
        assert runs[0].info.run_name == "model.n_estimators=30,model.num_leaves=15,tune.n_estimators=10,n_splits=3"
        assert runs[0].data.tags["tilewise.source"] == "command line"
        assert runs[0].data.params["num_leaves"] == "15", "set, so tuning does not search it"
        assert {f"fold_{i}/p10_efficiency" for i in range(3)} <= set(runs[0].data.metrics)
        assert runs[0].info.end_time - runs[0].info.start_time > 500, "it is as long as the training"
        plots = {f.path for f in client.list_artifacts(runs[0].info.run_id, "plots")}
        of_model = {"efficiency", "predictions", "regret", "feature_importances"}
        of_way = {"learning_curve", "learning_curve_trees"}  # two trials are no picture
        assert plots == {f"plots/{n}.png" for n in of_model | of_way}
        table = client.download_artifacts(runs[0].info.run_id, "trials.csv", str(tmp_path))
        assert pd.read_csv(table)["given"].tolist() == [1, 0]
        trials = client.search_runs([experiment.experiment_id], filter_string="tags.`tilewise.kind` = 'trial'")
        assert len(trials) == 2

    def test_an_experiment_with_a_sample_leaves_the_model_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        before = load_artefact(f"models/{CONV}").content_hash
        assert main(["train", "experiment=smoke", "sample.problems=20", "threads=1", "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        model = load_artefact(f"build/smoke/{CONV}")
        assert result["model"] == f"build/smoke/{CONV}"
        assert model.manifest["parameters"]["n_estimators"] == 20
        assert model.manifest["n_problems"] == 20
        assert load_artefact(f"models/{CONV}").content_hash == before

    @pytest.mark.parametrize("value", ["0", "-1"])
    def test_a_sample_has_a_problem(self, value: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", f"sample.problems={value}"]) == 2
        assert f"sample.problems must be a whole number of at least 1, or null, got {value}" in capsys.readouterr().err

    def test_the_report_has_cv_and_holdout(self) -> None:
        report = json.loads(Path(f"reports/{CONV}/metrics.json").read_text())
        assert set(METRICS) <= set(report["holdout"])
        assert set(METRICS) <= set(report["cv"])
        assert len(pd.read_parquet(f"reports/{CONV}/predictions.parquet")) == report["holdout"]["n_problems"]

    def test_figures_are_printed_with_pool_split_and_ceiling(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["evaluate"]) == 0
        printed = capsys.readouterr().out
        for words in (
            "pool of 10 kernels",
            "tilewise-holdout-1",
            "3-fold GroupKFold",
            "5 problems measured again",
            "mean",
        ):
            assert words in printed

    def test_a_larger_holdout_than_trained_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["evaluate", "holdout.fraction=0.5", "out=elsewhere"]) == 2
        assert "was trained on" in capsys.readouterr().err
        assert not Path("elsewhere").exists()

    def test_every_problem_is_judged_where_nothing_is_held_out(self) -> None:
        assert main(["evaluate", "holdout.fraction=0", "out=all"]) == 0
        assert json.loads(Path("all/metrics.json").read_text())["holdout"]["n_problems"] == 40

    def test_describe_counts(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["data", "describe"]) == 0
        printed = capsys.readouterr().out
        assert "synthetic-2" in printed
        assert "400" in printed
        assert "(p80 - p20) / p50" in printed
        assert "made up" in printed  # a reason
        assert "oracle changes" in printed

    def test_describe_draws_and_fills_a_page(self, capsys: pytest.CaptureFixture[str]) -> None:
        Path("pages").mkdir()
        shutil.copy(ROOT / "docs/data.md", "pages/page.md")
        assert main(["data", "describe", "output=pages/images", "out=pages/page.md"]) == 0
        assert "pages/page.md: filled in" in capsys.readouterr().out
        assert (
            "![How many kernels win](images/concentration_grouped_conv_sm90.png)" in Path("pages/page.md").read_text()
        )
        assert Path("pages/images/concentration_grouped_conv_sm90.png").is_file()

    def test_describe_needs_a_page_that_is_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["data", "describe", "out=nowhere.md"]) == 2
        assert "out=nowhere.md: No such file" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["train", "data=nowhere.parquet"], "nowhere.parquet: no such file"),
            (["train", "variant=bwd_data"], "no row of grouped_conv_bwd_data_bf16_sm90"),
            (["train", "warm_start=models/x"], "models/x: no such file or folder"),
            (
                ["train", "model.label=rank"],
                "model.label must be one of residual, regret, lambdarank, relative, log1p, got 'rank'",
            ),
            (["train", "n_splits=500"], "cannot make 500 folds"),
            (["evaluate", "model_dir=nowhere"], "nowhere: no such file or folder"),
            (["data"], "data needs an action"),
        ],
    )
    def test_mistakes_are_told_in_a_line(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1


def test_an_unreachable_server_is_noticed_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    TABLE.to_parquet(tmp_path / "t.parquet")
    assert main(["train", "data=t.parquet", "tracking.uri=http://127.0.0.1:9", *SMALL]) == 1
    assert re.search(r"^tilewise: error: .*http://127\.0\.0\.1:9", capsys.readouterr().err, re.MULTILINE)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data=base"], "base: no parquet file"),
        (["data=t.parquet", "variant=bwd_data"], "no row of grouped_conv_bwd_data_bf16_sm90"),
        (["data=t.parquet", "sample.problems=9", "dtype=fp16"], "no row of grouped_conv_forward_fp16_sm90"),
        (["data=t.parquet", "warm_start=base", "model.label=log1p"], "model.label must be that of the continued model"),
        (["data=t.parquet", "cluster.kind=moon"], "cluster.kind must be one of"),
    ],
)
def test_a_mistaken_command_leaves_nothing_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    TABLE.to_parquet("t.parquet")
    write_model(Path("base"))
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"t.parquet", "base"}


def test_doubtful_rows_are_quarantined_and_too_many_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table, valid = TABLE.copy(), TABLE.index[TABLE["is_valid"]]
    table.loc[valid[3], "latency_ms"] = -1.0
    table.to_parquet("t.parquet")
    assert main(["data", "prepare", "input=t.parquet", "output=good.parquet"]) == 0
    assert len(pd.read_parquet("good.parquet")) == len(TABLE) - 1
    quarantined = pd.read_parquet("good.quarantined.parquet")
    assert quarantined["source_row"].tolist() == [valid[3]]
    assert "latency_ms must be positive" in capsys.readouterr().out

    table.loc[valid[:20], "latency_ms"] = -1.0
    table.to_parquet("t.parquet")
    assert main(["data", "prepare", "input=t.parquet", "output=blocked.parquet"]) == 2
    assert "4.44% of the rows are bad, more than 1%" in capsys.readouterr().err
    assert not Path("blocked.parquet").exists()
    assert len(pd.read_parquet("blocked.quarantined.parquet")) == 20

    TABLE.to_parquet("t.parquet")
    assert main(["data", "prepare", "input=t.parquet", "output=good.parquet"]) == 0
    assert not Path("good.quarantined.parquet").exists()


@pytest.mark.usefixtures("_inside")
def test_tuned_settings_are_kept_and_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(conf_dir(), tmp_path / "conf")
    monkeypatch.setenv("TILEWISE_CONF", str(tmp_path / "conf"))
    kept = tmp_path / "conf" / "tuned" / f"{CONV}.yaml"
    kept.unlink(missing_ok=True)
    storage = f"tune.storage=sqlite:///{tmp_path}/optuna.db"
    given = "model.min_child_samples=1000"  # more than all rows: no tree splits, so any other trial is better
    command = ["train", f"data=build/prepared/{CONV}.parquet", f"out={tmp_path}/model", storage, "tune.write=conf"]
    assert main([*command, *SMALL, given, "tune.space.min_child_samples=[5,60]", "tune.n_trials=6"]) == 0
    printed = capsys.readouterr().out
    assert f"tuned: {kept} (study {CONV}-" in printed
    values = yaml.safe_load(kept.read_text())
    assert values["min_child_samples"] < 1000
    model = load_artefact(tmp_path / "model")
    parameters = model.manifest["parameters"]
    _composed.cache_clear()  # else compose() returns the earlier composition
    assert {k: v for k, v in compose().model.items() if k != "extra_labels"} == {
        k: v for k, v in parameters.items() if k != "extra_labels"
    }
    comment = kept.read_text()
    assert "6 trials" in comment
    assert model.manifest["data_hash"] in comment
    assert f"command: tilewise train target={CONV} " in comment
    assert "tune.n_trials=6" in comment
