"""The contract of the command line: verbs, errors, exit status, and light imports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

import tilewise
from tilewise.cli._verbs import COMMON, VERBS
from tilewise.cli.main import main, reporting_errors
from tilewise.conf_files import conf_dir
from tilewise.dispatch.logs import count_requests
from tilewise.errors import MeasurementError, PromotionRefusedError, UsageError
from tilewise.ops import Target

PROBLEM = "problem={N:8,C:64,K:64,G:1,Hi:7,Wi:7,Y:1,X:1}"
NOWHERE = "http://127.0.0.1:9"  # the discard port: nothing listens
BUILT = list(VERBS)

Runs = list[DictConfig]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Replace `train` by a function that records its configurations."""
    runs: Runs = []
    module = types.ModuleType("tilewise.cli.models.train")
    module.run = runs.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tilewise.cli.models.train", module)
    return runs


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^  {name} +{verb.summary}", out, re.MULTILINE) for name, verb in VERBS.items())


def test_no_verb_shows_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "verbs:" in capsys.readouterr().out


@pytest.mark.parametrize("verb", BUILT)
def test_help_of_a_verb_is_the_docstring_of_its_module(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    source = (Path(tilewise.__file__).parent / "cli" / VERBS[verb].package / f"{verb}.py").read_text()
    first_line = source.removeprefix('"""').splitlines()[0].removesuffix('"""')
    assert first_line in out
    assert "variant     bwd_data, bwd_weight, forward, universal" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tilewise {tilewise.__version__}\n"


def test_cfg_prints_the_configuration_and_does_not_run(recorded: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--cfg", "n_splits=7"]) == 0
    assert "n_splits: 7\n" in capsys.readouterr().out
    assert recorded == []


def test_overrides_reach_the_verb(recorded: Runs) -> None:
    assert main(["train", "variant=bwd_data", "model.num_leaves=9"]) == 0
    (cfg,) = recorded
    assert (cfg.target, cfg.model.num_leaves) == ("grouped_conv_bwd_data_bf16_sm90", 9)


@pytest.mark.long
def test_parameters_of_mlflow_run_reach_the_verb(recorded: Runs) -> None:
    assert main(["train", "variant=bwd_data", "--tune.n_trials", "0", "--model.label=log1p"]) == 0
    (cfg,) = recorded
    assert (cfg.variant.name, cfg.tune.n_trials, cfg.model.label) == ("bwd_data", 0, "log1p")


def test_an_action_reaches_the_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: Runs = []
    module = types.ModuleType("tilewise.cli.measuring.data")
    module.run = runs.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tilewise.cli.measuring.data", module)
    assert main(["data", "describe", "data=data"]) == 0
    assert runs[0].action == "describe"


@pytest.mark.long
def test_multirun_runs_every_combination(
    recorded: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # so that the value of main() is undone
    monkeypatch.setattr(sys, "argv", sys.argv)
    params = tmp_path / "params.yaml"
    assert main(["train", "--cfg", "seed=5"]) == 0
    params.write_text(capsys.readouterr().out)
    targets = "target=grouped_conv_forward_bf16_sm90,gemm_universal_fp8_gfx950"
    assert main(["train", "-m", f"params={params}", targets, "n_splits=3,4"]) == 0
    assert [(cfg.op.name, cfg.arch.name, cfg.n_splits, cfg.seed) for cfg in recorded] == [
        ("grouped_conv", "sm90", 3, 5),
        ("grouped_conv", "sm90", 4, 5),
        ("gemm", "gfx950", 3, 5),
        ("gemm", "gfx950", 4, 5),
    ]
    assert main(["train", "-m", "variant=fwd,bwd_data"]) == 2
    assert "variant=fwd is unknown; variant has" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["trian"], "unknown verb 'trian'; did you mean 'train'?"),
        (["ingest", "input=bad.parquet", "op=toy", "problem=M,N"], "in brackets, such as 'problem=[M,N,K]', got M,N"),
        (["measure"], "unknown verb 'measure'; known are collect, "),
        (["train", "hello"], "train: unexpected 'hello'; expected key=value"),
        (["data", "describ"], "data: unexpected 'describ'; expected one of prepare, "),
        (["train", "n_split=3"], "'n_split' is not a key of the configuration; did you mean 'n_splits'?"),
        (["train", "variant=fwd"], "variant=fwd is unknown; variant has"),
        (["train", "n_splits=two"], "n_splits must be a whole number, got 'two'"),
        (["train", "model.num_leaves=1"], "model.num_leaves must be an integer of at least 2, got 1"),
        (["train", "data=nope"], "nope: no such file or folder"),
        (["train", "data=bad.parquet"], "bad.parquet: not a readable parquet file"),
        (["data"], "data needs an action"),
        (["compare", "a=data", "b=data", "seed=-1"], "seed must be a whole number of at least 0, got -1"),
        (["data", "prepare", "input=bad.parquet"], "bad.parquet: not a readable parquet file"),
        (["evaluate", "model_dir=nope"], "model_dir=nope: no such file or folder; `tilewise train` writes one"),
        (["evaluate", "model_dir=half"], "half/model_tflops.lgbm.gz: missing"),
        (["promote", "model_dir=nope"], "model_dir=nope: no such file or folder"),
        (["select"], "problem: missing; give its dimensions"),
        (["select", "problem={N:8,C:64,K:65,G:4,Hi:7,Wi:7,Y:1,X:1}"], "K: must be divisible by G = 4, got 65"),
        (
            ["select", "problem={M:64,N:64,K:64}", "target=gemm_universal_fp8_gfx950"],
            "no pool for gemm_universal_fp8_gfx950",
        ),
        (["registry"], "no model is registered at"),
        (["rollback"], "nothing in production"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_of_the_caller_is_one_clear_line(
    command: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.parquet").write_text("no parquet")
    (tmp_path / "half").mkdir()
    assert main(command) == 2
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith("tilewise: error: ")
    assert message in last_line


@pytest.mark.parametrize("command", [["select", PROBLEM], ["registry"], ["rollback"]], ids=" ".join)
def test_a_server_that_is_away_is_named(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, f"tracking.uri={NOWHERE}"]) == 1
    assert re.search(f"^tilewise: error: .*{NOWHERE}", capsys.readouterr().err, re.MULTILINE)


def _raise(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UsageError("rule,\n  value"), 2, "tilewise: error: rule, value"),
        (MeasurementError("no GPU"), 1, "tilewise: error: no GPU"),
        (PromotionRefusedError("too slow"), 3, "tilewise: refused: too slow"),
        (PermissionError(13, "Permission denied", "x"), 1, "tilewise: error: [Errno 13] Permission denied: 'x'"),
        (
            ZeroDivisionError("division by zero"),
            1,
            "tilewise: error: ZeroDivisionError: division by zero (a fault of tilewise; TILEWISE_DEBUG=1 shows where)",
        ),
        (KeyboardInterrupt(), 130, "tilewise: interrupted"),
    ],
)
def test_an_error_has_its_status_and_its_line(
    error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reporting_errors(_raise(error)) == status
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.parametrize(("module", "brief"), [("tilewise/collect/_coordinator.py", True), ("numpy/core.py", False)])
def test_a_warning_of_tilewise_is_one_line(module: str, brief: bool) -> None:
    place = str(Path(tilewise.__file__).parents[1] / module)
    shown: list[str] = []
    reporting_errors(lambda: shown.append(warnings.formatwarning("no GPU", UserWarning, place, 7, "code()")))
    assert shown == ["tilewise: no GPU\n" if brief else f"{place}:7: UserWarning: no GPU\n  code()\n"]


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError, match="by zero"):
        reporting_errors(_raise(ZeroDivisionError("by zero")))


@pytest.mark.long
def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m tilewise train --cfg | head -1", shell=True, capture_output=True, text=True, env=_env()
    )
    assert (done.stdout, done.stderr) == ("dtype:\n", "")


