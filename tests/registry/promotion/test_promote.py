"""Promotion on a real registry: the version in production, the decision, and that repeating it changes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest

from gate.shadowed import file_of, observed
from small_model import table, write_model
from store import fresh_store
from synthetic import CONV, problems
from tilewise.dispatch import Dispatcher, Switches
from tilewise.errors import ArtefactError, ConfigError, DataError, RegistryUnavailableError, UnknownTargetError
from tilewise.gate import Observations, SliceRule, Thresholds, read_observations
from tilewise.ops import Target
from tilewise.registry import _history as history
from tilewise.registry import (
    find_by_alias,
    has_files,
    list_aliases,
    list_versions,
    registry_session,
    roll_back,
)
from tilewise.registry._history import commit_change, settle_history
from tilewise.registry.promotion import Override, Promotion, PromotionRules, promote, publish
from tilewise.registry.promotion import _promote as promotion_module
from tilewise.registry.promotion import judge as judge_candidate
from tilewise.registry.promotion._judge import fair_fraction
from tilewise.registry.promotion._log_decision import log_plots

# Seven held-out problems of which the small models know the answers: any floor between good and bad will do.
THRESHOLDS = Thresholds(floor_mean=80, floor_p10=50, min_problems=5)
OVERRIDE = Override("small tables of tests")
RULES = PromotionRules(THRESHOLDS, 0.18, override=OVERRIDE)
ANYTHING = Thresholds(min_problems=5)
GOOD: dict[str, Any] = {"trees": 60}
ALSO_GOOD: dict[str, Any] = {"trees": 60, "note": "second"}
BAD: dict[str, Any] = {"trees": 60, "sign": -1.0}

Promote = Callable[..., Promotion]


@pytest.fixture
def go(registry: str, tmp_path: Path) -> Promote:
    """Promote a model described by the arguments of :func:`small_model.write_model`."""

    def _go(model: dict[str, Any], thresholds: Thresholds = THRESHOLDS, frame: pd.DataFrame | None = None) -> Promotion:
        folder = write_model(tmp_path / "models" / CONV, **model)
        data = table() if frame is None else frame
        return promote(folder, data, PromotionRules(thresholds, 0.18, override=OVERRIDE), tmp_path / "reports")

    return _go


def raising(error: Exception) -> Callable[..., None]:
    """Return a function that raises `error`."""

    def _raise(*_: object, **__: object) -> None:
        raise error

    return _raise


def version_tags(number: int) -> dict[str, str]:
    return dict(mlflow.MlflowClient().get_model_version(CONV, str(number)).tags)


def state() -> dict[str, Any]:
    """Everything that promoting may change in a registry."""
    client = mlflow.MlflowClient()
    experiments = [e.experiment_id for e in client.search_experiments()]
    runs = client.search_runs(experiments)
    return {
        "aliases": list_aliases(CONV),
        "versions": list_versions(CONV),
        "runs": {r.info.run_id: (dict(r.data.metrics), dict(r.data.tags)) for r in runs},
        "history": [client.get_metric_history(r.info.run_id, k) for r in runs for k in sorted(r.data.metrics)],
    }


class TestReports:
    """The folder of the record."""

    def test_one_that_cannot_be_made_stops_before_any_work(self, registry: str, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.touch()
        folder = write_model(tmp_path / "models" / CONV, **GOOD)
        message = r"^reports must be a folder that can be made .* got '.*/file/reports': .*; name another one with"
        with pytest.raises(ConfigError, match=message):
            promote(folder, table(), RULES, file / "reports")
        assert list_versions(CONV) == []

    def test_a_full_disk_is_no_mistake_of_the_caller(
        self, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = write_model(tmp_path / "models" / CONV, **GOOD)
        full = raising(OSError(errno.ENOSPC, "No space left on device"))
        monkeypatch.setattr("tempfile.TemporaryFile", full)
        with pytest.raises(OSError, match="No space left"):
            promote(folder, table(), RULES, tmp_path / "reports")
        assert list_versions(CONV) == []

    @pytest.mark.long
    @pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), OSError(errno.ENOSPC, "No space left on device")])
    @pytest.mark.parametrize(("model", "outcome"), [(GOOD, "promoted"), (BAD, "refused")])
    def test_a_record_that_cannot_be_written_does_not_hide_the_outcome(
        self, go: Promote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, model: Any, outcome: str
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(promotion_module, "write_decision_text", raising(error))
            message = f"version 1 .*: {outcome}, but its record in .*reports cannot be written: {error.strerror}; "
            with pytest.warns(UserWarning, match=message):
                assert go(model).outcome == outcome
        assert list_aliases(CONV).get("production") == (1 if outcome == "promoted" else None)
        assert not (tmp_path / "reports" / "promotion.json").exists()
        assert go(model).outcome == ("already_production" if outcome == "promoted" else "refused")
        assert json.loads((tmp_path / "reports" / "promotion.json").read_text())["outcome"] == outcome


class TestFirstModel:
    @pytest.mark.long
    def test_the_pages_show_the_holdout_and_what_the_model_is(self, go: Promote) -> None:
        version = go(GOOD).version
        logged = mlflow.get_logged_model(str(version.model_id))
        (mean,) = (m for m in logged.metrics or () if m.key == "holdout/mean_efficiency")
        assert mean.dataset_digest == version_tags(1)["holdout_hash"][:32]
        page = mlflow.MlflowClient().get_registered_model(CONV)
        assert "grouped_conv forward in bf16 on sm90" in str(page.description)
        assert page.tags["tilewise.kind"] == "model"
        assert (page.tags["tilewise.op"], page.tags["tilewise.dtype"]) == ("grouped_conv", "bf16")

    @pytest.mark.long
    def test_mlflow_has_the_explorer_of_the_holdout(self, go: Promote, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(promotion_module, "log_plots", log_plots)
        monkeypatch.setattr("tilewise.evaluate.write_plots", lambda *_: [], raising=False)
        monkeypatch.setattr("tilewise.registry.promotion._decision_plots.write_comparison", lambda *_: [])
        version = go(GOOD).version
        page = mlflow.artifacts.load_text(f"runs:/{version.run_id}/evaluation/explorer.html")
        assert f'"target":"{CONV}","model":"{version.content_hash[:12]}"' in page
        card = mlflow.MlflowClient().get_model_version(CONV, str(version.number)).description
        assert "| P10 |" in str(card)
        assert "**Data's licence**" in str(card)

    @pytest.mark.long
    def test_above_the_floors_it_goes_into_production(self, go: Promote) -> None:
        promotion = go(GOOD)
        assert promotion.outcome == "promoted"
        assert list_aliases(CONV) == {"candidate": 1, "production": 1}

    @pytest.mark.long
    def test_below_the_floors_nothing_is_in_production(self, go: Promote) -> None:
        promotion = go(BAD)
        assert (promotion.outcome, promotion.in_production) == ("refused", False)
        assert any("does not exceed the first model's floor of 80 %" in r for r in promotion.reasons)
        assert list_aliases(CONV) == {"candidate": 1}

    @pytest.mark.long
    def test_the_record_has_every_number(self, go: Promote) -> None:
        promotion = go(GOOD)
        record = json.loads(promotion.path.read_text())
        assert promotion.path.name == "promotion.json"
        assert (record["target"], record["outcome"], record["production"]) == (CONV, "promoted", None)
        assert record["candidate"]["content_hash"] == promotion.version.content_hash
        assert record["candidate"]["pool_size"] == 24
        assert "tilewise-holdout-1" in record["holdout"]["split_rule"]
        assert [c["name"] for c in record["gate"]["checks"]] == ["floor_mean", "floor_p10"]
        assert record["gate"]["thresholds"]["problem_drop"] == 10.0
        assert record["gate"]["n_problems"] > 3

    @pytest.mark.long
    def test_mlflow_has_the_record_the_numbers_and_the_tags(self, go: Promote) -> None:
        promotion = go(GOOD)
        version = find_by_alias(CONV, "production")
        assert version is not None
        assert version.run_id
        assert version.tags["gate_decision"].startswith("promoted: first model")
        run = mlflow.get_run(version.run_id)
        assert "gate/floor_mean_change_points" in run.data.metrics
        assert 0.8 < run.data.metrics["holdout/mean_efficiency"] <= 1
        assert run.inputs is not None
        (used,) = run.inputs.dataset_inputs
        assert used.dataset.digest == json.loads(promotion.path.read_text())["holdout"]["hash"][:32]
        logged = mlflow.artifacts.load_text(f"runs:/{version.run_id}/promotion/promotion.json")
        assert logged == promotion.path.read_text()

    @pytest.mark.long
    def test_its_run_is_in_the_first_experiment_and_its_version_has_the_tags(
        self, registry: str, tmp_path: Path
    ) -> None:
        folder = write_model(tmp_path / "models" / CONV, **GOOD)
        tags = {"from": "a test"}
        version = promote(folder, table(), RULES, tmp_path / "r", experiments=("mine", "other"), tags=tags).version
        run = mlflow.get_run(str(version.run_id))
        assert mlflow.get_experiment(run.info.experiment_id).name == "mine"
        assert mlflow.get_experiment_by_name(CONV) is None
        assert version_tags(1)["from"] == "a test"


class TestAgainstProduction:
    @pytest.mark.long
    def test_an_equal_model_replaces_it_and_previous_remembers(self, go: Promote) -> None:
        go(GOOD)
        assert go(ALSO_GOOD).outcome == "promoted"
        assert list_aliases(CONV) == {"candidate": 2, "production": 2, "previous": 1}

    @pytest.mark.long
    def test_a_worse_model_is_refused_with_every_regressed_problem(self, go: Promote) -> None:
        go(GOOD)
        promotion = go(BAD)
        assert promotion.outcome == "refused"
        assert list_aliases(CONV) == {"candidate": 2, "production": 1}
        record = json.loads(promotion.path.read_text())
        assert record["outcome"] == "refused"
        assert record["production"]["content_hash"] == list_versions(CONV)[0].content_hash
        worst = record["gate"]["regressed"][0]
        assert worst["problem"].keys() >= {"N", "C", "K", "G", "Hi"}
        assert worst["drop_points"] == pytest.approx((worst["production"] - worst["candidate"]) * 100)
        version = find_by_alias(CONV, "candidate")
        assert version is not None
        assert version.tags["gate_decision"].startswith("refused: mean efficiency")

    @pytest.mark.long
    def test_production_is_judged_again_not_by_what_was_logged(self, go: Promote, registry: str) -> None:
        """Lies in the log must not matter."""
        go(BAD, ANYTHING)
        run_id = list_versions(CONV)[0].run_id
        assert run_id
        mlflow.MlflowClient().log_metric(run_id, "holdout/mean_efficiency", 1.0)
        promotion = go(GOOD)
        assert promotion.outcome == "promoted"
        assert promotion.gate is not None
        assert promotion.gate.production is not None
        assert promotion.gate.production["mean"] < promotion.gate.candidate["mean"]

    @pytest.mark.long
    def test_a_changed_holdout_is_said(self, go: Promote) -> None:
        go(GOOD)
        fewer = table()[lambda f: f["kernel_name"] != f["kernel_name"].iloc[5]]
        record = go(ALSO_GOOD, frame=fewer).decision
        assert any("holdout rows differ" in note for note in record["notes"])

    @pytest.mark.long
    def test_a_production_that_knew_some_of_the_holdout_is_compared_on_the_rest(
        self, go: Promote, tmp_path: Path
    ) -> None:
        go(GOOD)
        write_model(tmp_path / "models" / CONV, **ALSO_GOOD)
        wider = promote(tmp_path / "models" / CONV, table(), RULES, tmp_path / "r")
        assert wider.decision["holdout"]["fraction"] == 0.18
        _, notes = fair_fraction(_manifest(holdout_fraction=0.1), 0.18)
        assert notes == ["production was trained with a holdout of 0.1; both are judged on that one"]

    @pytest.mark.long
    def test_somebody_elses_promotion_meanwhile_is_judged_against(
        self, go: Promote, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """The first judgement is void, because production changed during it."""
        go(BAD, ANYTHING)
        other = publish(write_model(tmp_path / "other", **GOOD))
        real, calls = judge_candidate, []

        def judge(*args: Any) -> Any:
            calls.append(args[2].number)
            judged = real(*args)
            if len(calls) == 1:
                commit_change(settle_history(CONV), other.number, "promoted", "better", previous=1)
            return judged

        monkeypatch.setattr(promotion_module, "judge", judge)
        promotion = go({"trees": 60, "sign": -1.0, "note": "bad, but as good as production was"})
        assert calls == [1, 2]
        assert promotion.outcome == "refused"
        assert list_aliases(CONV)["production"] == other.number


class TestAgain:
    @pytest.mark.long
    @pytest.mark.parametrize("model", [GOOD, BAD], ids=["promoted", "refused"])
    def test_the_second_time_changes_nothing(self, go: Promote, model: dict[str, Any]) -> None:
        first = go(model)
        text, before = first.path.read_bytes(), state()
        second = go(model)
        assert second.in_production == first.in_production
        assert second.path.read_bytes() == text
        assert state() == before

    @pytest.mark.long
    def test_measurements_are_not_read_where_nothing_is_to_be_judged(self, go: Promote, tmp_path: Path) -> None:
        path, folder = go(GOOD).path, tmp_path / "models" / CONV
        again = promote(folder, lambda: pytest.fail("read"), RULES, path.parent)
        assert again.outcome == "already_production"

    @pytest.mark.long
    def test_neither_does_it_after_a_replacement(self, go: Promote) -> None:
        go(GOOD)
        first = go(ALSO_GOOD)
        text, before = first.path.read_bytes(), state()
        assert go(ALSO_GOOD).outcome == "already_production"
        assert first.path.read_bytes() == text
        assert state() == before

    @pytest.mark.long
    def test_a_lost_record_comes_back_from_the_registry(self, go: Promote) -> None:
        path = go(GOOD).path
        text = path.read_bytes()
        path.unlink()
        go(GOOD)
        assert path.read_bytes() == text

    @pytest.mark.long
    def test_a_new_registry_is_brought_to_what_the_record_tells(self, go: Promote, tmp_path: Path) -> None:
        """A fresh clone: the models and reports are there, the registry is empty."""
        go(GOOD)
        path = go(ALSO_GOOD).path
        text = path.read_bytes()
        with registry_session(fresh_store(tmp_path / "new")):
            assert go(ALSO_GOOD).outcome == "promoted"
            assert list_aliases(CONV) == {"candidate": 1, "production": 1}
            assert path.read_bytes() == text
            before = state()
            go(ALSO_GOOD)
            assert state() == before
        assert path.read_bytes() == text

    @pytest.mark.long
    @pytest.mark.parametrize("edited", ["override", "figures"])
    @pytest.mark.parametrize("place", ["registry", "new registry"])
    def test_an_edited_record_is_written_again(self, go: Promote, tmp_path: Path, edited: str, place: str) -> None:
        """Else a file on disk hides that rules were waived, or tells of figures that no judgement found."""
        path = go(GOOD).path
        text, changed = path.read_text(), json.loads(path.read_text())
        if edited == "override":
            del changed["override"]
        else:
            changed["gate"]["candidate"]["mean"] = 1.0
        path.write_text(json.dumps(changed))
        with contextlib.ExitStack() as stack:
            if place == "new registry":
                stack.enter_context(registry_session(fresh_store(tmp_path / "new")))
            assert go(GOOD).in_production
        assert path.read_text() == text

    @pytest.mark.long
    def test_a_record_is_not_believed_where_the_gate_says_no(self, go: Promote, tmp_path: Path) -> None:
        promotion = go(BAD, ANYTHING)
        assert promotion.outcome == "promoted"
        with registry_session(fresh_store(tmp_path / "new")):
            assert go(BAD).outcome == "refused"
            assert json.loads(promotion.path.read_text())["outcome"] == "refused"

    @pytest.mark.long
    def test_interrupted_before_the_alias_it_is_completed(self, go: Promote, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> None:
            raise RegistryUnavailableError("killed here")

        monkeypatch.setattr(history, "LEASE_S", 0.2)  # the author is dead
        with monkeypatch.context() as patch:
            patch.setattr(history, "move_aliases", fail)
            with pytest.raises(RegistryUnavailableError, match="killed here"):
                go(GOOD)
        assert "production" not in list_aliases(CONV)
        promotion = go(GOOD)  # the decision was made and entered: it is carried out, not made again
        assert (promotion.in_production, promotion.decision["outcome"]) == (True, "promoted")
        assert list_aliases(CONV)["production"] == 1

    @pytest.mark.long
    def test_production_without_its_files_is_mended(self, go: Promote, tmp_path: Path) -> None:
        go(GOOD)
        shutil.rmtree(tmp_path / "store" / "mlartifacts")
        assert go(GOOD).outcome == "already_production"
        production = find_by_alias(CONV, "production")
        assert production is not None
        assert (production.number, has_files(production)) == (2, True)


class TestBadInput:
    def test_a_table_without_the_target(self, go: Promote) -> None:
        with pytest.raises(DataError, match=f"no problem of {CONV}"):
            go(GOOD, frame=table().assign(arch="gfx950"))
        assert list_aliases(CONV) == {"candidate": 1}

    def test_a_holdout_that_the_candidate_was_trained_on(self, registry: str, tmp_path: Path) -> None:
        folder = write_model(tmp_path / "model")
        with pytest.raises(ConfigError, match="was trained on"):
            promote(folder, table(), PromotionRules(THRESHOLDS, 0.5, override=OVERRIDE), tmp_path)


class TestRollback:
    @pytest.mark.long
    def test_previous_is_in_production_again_and_both_know_why(self, go: Promote) -> None:
        go(GOOD)
        go(ALSO_GOOD)
        now, before = roll_back(CONV, reason="slow on depthwise")
        assert (now.number, before.number) == (1, 2)
        assert list_aliases(CONV) == {"candidate": 2, "production": 1, "previous": 2}
        tags = {v.number: v.tags for v in list_versions(CONV)}
        assert tags[2]["rolled_back"] == "slow on depthwise"
        assert tags[1]["rolled_back_to"] == "from version 2: slow on depthwise"

    @pytest.mark.long
    def test_the_next_promotion_does_not_undo_it(self, go: Promote) -> None:
        go(GOOD)
        go(ALSO_GOOD)
        roll_back(CONV, reason="slow on depthwise")
        promotion = go(ALSO_GOOD)
        assert promotion.outcome == "refused"
        assert promotion.reasons[0].startswith("it was rolled back from production: slow on depthwise")
        assert list_aliases(CONV)["production"] == 1

    @pytest.mark.long
    def test_a_promotion_that_read_the_version_before_does_not_undo_it(
        self, go: Promote, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def _rolled_back_since(*args: Any, **options: Any) -> Any:
            version = publish(*args, **options)
            roll_back(CONV, reason="slow on depthwise")
            return version

        go(GOOD)
        go(ALSO_GOOD)
        monkeypatch.setattr(promotion_module, "publish", _rolled_back_since)
        assert go(ALSO_GOOD).reasons[0].startswith("it was rolled back from production: slow on depthwise")
        assert list_aliases(CONV)["production"] == 1

    @pytest.mark.long
    def test_twice_does_not_bring_the_bad_one_back_unless_named(self, go: Promote) -> None:
        go(GOOD)
        go(ALSO_GOOD)
        roll_back(CONV)
        with pytest.raises(ConfigError, match=r"version 2 .* was rolled back itself \(no reason given\)"):
            roll_back(CONV)
        roll_back(CONV, 2, reason="it was the network")
        assert list_aliases(CONV)["production"] == 2
        assert go(ALSO_GOOD).in_production

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("number", "error", "match"),
        [
            (None, UnknownTargetError, "has no previous version; it has 1"),
            (7, UnknownTargetError, "has no version 7; it has 1"),
            (1, ConfigError, "in production already"),
        ],
    )
    def test_mistakes(self, go: Promote, number: int | None, error: type[Exception], match: str) -> None:
        go(GOOD)
        with pytest.raises(error, match=match):
            roll_back(CONV, number, reason="x")

    def test_nothing_in_production(self, registry: str) -> None:
        with pytest.raises(UnknownTargetError, match="nothing in production"):
            roll_back(CONV, reason="x")

    @pytest.mark.long
    def test_never_to_broken_files(self, go: Promote, tmp_path: Path) -> None:
        go(GOOD)
        go(ALSO_GOOD)
        for file in (tmp_path / "store").rglob("model_tflops.lgbm.gz"):
            file.write_bytes(b"broken")
        with pytest.raises(ArtefactError, match=r"changed or damaged after publishing"):
            roll_back(CONV, reason="x")
        assert list_aliases(CONV)["production"] == 2


def _manifest(**values: Any) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(manifest=values)


class TestObserved:
    """Shadow observations of exactly these two models take part in the decision."""

    def observations(self, go: Promote, tmp_path: Path) -> Observations:
        """Dispatchers with the first model in production, and one that picks the slowest kernels beside it."""
        go(GOOD)
        path, recorded = tmp_path / "shadow.jsonl", tmp_path / "table.parquet"
        table(failures=0.0).to_parquet(recorded)
        beside = write_model(tmp_path / "bad", **BAD)
        switches = Switches(shadow=str(beside), simulate=str(recorded), shadow_journal=str(path))
        with Dispatcher.from_folder(tmp_path / "models" / CONV, switches=switches) as dispatcher:
            dispatcher.refresh()
            for problem in problems(Target.parse(CONV), 30):
                dispatcher.select(problem)
        return read_observations(path)

    @pytest.mark.long
    def test_a_worse_candidate_is_refused_by_what_was_observed(self, go: Promote, tmp_path: Path) -> None:
        seen = self.observations(go, tmp_path)
        anything = Thresholds(
            100, 100, 100, 100, slices=SliceRule(min_problems=20), selection_time_factor=100, min_problems=5
        )
        loose = dataclasses.replace(anything, mean_drop=20)  # the holdout alone would refuse as well
        folder = tmp_path / "bad"
        promotion = promote(folder, table(), PromotionRules(loose, 0.18, seen, OVERRIDE), tmp_path / "r")
        assert promotion.outcome == "refused"
        record = json.loads(promotion.path.read_text())
        assert record["gate"]["observed"]["n_problems"] == 30
        assert record["gate"]["observed"]["speed_up"][2] < 0.8
        assert any("not shown to be at least 0.8" in r for r in record["reasons"])
        assert "Observed by a shadow" in (promotion.path.with_suffix(".html")).read_text()
        assert (
            promote(folder, table(), PromotionRules(anything, 0.18, override=OVERRIDE), tmp_path / "r").outcome
            == "promoted"
        )

    @pytest.mark.long
    def test_observations_of_other_models_are_ignored_and_said_so(self, go: Promote, tmp_path: Path) -> None:
        seen = self.observations(go, tmp_path)
        folder = write_model(tmp_path / "models" / CONV, **ALSO_GOOD)
        promotion = promote(folder, table(), PromotionRules(THRESHOLDS, 0.18, seen, OVERRIDE), tmp_path / "r")
        assert promotion.outcome == "promoted"
        assert "30 observations are of other models and left out" in promotion.decision["notes"]
        evidence = promotion.decision["gate"]["observed"]
        assert evidence is not None
        assert evidence["n_problems"] == 0

    @pytest.mark.long
    def test_for_a_first_model_they_do_not_count(self, go: Promote, tmp_path: Path) -> None:
        seen = file_of(observed([0.1] * 30))
        folder = write_model(tmp_path / "models" / CONV, **GOOD)
        promotion = promote(folder, table(), PromotionRules(THRESHOLDS, 0.18, seen, OVERRIDE), tmp_path / "r")
        assert promotion.outcome == "promoted"
        assert promotion.decision["gate"]["observed"] is None
        assert promotion.decision["notes"] == [
            "what was observed does not count: there is no production to compare with"
        ]
