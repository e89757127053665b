"""Every form of an override gives the same configuration, and a wrong one is refused in one clear line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from dvc.utils.hydra import compose_and_dump
from omegaconf import OmegaConf

from tilewise.arch import load_arch
from tilewise.cli import _tuned as tuned
from tilewise.cli.compose import _main, compose, expand, group_options, overrides_for, params_text, to_text
from tilewise.conf_files import conf_dir
from tilewise.errors import ConfigError
from tilewise.ops import Target
from tilewise.train import ModelSettings, settings_from_config

EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))
DEFAULT = ModelSettings()
PROBLEM = {"N": 1, "C": 2, "Y": 3}

# Overrides as `dvc exp run -S` passes them to Hydra.
SETTINGS = [
    [],
    ["variant=bwd_data"],
    ["op=gemm", "dtype=fp8", "arch=gfx950"],
    ["experiment=log1p", "model.num_leaves=9"],
    ["stages=all"],
    ["targets=[a,b]"],
    ["gate.floors.grouped_conv.forward.p10=null"],
    ["model.lambda_l2=1e-9", "tune.space.num_leaves=[3,4]"],
    ["problem={N:1,C:2,Y:3}"],
    ["arch.clock_mhz=1500"],
    ["+model.extra=1"],
    [r"data='a, b: \'c\' d=e\\'"],
]


def test_defaults_name_the_default_target() -> None:
    cfg = compose()
    assert cfg.target == "grouped_conv_forward_bf16_sm90"
    assert cfg.model_dir == f"models/{cfg.target}"
    assert cfg.tracking.experiment == cfg.target
    assert list(cfg.targets) == [cfg.target]


@pytest.mark.long
@pytest.mark.parametrize("overrides", SETTINGS, ids=" ".join)
def test_params_file_reproduces_its_configuration(overrides: list[str], tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    compose_and_dump(params, str(conf_dir()), None, "config", ".", overrides)  # the call of `dvc exp run`
    assert params_text(overrides) == params.read_text()
    assert params_text([f"params={params}"]) == params.read_text()
    assert compose([f"params={params}"]) == compose(overrides)


@pytest.mark.long
def test_overrides_come_on_top_of_a_params_file(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text(params_text(["model.num_leaves=9", "tracking.experiment=mine", "arch.clock_mhz=1500"]))
    cfg = compose([f"params={params}", "target=gemm_universal_fp8_gfx950", "n_splits=3"])
    assert cfg.n_splits == 3
    assert cfg.model.num_leaves == 9
    assert cfg.tracking.experiment == "mine"  # set in the file
    assert cfg.model_dir == "models/gemm_universal_fp8_gfx950"  # derived from the new target
    assert cfg.arch.clock_mhz == load_arch("gfx950").clock_mhz  # another arch was chosen


@pytest.mark.long
def test_the_same_target_on_top_of_a_params_file_changes_nothing(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text(params_text(["variant=bwd_data", "arch.clock_mhz=1500"]))
    assert params_text([f"params={params}", "target=grouped_conv_bwd_data_bf16_sm90"]) == params.read_text()


@pytest.mark.long
def test_a_group_chosen_on_top_of_a_params_file_is_not_taken_from_it(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text(params_text(["model.num_leaves=9"]))
    assert to_text(compose([f"params={params}", "model=default"])) == to_text(compose(["model=default"]))


@pytest.mark.long
@pytest.mark.parametrize("arch", group_options()["arch"])
@pytest.mark.parametrize("dtype", group_options()["dtype"])
def test_target_chooses_its_four_groups(arch: str, dtype: str) -> None:
    target = Target("gemm", "universal", dtype, arch)
    cfg = compose([f"target={target.name}"])
    assert cfg.target == target.name
    assert (cfg.op.name, cfg.variant.name, cfg.dtype.name, cfg.arch.name) == ("gemm", "universal", dtype, arch)
    assert cfg.arch.device == load_arch(arch).device


def test_gemm_brings_its_only_variant() -> None:
    assert compose(["op=gemm"]).variant.name == "universal"


@pytest.mark.parametrize("text", ["problem={N:1,C:2,Y:3}", 'problem={"N": 1, "C": 2, "Y": 3}'])
def test_problem_in_hydra_or_json(text: str) -> None:
    assert dict(compose([text]).problem) == PROBLEM


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_composes_and_opens_with_its_command(name: str) -> None:
    cfg = compose([f"experiment={name}"])
    assert to_text(cfg) != to_text(compose()), "an experiment that changes nothing"
    package, command = (conf_dir() / "experiment" / f"{name}.yaml").read_text().splitlines()[:2]
    assert package == "# @package _global_"
    assert command.startswith("# tilewise ")
    assert f"experiment={name}" in command


@pytest.mark.long
@pytest.mark.parametrize("group", sorted(group_options()))
def test_every_option_of_every_group_composes(group: str) -> None:
    for option in group_options()[group]:
        beside = ["op=gemm"] if option == "universal" else []
        compose([f"{group}={option}", *beside])


@pytest.mark.long
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("n_splits", "'n_splits' is not an override; expected key=value"),
        ("n_split=3", "'n_split' is not a key of the configuration; did you mean 'n_splits'"),
        ("zzzzzz=3", "'zzzzzz' is not a key of the configuration; --cfg prints all keys"),
        ("model.num_leavs=3", "did you mean 'model.num_leaves'"),
        ("variant=fwd", "variant=fwd is unknown; variant has bwd_data, bwd_weight, forward, universal"),
        ("variant=universal", "variant 'universal' is unknown; grouped_conv has"),
        ("n_splits=abc", "n_splits must be a whole number, got 'abc'"),
        ("n_splits=2.5", "n_splits must be a whole number, got 2.5"),
        ("n_splits=true", "n_splits must be a whole number, got True"),
        ("n_splits=null", "n_splits must be a whole number, got None"),
        ("model.learning_rate=fast", "model.learning_rate must be a number, got 'fast'"),
        ("holdout=3", r"holdout must be a mapping such as 'holdout=\{a:1\}', got 3"),
        ("targets=all", r"targets must be a list such as 'targets=\[1,2\]', got 'all'"),
        ("data=7", "data must be a text, got 7"),
        ("output=7", "output must be a text, got 7; quote it twice if it is one: 'output=\"7\"'"),
        ("tracking.uri=[x]", r"tracking\.uri must be a text, got \['x'\]"),
        ("input=[1]", r"input must be a text or a list of texts, got \[1\]"),
        ("version=1.5", "version must be a text or a whole number, got 1.5"),
        ("problem={N:1", r"cannot read 'problem=\{N:1'"),
        ("data=a=b", "cannot read 'data=a=b'.*put special characters in quotes"),
        ("target=conv", "'conv' is not a target; expected"),
        ("target=gemm_universal_bf16_sm80", "arch=sm80 is unknown; arch has gfx90a, gfx942, gfx950, sm90"),
        ("data=${nowhere}", "Interpolation key 'nowhere' not found"),
    ],
)
def test_a_wrong_override_is_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        compose([override])
    assert "\n" not in str(caught.value)


def test_a_whole_number_is_a_number() -> None:
    assert compose(["model.learning_rate=1"]).model.learning_rate == 1


def test_a_floor_of_the_gate_may_be_taken_away() -> None:
    assert compose(["gate.floors.grouped_conv.forward.mean=null"]).gate.floors.grouped_conv.forward.mean is None


def test_target_and_its_parts_may_not_contradict() -> None:
    with pytest.raises(ConfigError, match="means dtype=bf16, but dtype=fp16 is set, too; remove one of them"):
        compose(["target=gemm_universal_bf16_sm90", "dtype=fp16"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read it"),
        ("a: [", "cannot read it"),
        ("", "not a composed configuration"),
        ("- 1", "not a composed configuration"),
        ("op: {name: gemm}", "not a composed configuration"),
    ],
)
def test_a_wrong_params_file_is_named(content: str | None, message: str, tmp_path: Path) -> None:
    params = tmp_path / "p.yaml"
    if content is not None:
        params.write_text(content)
    with pytest.raises(ConfigError, match=f"p.yaml: {message}"):
        compose([f"params={params}"])


def test_expand_leaves_plain_overrides_alone() -> None:
    assert expand(["+a=1", "~tune.space", "n_splits=3"]) == ["+a=1", "~tune.space", "n_splits=3"]


def test_configuration_is_read_only() -> None:
    with pytest.raises(Exception, match="read-only"):
        compose().n_splits = 3


class TestTuned:
    """Tuned settings of a target replace defaults, never values that the caller sets."""

    TARGET = "gemm_universal_bf16_sm90"

    @pytest.fixture(autouse=True)
    def _conf(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shutil.copytree(conf_dir(), tmp_path / "conf")
        monkeypatch.setenv("TILEWISE_CONF", str(tmp_path / "conf"))
        for path in (tmp_path / "conf" / "tuned").glob("*_*.yaml"):
            path.unlink()
        default = cast("dict[str, Any]", tuned.default_values())
        self.default: int = default["num_leaves"]
        model = ModelSettings(**default | {"num_leaves": 99, "lambda_l2": 0.25, "extra_labels": ()})
        written = tuned.write_tuned(self.TARGET, model, "study: mine, 40 trials\ncommand: tilewise train")
        assert written == tuned.tuned_path(self.TARGET)

    def test_the_file_holds_only_differences_and_their_origin(self) -> None:
        assert tuned.tuned_path(self.TARGET).read_text() == (
            f"# @package model\n# Settings that tuning found for {self.TARGET}.\n# study: mine, 40 trials\n"
            "# command: tilewise train\nnum_leaves: 99\nlambda_l2: 0.25\n"
        )

    @pytest.mark.parametrize(
        "choice", [["op=gemm"], ["target=gemm_universal_bf16_sm90"], ["op=gemm", "tuned=gemm_universal_bf16_sm90"]]
    )
    def test_its_target_takes_it(self, choice: list[str]) -> None:
        model = compose(choice).model
        assert (model.num_leaves, model.lambda_l2) == (99, 0.25)
        assert model.max_bin == tuned.default_values()["max_bin"]

    def test_another_target_does_not(self) -> None:
        assert compose(["op=gemm", "dtype=fp16"]).model.num_leaves == self.default
        assert compose(["op=gemm", "dtype=fp16", f"tuned={self.TARGET}"]).model.num_leaves == 99  # unless chosen

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("override", "leaves", "lambda_l2"),
        [
            ("tuned=none", None, DEFAULT.lambda_l2),
            ("model.num_leaves=31", 31, 0.25),
            (f"model.num_leaves={DEFAULT.num_leaves}", DEFAULT.num_leaves, 0.25),
            ("experiment=small", 7, 0.25),
        ],
    )
    def test_a_set_value_wins(self, override: str, leaves: int | None, lambda_l2: float) -> None:
        experiments = tuned.tuned_path(self.TARGET).parents[1] / "experiment"
        (experiments / "small.yaml").write_text("# @package _global_\nmodel:\n  num_leaves: 7\n")
        model = compose(["op=gemm", override]).model
        assert (model.num_leaves, model.lambda_l2) == (leaves or self.default, lambda_l2)

    @pytest.mark.long
    def test_one_params_file_serves_all_targets(self, tmp_path: Path) -> None:
        params = tmp_path / "params.yaml"
        params.write_text(params_text())  # of another target
        assert compose([f"params={params}", f"target={self.TARGET}"]).model.num_leaves == 99
        assert compose([f"params={params}", "target=gemm_universal_fp16_sm90"]).model.num_leaves == self.default
        params.write_text(params_text(["op=gemm"]))
        assert "num_leaves: 99" in params.read_text()  # as DVC and MLflow show it
        assert compose([f"params={params}"]).model.num_leaves == 99
        for asked in (self.default, 31):  # also the default is an explicit value
            params.write_text(params_text(["op=gemm", f"model.num_leaves={asked}"]))
            assert compose([f"params={params}", f"target={self.TARGET}"]).model.num_leaves == asked
        params.write_text(params_text(["model.num_leaves=31"]))  # as `dvc exp run -S model.num_leaves=31` does
        assert compose([f"params={params}", f"target={self.TARGET}"]).model.num_leaves == 31

    @pytest.mark.long
    def test_dvc_sees_a_change_of_the_targets_own_settings(self, tmp_path: Path) -> None:
        out, params = tmp_path / "settings.yaml", tmp_path / "params.yaml"
        params.write_text(params_text())
        texts = {}
        for target in (self.TARGET, "gemm_universal_fp16_sm90"):
            _main([f"params={params}", f"target={target}", "--section", "model", "-o", str(out)])
            texts[target] = out.read_text()
        assert "num_leaves: 99\n" in texts[self.TARGET]
        assert texts["gemm_universal_fp16_sm90"] == to_text(compose(["tuned=none"]).model)

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("overrides", "searched"),
        [
            ([], True),
            (["model.num_leaves=31"], False),
            ([f"model.num_leaves={DEFAULT.num_leaves}"], False),
            (["experiment=small"], False),
            (["model.num_leaves=31", "tune.space.num_leaves=[15,63]"], True),
            (["model.lambda_l2=1.0"], True),
        ],
    )
    def test_a_set_value_is_not_searched(self, overrides: list[str], searched: bool, tmp_path: Path) -> None:
        experiments = tuned.tuned_path(self.TARGET).parents[1] / "experiment"
        (experiments / "small.yaml").write_text("# @package _global_\nmodel:\n  num_leaves: 7\n")
        assert (compose(["op=gemm", *overrides]).tune.space.num_leaves is not None) == searched
        params = tmp_path / "params.yaml"
        params.write_text(params_text(["op=gemm", *overrides]))
        assert (compose([f"params={params}"]).tune.space.num_leaves is not None) == searched

    def test_nothing_new_keeps_no_file(self) -> None:
        assert tuned.write_tuned(self.TARGET, ModelSettings(), "study") is None
        assert not tuned.tuned_path(self.TARGET).exists()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("num_leafs: 3", r"sm90.yaml: 'num_leafs' is not a setting of the model; known are label, "),
            ("- 3", "sm90.yaml: not a mapping"),
            ("a: [", "sm90.yaml: cannot read it"),
        ],
    )
    def test_a_wrong_file_is_named(self, text: str, message: str) -> None:
        tuned.tuned_path(self.TARGET).write_text(text)
        with pytest.raises(ConfigError, match=message):
            compose(["op=gemm"])


@pytest.mark.long
def test_overrides_for_give_a_configuration_again() -> None:
    overrides = ["op=gemm", "model.num_leaves=9", "tune.space.num_leaves=[3,4]", "tune.storage='sqlite:///a b.db'"]
    cfg = compose([*overrides, "tuned=none"])
    again = overrides_for(cfg, ("model", "tune"))
    assert again[:2] == ["target=gemm_universal_bf16_sm90", "tuned=none"]
    assert compose(again) == cfg


@pytest.mark.long
@pytest.mark.parametrize("path", sorted((conf_dir() / "tuned").glob("*_*.yaml")), ids=lambda path: path.stem)
def test_committed_settings_are_of_a_target_and_name_their_study(path: Path) -> None:
    assert Target.parse(path.stem).name == path.stem
    assert tuned.tuned_values(path.stem), "a file without a difference to the default"
    comment = path.read_text()
    assert all(f"# {word}: " in comment for word in ("study", "data", "command"))
    settings_from_config(OmegaConf.to_container(compose([f"target={path.stem}"])))  # type: ignore[arg-type]