@pytest.mark.long
@pytest.mark.parametrize("module", ["tilewise", "tilewise.cli.main"])
def test_module_runs_like_the_console_script(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "train", "foo=1"], capture_output=True, text=True, env=_env())
    assert done.returncode == 2
    assert done.stderr == "tilewise: error: 'foo' is not a key of the configuration; --cfg prints all keys\n"


@pytest.mark.long
def test_selecting_imports_no_training_library() -> None:
    code = (
        "import sys; from tilewise.cli.main import main; status = main(sys.argv[1:]);"
        "print(status, sorted({'lightgbm', 'optuna', 'matplotlib', 'dvc', 'torch', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, "select", PROBLEM], capture_output=True, text=True, env=_env())
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


def test_a_selection_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_RECORD", str(tmp_path / "requests.jsonl"))
    assert main(["select", PROBLEM]) == 0
    (count,) = count_requests(tmp_path / "requests.jsonl", Target.parse("grouped_conv_forward_bf16_sm90")).values()
    assert count == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ["train", "target=nonsense"],
        ["train", "n_split=3"],
        ["train", "data=nope"],
        ["train", "model.num_leaves=1"],
        ["evaluate", "model_dir=nope"],
        ["promote", "gate.mean_drop=-1"],
        ["select", "problem={N:8}"],
    ],
    ids=" ".join,
)
def test_a_mistake_is_answered_before_heavy_imports(words: list[str]) -> None:
    heavy = "{'pandas', 'mlflow', 'lightgbm', 'sklearn', 'matplotlib', 'optuna', 'pyarrow', 'torch'}"
    code = f"import sys; from tilewise.cli.main import main; print(main(sys.argv[1:]), {heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=_env())
    assert done.stdout == "2 set()\n", done.stderr


