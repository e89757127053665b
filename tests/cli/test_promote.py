"""The verbs promote, rollback, registry and select: output and exit status."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import mlflow
import pytest

from small_model import table, write_model
from store import fresh_store
from synthetic import CONV
from tilewise.cli.main import EXIT_REFUSED, main
from tilewise.conf_files import conf_dir
from tilewise.registry import registry_session, settle_history

pytestmark = pytest.mark.long

PROBLEM = "problem={N:8,C:64,K:64,G:1,Hi:28,Wi:28,Y:3,X:3,pad_h:1,pad_w:1}"
FLOORS = ["gate.floors.grouped_conv.forward.mean=80", "gate.floors.grouped_conv.forward.p10=50", "gate.min_problems=5"]
FLOORS += ["gate.override.reason='small [tables] of tests'"]


class Shell:
    """A project folder with measurements and a registry."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.uri = fresh_store(folder / "store")
        self._capsys = capsys
        table().to_parquet(folder / "data.parquet")

    def __call__(
        self, verb: str, *overrides: str, action: str | None = None, uri: str | None = None
    ) -> tuple[int, str, str]:
        """Run a command; return exit status, stdout and stderr."""
        self._capsys.readouterr()
        code = main([verb, *([action] if action else []), f"tracking.uri={uri or self.uri}", *overrides])
        return code, *self._capsys.readouterr()

    def promote(self, *overrides: str, sign: float = 1.0, note: str = "") -> tuple[int, str, str]:
        write_model(self.folder / "models" / CONV, sign=sign, note=note)
        return self("promote", "data=data.parquet", *FLOORS, *overrides)

    def arguments(self, sign: float) -> list[str]:
        """Return the arguments that promote a new model."""
        write_model(self.folder / "models" / CONV, sign=sign)
        return [f"tracking.uri={self.uri}", "data=data.parquet", *FLOORS]

    @property
    def record(self) -> dict[str, object]:
        return dict(json.loads((self.folder / "reports" / CONV / "promotion.json").read_text()))


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out plots, which take longer than the rest of a promotion."""
    monkeypatch.setattr("tilewise.registry.promotion._promote.log_plots", lambda *_: None)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)


class TestPromote:
    def test_promoted(self, shell: Shell) -> None:
        code, out, err = shell.promote()
        assert (code, err) == (0, "")
        assert "version 1" in out
        assert "promoted, judged on" in out
        assert shell.record["outcome"] == "promoted"

    def test_an_override_is_printed_as_it_is(self, shell: Shell) -> None:
        _, out, _ = shell.promote()
        assert "OVERRIDE (small [tables] of tests): gate.floor_mean is 80 instead of 90" in out

    def test_the_command_line_cannot_allow_what_the_file_forbids(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = shutil.copytree(conf_dir(), shell.folder / "conf")
        file = own / "gate" / "default.yaml"
        file.write_text(file.read_text().replace("allowed: true", "allowed: false"))
        monkeypatch.setenv("TILEWISE_CONF", str(own))
        code, _, err = shell.promote("gate.override.allowed=true")
        assert (code, "overrides are forbidden here" in err) == (2, True)

    def test_a_configuration_of_one_s_own_does_not_loosen_the_limits(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = shutil.copytree(conf_dir(), shell.folder / "conf")
        file = own / "gate" / "default.yaml"
        file.write_text(file.read_text().replace("mean_drop: 0.5", "mean_drop: 50"))
        monkeypatch.setenv("TILEWISE_CONF", str(own))
        code, _, err = shell.promote("gate.override.reason=''")
        assert (code, "gate.mean_drop is 50 instead of 0.5" in err) == (2, True)

    @pytest.mark.parametrize(("sign", "status"), [(1.0, 0), (-1.0, EXIT_REFUSED)])
    def test_a_closed_pipe_does_not_change_the_status(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch, sign: float, status: int
    ) -> None:
        class Closed(io.StringIO):
            def write(self, text: str) -> int:
                if text:
                    raise BrokenPipeError("the reader has closed the pipe")
                return 0

        monkeypatch.setattr("sys.stdout", Closed())
        assert main(["promote", *shell.arguments(sign=sign)]) == status
        assert shell.record["outcome"] == ("refused" if status else "promoted")

    def test_again(self, shell: Shell) -> None:
        shell.promote()
        code, out, err = shell.promote()
        assert (code, err) == (0, "")
        assert "in production already" in out

    def test_refused_says_why_and_exits_with_3(self, shell: Shell) -> None:
        shell.promote()
        code, out, err = shell.promote(sign=-1.0)
        assert code == EXIT_REFUSED == 3
        assert "NO" in out
        assert "->" in out  # the regressed problems
        assert "layout=" not in out, "dimensions at their defaults are left out, as on all other pages"
        assert out.count(f"{CONV} version 2") == 2, "the title and the head of the reasons"
        assert err.startswith(f"tilewise: refused: {CONV} version 2")
        assert "mean efficiency" in err
        assert shell.record["outcome"] == "refused"
        reasons = shell.record["reasons"]
        assert isinstance(reasons, list)
        assert [reason in err for reason in reasons] == [i < 4 for i in range(len(reasons))]
        if len(reasons) > 4:
            assert f"and for {len(reasons) - 4} more reasons, see " in err

    @pytest.mark.parametrize(
        ("override", "code", "message"),
        [
            ("model_dir=nowhere", 2, "model_dir=nowhere: no such file or folder"),
            ("data=nowhere.parquet", 2, "nowhere.parquet"),
            ("tracking.uri=http://127.0.0.1:9", 1, "does not answer; start it, or set tracking.uri"),
            ("holdout.fraction=0.5", 2, "was trained on"),
            ("gate.override.reason=''", 2, "gate.floor_mean is 80 instead of 90"),
            ("gate.override.allowed=false", 2, "overrides are forbidden here"),
            ("gate.min_problems=50", 2, "at least 50 holdout problems"),
            ("gate.mean_drop=-1", 2, "mean_drop must be a number from 0 to 100, got -1"),
            ("reports=data.parquet/reports", 2, "reports must be a folder that can be made and written"),
        ],
    )
    def test_mistakes_are_one_line(self, shell: Shell, override: str, code: int, message: str) -> None:
        status, _, err = shell.promote(override)
        assert status == code
        assert message in err
        assert err.count("\n") == 1


class TestSelect:
    def test_by_the_model_in_production(self, shell: Shell) -> None:
        shell.promote()
        code, out, err = shell("select", PROBLEM)
        answer = json.loads(out)
        assert (code, err) == (0, "")
        assert answer["why"] == "model"
        assert answer["predicted_tflops"] > 0
        assert answer["kernel_name"].startswith("grouped_conv_forward_bf16_")
        assert (answer["model_version"], answer["kernel_count"], len(answer["ranking"])) == (1, 24, 5)

    def test_into_a_file(self, shell: Shell) -> None:
        shell.promote()
        code, out, _ = shell("select", PROBLEM, "output=answer.json")
        assert (code, out) == (0, "")
        assert json.loads((shell.folder / "answer.json").read_text())["target"] == CONV

    def test_before_anything_was_promoted_the_default_kernel(self, shell: Shell) -> None:
        code, out, err = shell("select", PROBLEM)
        assert code == 0
        assert json.loads(out)["why"] == "fallback"
        assert "no model, so the default kernel is taken" in err

    def test_offline_by_the_last_good_copy(self, shell: Shell) -> None:
        shell.promote()
        _, online, _ = shell("select", PROBLEM)
        (shell.folder / "store" / "mlflow.db").write_bytes(b"x" * 4096)
        code, offline, _ = shell("select", PROBLEM)
        assert (code, offline) == (0, online)

    @pytest.mark.parametrize(
        ("overrides", "code", "message"),
        [
            ([], 2, "problem: missing; give its dimensions"),
            (["problem={N:8}"], 2, "C: missing; grouped_conv needs it"),
            ([PROBLEM, "target=nonsense"], 2, "'nonsense' is not a target"),
            ([PROBLEM, "tracking.uri=http://127.0.0.1:9"], 1, "http://127.0.0.1:9"),
        ],
    )
    def test_mistakes_are_one_line(self, shell: Shell, overrides: list[str], code: int, message: str) -> None:
        status, out, err = shell("select", *overrides)
        assert (status, out) == (code, "")
        assert message in err
        assert err.count("tilewise: error:") == 1
        assert "Traceback" not in err


class TestRollbackAndRegistry:
    def test_there_and_back(self, shell: Shell) -> None:
        shell.promote()
        shell.promote(note="second")
        code, out, _ = shell("rollback", "reason='slow on depthwise'")
        assert code == 0
        assert "version 1" in out
        assert "instead of version 2" in out
        code, out, _ = shell("registry")
        assert code == 0
        assert "rolled back" in out
        code, _, err = shell.promote(note="second")
        assert code == EXIT_REFUSED
        assert "rolled back from production: slow on depthwise" in err
        assert shell("rollback", "version=2")[0] == 0
        assert shell.promote(note="second")[0] == 0

    def test_everything_about_a_version(self, shell: Shell) -> None:
        shell.promote()
        shell.promote(note="second")
        code, out, err = shell("registry", action="show")
        assert (code, err) == (0, "")
        assert "version 2" in out
        assert "candidate, production" in out
        assert "Selects among 24 kernels" in out
        assert f"data_hash: {'d' * 64}" in out
        assert "promoted, instead of 1: not worse than production" in out
        _, out, _ = shell("registry", "version=1", action="show")
        assert "replaced by 2 (promoted)" in out

    def test_differences_of_two_versions(self, shell: Shell) -> None:
        shell.promote()
        write_model(shell.folder / "models" / CONV, trees=61)
        shell("promote", "data=data.parquet", *FLOORS)
        code, out, err = shell("registry", "a=1", "b=production", action="diff")
        assert (code, err) == (0, "")
        assert re.search(r"parameters │ n_estimators │ +60 │ +61", out)
        assert "mean_efficiency" not in out  # both say 0.9
        code, out, _ = shell("registry", "a=1", "b=1", action="diff")
        assert (code, "nothing differs" in out) == (0, True)

    @pytest.mark.parametrize(
        ("action", "override", "message"),
        [
            ("show", "version=7", "has no version 7; it has 1"),
            ("show", "version=0", "has no version 0; it has 1"),
            ("show", "version='\N{SUPERSCRIPT TWO}'", "is not a version; give a number"),
            ("diff", "a=0", "has no version 0; it has 1"),
            ("show", "version=best", "'best' is not a version; give a number, production, candidate or previous"),
            ("diff", "b=previous", "has no version previous"),
            ("show", "target=gemm_universal_fp8_sm90", "is not registered; known targets are"),
            ("hide", "version=1", "expected one of list, show, diff, check"),
        ],
    )
    def test_mistakes_are_one_line(self, shell: Shell, action: str, override: str, message: str) -> None:
        shell.promote()
        code, _, err = shell("registry", override, action=action)
        assert code == 2
        assert message in err
        assert err.count("\n") == 1

    def test_a_production_past_the_gate_is_told(self, shell: Shell) -> None:
        shell.promote()
        code, out, err = shell("registry", action="check")
        assert (code, err) == (0, "")
        assert "version 1" in out
        assert "promoted by the gate, its files are sound" in out
        shell.promote(sign=-1.0)
        with registry_session(shell.uri):
            mlflow.MlflowClient().set_registered_model_alias(CONV, "production", "2")
        code, out, err = shell("registry", action="check")
        assert code == 2
        assert "nothing shows that it passed the gate: the gate never promoted it" in err
        assert "WARNING" in shell("registry")[1]
        code, _, err = shell("rollback", "version=1")
        assert (code, err) == (0, "")
        assert shell("registry", action="check")[0] == 0

    @pytest.mark.parametrize("removed", ["alias", "version", "model"])
    def test_a_production_that_was_removed_is_told(self, shell: Shell, removed: str) -> None:
        shell.promote()
        with registry_session(shell.uri):
            client = mlflow.MlflowClient()
            if removed == "model":
                client.delete_registered_model(CONV)
            elif removed == "version":
                client.delete_model_version(CONV, "1")
            else:
                client.delete_registered_model_alias(CONV, "production")
        code, out, err = shell("registry", action="check")
        assert code == 2
        for text in (out, err):
            assert f"{CONV}: the alias production is missing, and version 1 was in production last; set it in" in text

    @pytest.mark.parametrize(
        ("alias", "number", "said"),
        [
            ("production", 1, "names version 1, by the history it is 2"),
            ("previous", 2, "names version 2, by the history it is 1"),
            ("canary", 1, "names version 1, by the history it is not set"),
        ],
    )
    def test_an_alias_moved_by_hand_is_told(self, shell: Shell, alias: str, number: int, said: str) -> None:
        """Dispatchers serve such a production, as it passed the gate, but no command of tilewise decided that."""
        shell.promote()
        shell.promote(note="second")
        with registry_session(shell.uri):
            mlflow.MlflowClient().set_registered_model_alias(CONV, alias, str(number))
        code, _, err = shell("registry", action="check")
        assert (code, f"the alias {alias} was moved by hand: it {said}; " in err) == (2, True)
        if alias == "production":
            assert shell("rollback", "version=2")[0] == 0
            assert shell("registry", action="check")[0] == 0

    def test_an_alias_set_again_after_its_removal_was_noticed_is_sound(self, shell: Shell) -> None:
        shell.promote()
        with registry_session(shell.uri):
            mlflow.MlflowClient().delete_registered_model_alias(CONV, "production")
            settle_history(CONV)
            mlflow.MlflowClient().set_registered_model_alias(CONV, "production", "1")
        assert shell("registry", action="check")[0] == 0

    def test_the_model_of_another_team_is_not_checked(self, shell: Shell) -> None:
        shell.promote()
        with registry_session(shell.uri):
            client = mlflow.MlflowClient()
            client.create_registered_model("churn")
            client.create_model_version("churn", "s3://bucket/churn")
            client.set_registered_model_alias("churn", "production", "1")
        code, out, err = shell("registry", action="check")
        assert (code, err) == (0, "")
        assert "churn: not a model of tilewise, so it is not checked" in out

    def test_a_target_whose_marks_are_all_deleted_is_checked(self, shell: Shell) -> None:
        shell.promote()
        with registry_session(shell.uri):
            client = mlflow.MlflowClient()
            client.delete_registered_model(f"{CONV}.history")
            for tag in ("content_hash", "gate_decision", "history_entry"):
                client.delete_model_version_tag(CONV, "1", tag)
        assert shell("registry", action="check")[0] == 2

    def test_nothing_promoted_yet_is_no_fault(self, shell: Shell) -> None:
        shell.promote(sign=-1.0)
        code, out, err = shell("registry", action="check")
        assert (code, out, err) == (0, f"{CONV}: nothing is in production yet\n", "")

    @pytest.mark.parametrize("version", ["abc", "previous", "0", "-1", "'\N{SUPERSCRIPT TWO}'"])
    def test_a_rollback_to_no_number(self, shell: Shell, version: str) -> None:
        code, _, err = shell("rollback", f"version={version}")
        assert (code, err.count("\n")) == (2, 1)
        assert "version must be the number of a version, a whole number of 1 or more; without it, previous is" in err

    def test_damaged_files_in_production_are_told(self, shell: Shell) -> None:
        shell.promote()
        next((shell.folder / "store").rglob("model_tflops.lgbm.gz")).write_bytes(b"broken")
        code, _, err = shell("registry", action="check")
        assert (code, "changed or damaged after publishing" in err) == (2, True)

    def test_a_refused_version_is_not_rolled_back_to(self, shell: Shell) -> None:
        shell.promote()
        shell.promote(sign=-1.0)
        code, _, err = shell("rollback", "version=2")
        assert (code, "cannot be put back: " in err) == (2, True)

    def test_nothing_to_roll_back_to(self, shell: Shell) -> None:
        shell.promote()
        code, _, err = shell("rollback")
        assert code == 2
        assert "has no previous version" in err

    def test_an_empty_registry_says_so_and_makes_no_database(self, shell: Shell) -> None:
        nowhere = shell.folder / "none.db"
        code, _, err = shell("registry", uri=f"sqlite:///{nowhere}")
        assert code == 2
        assert "no model is registered" in err
        assert not nowhere.exists()
