"""DVC's stages and MLproject's entry points name exactly the inputs and keys that the code reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo
from omegaconf import OmegaConf

from imports import sources_of
from tilewise.cli._verbs import VERBS
from tilewise.cli.compose import compose, group_options, params_text
from tilewise.files import write_text

ROOT = Path(__file__).parents[2]
STAGES: dict[str, dict[str, Any]] = {
    name: stage["do"] for name, stage in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].items()
}
ENTRY_POINTS: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "MLproject").read_text())["entry_points"]
TEMPLATE = ROOT / "src/tilewise/cli/project/templates/stages.yaml"  # of `tilewise init`
VERB_FILES = [ROOT / "src/tilewise/cli" / verb.package / f"{name}.py" for name, verb in VERBS.items()]

# Sources that cannot change the output of a stage: messages, atomic writing, tables on the terminal.
SHOWN_ONLY = (
    "__init__.py", "_lazy.py", "checks.py", "errors.py", "files.py", "markdown.py",
    "cli/_checks.py", "cli/_completion.py", "cli/_console.py", "cli/_figures.py", "cli/_multirun.py", "cli/_origin.py",
    "cli/_request.py", "cli/_verbs.py", "cli/main.py", "collect/_progress.py",
)  # fmt: skip
# prepare's verb describes data as well. The command line checks settings before any verb, which changes no output.
# train logs to MLflow and shows the noise ceiling, but writes neither into the model. Published tables, model cards and
# explorers are files of other calls, or MLflow's.
# What train keeps of a tuning goes to conf/, and a run after it begins there. Results do not depend on the cluster.
SHOWN_ONLY_BY = {
    "prepare": ("data/describe/", "publish/", "plot_style.py"),
    # ... and `ingest` defines ops before it composes, of a tuned kernel too.
    "settings": (
        "autotuning/",
        "cluster/",
        "collect/",
        "dispatch/",
        "registry/",
        "gate/",
        "model/",
        "train/",
        "cli/project/own_ops.py",
        "data/",
        "kernels/",
        "features/",
        "core/",
        "arch.py",
        "metrics.py",
        "plot_style.py",
    ),
    "train": (
        "publish/",
        "autotuning/",
        "cluster/",
        "collect/",
        "dispatch/",
        "registry/",
        "gate/",
        "evaluate/",
        "plot_style.py",
        "cli/compose.py",
        "cli/_tuned.py",
        "cli/project/",
    ),
    "evaluate": ("publish/",),
}
COMPOSER = "python -m tilewise.cli.compose"


def test_params_file_equals_the_composed_conf() -> None:
    assert (ROOT / "params.yaml").read_text() == params_text(), "conf/ and params.yaml differ: run 'make params'"


def test_params_file_holds_no_interpolation() -> None:
    assert "${" not in (ROOT / "params.yaml").read_text()


def test_stages_are_the_pipeline() -> None:
    assert list(STAGES) == ["prepare", "settings", "train", "evaluate", "promote"]


@pytest.mark.parametrize("name", STAGES)
def test_stage_calls_a_verb_with_the_tracked_parameters(name: str) -> None:
    command = STAGES[name]["cmd"]
    verb = re.match(r"tilewise (\w+)", command)
    assert command.startswith(COMPOSER) if name == "settings" else verb and verb[1] in VERBS
    assert " params=params.yaml target=${item}" in command


@pytest.mark.long
@pytest.mark.parametrize("name", STAGES)
def test_stage_depends_on_the_sources_it_uses(name: str) -> None:
    stage = STAGES[name]
    if stage.get("always_changed"):
        pytest.skip("runs every time")
    verb = stage["cmd"].split()[1]
    module = "compose" if name == "settings" else f"{VERBS[verb].package}.{verb}"
    listed = {dep.removeprefix("src/tilewise/") for dep in stage["deps"] if dep.startswith("src/tilewise/")}
    used = {file.removeprefix("tilewise/") for file in sources_of(f"tilewise.cli.{module}")}
    decisive = {file for file in used - set(SHOWN_ONLY) if not file.startswith(SHOWN_ONLY_BY.get(name, ("\0",)))}
    packages = {file for file in decisive if file.endswith("__init__.py")}  # comes with its modules
    missing = {file for file in decisive - packages if not any(_covers(dep, file) for dep in listed)}
    unused = {dep for dep in listed if not any(_covers(dep, file) for file in decisive)}
    assert not missing, f"dvc.yaml: {name} should depend on them"
    assert not unused, f"dvc.yaml: {name} need not depend on them"


@pytest.mark.parametrize("name", STAGES)
def test_stage_lists_existing_inputs_and_keys(name: str) -> None:
    inputs = [dep for dep in STAGES[name]["deps"] if not dep.startswith(("build/", "data/", "models/"))]
    assert [dep for dep in inputs if not (ROOT / dep).exists()] == []
    assert [key for key in STAGES[name].get("params", []) if OmegaConf.select(compose(), key) is None] == []


@pytest.mark.parametrize("name", STAGES)
def test_stage_tracks_the_keys_that_decide_its_output(name: str) -> None:
    expected = {
        "prepare": set(),  # no setting changes the rules for good rows
        "settings": {"model"},
        # the settings of the model come in a file
        "train": {"arch", "holdout", "n_splits", "sample", "seed", "tune"},
        "evaluate": {"holdout"},
        "promote": {"gate", "holdout"},
    }
    assert set(STAGES[name].get("params", [])) == expected[name]


@pytest.mark.parametrize("pipeline", [ROOT / "dvc.yaml", TEMPLATE], ids=lambda path: path.stem)
def test_a_new_run_of_one_target_is_prepared_alone(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage as it is, with the measurements as its only inputs: DVC finds the target's stale and no other's."""
    stage = yaml.safe_load(pipeline.read_text().replace("{{op}}", "x"))["stages"]["prepare"]["do"]
    stage["deps"] = [dep for dep in stage["deps"] if dep.startswith("data")]
    assert f" data={stage['deps'][0]}" in stage["cmd"], "prepare must read what it depends on"
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").write_text(yaml.safe_dump({"stages": {"prepare": {"foreach": ["a", "b"], "do": stage}}}))
    for name in ("data/a/first", "data/b/first", "build/prepared/a", "build/prepared/b"):
        write_text(f"{name}.parquet", name)
    with Repo.init(no_scm=True) as repo:
        repo.add("data")
        repo.commit(force=True)
        assert repo.status() == {}
        write_text("data/a/second.parquet", "another run")
        repo.add("data")
        assert list(repo.status()) == ["prepare@a"]