class TestHydrasOptions:
    """Hydra's own options, on the composed configuration."""

    @pytest.mark.parametrize("words", [["--cfg"], ["--cfg", "job"], ["-c", "job"], ["--cfg=job"]], ids=" ".join)
    def test_cfg_job_is_the_default(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", *words, "n_splits=7"]) == 0
        assert "n_splits: 7\n" in capsys.readouterr().out

    def test_package_prints_a_part(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", "--cfg", "job", "--package", "tune.space"]) == 0
        assert capsys.readouterr().out.startswith("num_leaves:\n")
        assert main(["train", "--cfg", "--package", "n_splits"]) == 2
        assert "--package must be a key with keys below it, such as model; got 'n_splits'" in capsys.readouterr().err

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("words", "printed"),
        [
            (["--cfg", "hydra", "--package", "hydra.job"], "name: tilewise"),
            (["--cfg", "all", "--resolve", "target=gemm_universal_fp8_sm90"], "target: gemm_universal_fp8_sm90"),
            (["--info", "defaults"], "| variant/forward"),
            (["--info", "defaults-tree", "variant=bwd_data"], "variant: bwd_data"),
            (["-i", "searchpath"], "Config search path"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_hydra_answers(
        self, words: list[str], printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("HYDRA_FULL_ERROR", "")
        monkeypatch.setattr(sys, "argv", sys.argv)
        assert main(["train", *words]) == 0
        assert printed in capsys.readouterr().out

    def test_an_unknown_value_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", "--cfg=everything"]) == 2
        assert "--cfg must be one of job, hydra, all, got 'everything'" in capsys.readouterr().err


def test_every_group_has_a_default() -> None:
    defaults = (conf_dir() / "config.yaml").read_text()
    for group in (path.name for path in conf_dir().iterdir() if path.is_dir()):
        assert re.search(rf"^  - (optional )?{group}: ", defaults, re.MULTILINE), group


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(tilewise.__file__).parents[1])}


class TestKeysOfAVerb:
    """A verb takes the keys that it reads, and refuses those that it would ignore."""

    @pytest.mark.parametrize(
        ("words", "key"),
        [
            (["select", "model.num_leaves=31", PROBLEM], "model.num_leaves"),
            (["evaluate", "filter=c.tile_n>64"], "filter"),
            (["rollback", "gate.mean_drop=5"], "gate.mean_drop"),
            (["cache", "list", "collect.devices=[0]"], "collect.devices"),
            (["registry", "list", "-m", "model.num_leaves=31,63"], "model.num_leaves"),
        ],
    )
    def test_refuses_a_key_that_it_would_ignore(
        self, words: list[str], key: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(words) == 2
        assert f"{words[0]} does not read '{key}'; it reads " in capsys.readouterr().err

    @pytest.mark.parametrize("verb", VERBS)
    def test_states_the_keys_that_its_module_reads(self, verb: str) -> None:
        module = Path(tilewise.__file__).parent / "cli" / VERBS[verb].package / f"{verb}.py"
        read = _keys_read_by(module, and_those_it_calls=False)
        stated = set(VERBS[verb].reads)
        missing = {key for key in read if not any(f"{key}.".startswith(f"{name}.") for name in (*stated, *COMMON))}
        assert missing - {"action"} == set()

    @pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "train"])  # train passes on all of cfg
    def test_reads_the_keys_that_it_states(self, verb: str) -> None:
        read = _keys_read_by(Path(tilewise.__file__).parent / "cli" / VERBS[verb].package / f"{verb}.py")
        assert [name for name in VERBS[verb].reads if not any(f"{key}.".startswith(f"{name}.") for key in read)] == []


def _keys_read_by(module: Path, *, and_those_it_calls: bool = True) -> set[str]:
    """Return the dotted keys of ``cfg`` in a verb's source, and in the sources of the verbs that it calls."""
    source = module.read_text()
    called = re.findall(r"from tilewise\.cli\.(\w+)\.(\w+) import", source) if and_those_it_calls else []
    keys = set(re.findall(r"\bcfg\.([a-z_]+(?:\.[a-z_]+)*)", source))
    keys |= {key for key in re.findall(r"_required\(cfg, \"(\w+)\"", source)}
    for package, name in called:
        keys |= _keys_read_by(module.parents[1] / package / f"{name}.py")
    return keys