def test_outputs_that_are_reproduced_are_not_pushed() -> None:
    for name, stage in STAGES.items():
        for out in [*stage.get("outs", []), *stage.get("metrics", []), *stage.get("plots", [])]:
            ((path, flags),) = (out if isinstance(out, dict) else {out: {}}).items()
            kept = name == "train"  # the model of the committed lock, which `make same` compares with
            assert kept or flags.get("push") is False or flags.get("cache") is False, f"{name}: {path}"


@pytest.mark.long
@pytest.mark.parametrize("file", VERB_FILES, ids=lambda path: path.stem)
def test_every_key_that_a_verb_reads_is_in_conf(file: Path) -> None:
    read = set(re.findall(r"\bcfg\.([a-z_][\w.]*)", file.read_text()))
    read |= set(re.findall(r"\bcfg\.get\(\"([\w.]+)\"", file.read_text()))
    known = {key for key in _keys(OmegaConf.to_container(compose()))}
    assert {key for key in read if key != "get" and key not in known} == set()


def test_model_and_tune_hold_exactly_the_fields_of_their_settings() -> None:
    import dataclasses

    from tilewise.train import ModelSettings, TuneSettings, settings_from_config

    values: Any = OmegaConf.to_container(compose(["tuned=none"]))
    assert set(values["model"]) == {field.name for field in dataclasses.fields(ModelSettings)}
    assert set(values["tune"]) == {field.name for field in dataclasses.fields(TuneSettings)}
    settings = settings_from_config(values)
    assert settings.model.num_leaves == values["model"]["num_leaves"]


@pytest.mark.long
@pytest.mark.parametrize("variant", group_options()["variant"])
def test_gate_has_thresholds_for_every_variant(variant: str) -> None:
    from tilewise.gate import Thresholds
    from tilewise.ops import Target

    op = "gemm" if variant == "universal" else "grouped_conv"
    cfg = compose([f"op={op}", f"variant={variant}"])
    assert Thresholds.from_config(cfg.gate, Target.parse(cfg.target)).problem_drop == cfg.gate.problem_drop


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_entry_point_calls_its_verb_with_the_defaults_of_conf(name: str) -> None:
    entry = ENTRY_POINTS[name]
    verb, *words = entry["command"].removeprefix("tilewise ").split()
    assert verb == ("train" if name == "main" else name)
    assert verb in VERBS
    cfg = compose()
    defaults = {group: value["default"] for group, value in entry["parameters"].items()}
    assert defaults == {group: cfg[group].name for group in ("op", "variant", "dtype", "arch")}
    assert words == [f"{group}={{{group}}}" for group in defaults]


def test_ci_runs_what_a_developer_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, ".ci/run must be executable"
    assert script.read_text().rstrip().endswith("exec make test test-all docs")


def _covers(dep: str, file: str) -> bool:
    return file == dep or file.startswith(f"{dep}/")


def _keys(values: Any, prefix: str = "") -> list[str]:
    if not isinstance(values, dict):
        return []
    here = [f"{prefix}{key}" for key in values]
    return here + [key for name, value in values.items() for key in _keys(value, f"{prefix}{name}.")]
