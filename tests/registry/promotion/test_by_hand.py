"""Aliases, tags, versions and the history changed by hand in MLflow: none gets a worse model into production."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import mlflow
import pytest

from gate.shadowed import file_of, observed
from registry.promotion.ways import (
    AS_BAD,
    BAD,
    GOOD,
    REASON,
    SMALL,
    Promote,
    by_hand,
    delete_history,
    production,
    replace_files,
)
from small_model import write_model
from synthetic import CONV
from tilewise.dispatch.sources import fetch_model
from tilewise.dispatch.sources._model_source import fetch_newer_model
from tilewise.errors import ArtefactError, ConfigError
from tilewise.registry import (
    Version,
    find_by_number,
    gate_standing,
    load_version,
    read_description,
    read_history,
    roll_back,
)
from tilewise.registry import _history as history
from tilewise.registry._versions import HISTORY_TAG
from tilewise.registry.promotion import publish, roll_back_if_slower

pytestmark = pytest.mark.long


class TestProductionAlias:
    def test_a_dispatcher_keeps_the_last_version_that_passed(
        self, go: Promote, refused: Version, registry: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = fetch_model(CONV, uri=registry)
        by_hand(refused.number)
        with caplog.at_level(logging.WARNING):
            assert fetch_model(CONV, uri=registry).model.content_hash == first.model.content_hash
        assert "version 2" in caplog.text
        assert "without having passed the gate: the gate never promoted it" in caplog.text

    def test_a_dispatcher_that_refreshes_does_not_take_it(self, refused: Version, registry: str) -> None:
        first = fetch_model(CONV, uri=registry)
        by_hand(refused.number)
        with pytest.raises(ArtefactError, match="without having passed the gate"):
            fetch_newer_model(CONV, "production", uri=registry, than=(first.model.content_hash, first.version))

    def test_nor_a_version_that_was_rolled_back(self, go: Promote, registry: str) -> None:
        """It stays servable by a rollback that names it, which the history records."""
        first = go(GOOD).version
        second = go(GOOD | {"note": "second"}).version
        roll_back(CONV, reason="slow on depthwise")
        by_hand(second.number)
        than = (first.content_hash, first.number)
        with pytest.raises(ArtefactError, match="in production by hand: it was rolled back: slow on depthwise"):
            fetch_newer_model(CONV, "production", uri=registry, than=than)
        with pytest.raises(ConfigError, match="version 2 is in it by hand: it was rolled back"):
            go(GOOD | {"note": "third"})
        by_hand(first.number)
        roll_back(CONV, second.number, reason="it was another change")
        newer = fetch_newer_model(CONV, "production", uri=registry, than=than)
        assert newer is not None
        assert newer.version == second.number

    def test_a_dispatcher_without_a_copy_does_not_start_with_it(self, refused: Version, registry: str) -> None:
        by_hand(refused.number)
        with pytest.raises(ArtefactError, match=r"version 2 .* tilewise rollback version=N"):
            fetch_model(CONV, uri=registry)
        assert fetch_model(CONV, "2", uri=registry).version == 2, "by its number it is no claim about the gate"

    def test_back_to_a_version_that_passed_is_served(self, go: Promote, registry: str) -> None:
        go(GOOD)
        go(GOOD | {"note": "second"})
        by_hand(1)
        assert fetch_model(CONV, uri=registry).version == 1

    @pytest.mark.parametrize("model", [AS_BAD, BAD], ids=["as bad", "itself"])
    def test_nothing_is_judged_against_it(self, go: Promote, refused: Version, model: dict[str, Any]) -> None:
        """Else a bad model put there by hand would open the way for others that are as bad."""
        by_hand(refused.number)
        with pytest.raises(
            ConfigError, match=r"version 2 is in it without having passed the gate: .*never promoted it"
        ):
            go(model)
        assert [e.action for e in read_history(CONV)] == ["promoted", "moved by hand"]
        assert not gate_standing(refused).passed
        roll_back(CONV, 1, reason="it was moved by hand")
        assert go(model).outcome == "refused"

    def test_one_who_insists_is_seen(self, go: Promote, refused: Version) -> None:
        by_hand(refused.number)
        assert go(BAD, production=True).outcome == "refused", "the floors apply"
        promotion = go(GOOD | {"note": "second"}, production=True)
        words = "version 2 is in it without having passed the gate"
        assert promotion.outcome == "promoted"
        for text in (
            promotion.path.read_text(),
            promotion.path.with_suffix(".html").read_text(),
            find_by_number(CONV, 3).tags["gate_override"],  # type: ignore[union-attr]
            read_description(promotion.version),
            read_history(CONV)[-1].reason,
        ):
            assert words in text
            assert REASON in text

    def test_set_before_any_promotion_it_is_no_production_to_beat(self, go: Promote, tmp_path: Path) -> None:
        publish(write_model(tmp_path / "bad", **BAD))
        by_hand(1)
        with pytest.raises(ConfigError, match="no promotion of this target is recorded"):
            go(AS_BAD)

    def test_set_before_any_promotion_the_dispatcher_says_so(
        self, registry: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        publish(write_model(tmp_path / "bad", **BAD))
        by_hand(1)
        with caplog.at_level(logging.WARNING):
            fetch_model(CONV, uri=registry)
        assert "nothing shows that it passed the gate" in caplog.text

    def test_a_version_that_mlflow_registered_is_not_served(self, go: Promote, registry: str, tmp_path: Path) -> None:
        go(GOOD)
        source = write_model(tmp_path / "bad", **BAD)
        with mlflow.start_run():
            info = mlflow.pyfunc.log_model(
                name="x", loader_module="tilewise.registry.pyfunc", data_path=str(source), pip_requirements=[]
            )
        mlflow.register_model(info.model_uri, CONV)
        by_hand(2)
        with pytest.raises(ArtefactError, match="without having passed the gate"):
            fetch_model(CONV, uri=registry)

    def test_removed_and_insisted_on_it_is_seen(self, go: Promote) -> None:
        go(GOOD)
        mlflow.MlflowClient().delete_registered_model_alias(CONV, "production")
        assert go(BAD, production=True).outcome == "refused"
        promotion = go(GOOD | {"note": "second"}, production=True)
        waived = promotion.decision["override"]["waived"]
        assert any("version 1 was removed from it by hand" in rule for rule in waived)

    def test_removed_and_insisted_on_the_holdout_still_counts(self, go: Promote) -> None:
        from registry.promotion.test_not_walked_around import first_problems

        go(GOOD)
        mlflow.MlflowClient().delete_registered_model_alias(CONV, "production")
        with pytest.raises(ConfigError, match="must contain the 8 problems that production was judged on"):
            go(GOOD | {"note": "second"}, first_problems(6), production=True)


class TestOtherAliases:
    def test_a_candidate_set_by_hand_is_not_what_is_judged(self, go: Promote, refused: Version) -> None:
        by_hand(refused.number, "candidate")
        assert go(GOOD).outcome == "already_production"
        assert production() == 1

    def test_previous_set_by_hand_is_no_way_back(self, refused: Version) -> None:
        by_hand(refused.number, "previous")
        with pytest.raises(ConfigError, match="the gate never promoted it"):
            roll_back(CONV, reason="x")
        assert production() == 1

    def test_nor_for_the_automatic_rollback(self, refused: Version) -> None:
        by_hand(refused.number, "previous")
        first = find_by_number(CONV, 1)
        assert first is not None
        seen = file_of(observed([1.5] * 25, candidate=refused.content_hash, production=first.content_hash))
        assert not roll_back_if_slower(CONV, seen, SMALL).rolled_back
        assert production() == 1


class TestRollback:
    def test_a_refused_version_cannot_be_put_back(self, refused: Version) -> None:
        with pytest.raises(ConfigError, match=r"version 2 .*cannot be put back: "):
            roll_back(CONV, refused.number, reason="x")
        assert production() == 1

    def test_nor_with_its_tag_changed_to_promoted(self, refused: Version) -> None:
        mlflow.MlflowClient().set_model_version_tag(CONV, "2", "gate_decision", "promoted: fine")
        with pytest.raises(ConfigError, match="the gate never promoted it"):
            roll_back(CONV, refused.number, reason="x")
        assert production() == 1

    def test_nor_after_it_was_in_production_by_hand(self, refused: Version) -> None:
        by_hand(refused.number)
        history.settle_history(CONV)
        roll_back(CONV, 1, reason="it was moved by hand")
        with pytest.raises(ConfigError, match="the gate never promoted it"):
            roll_back(CONV, refused.number, reason="x")
        assert production() == 1

    def test_its_mark_removed_a_version_is_judged_again(self, go: Promote, refused: Version) -> None:
        mlflow.MlflowClient().set_model_version_tag(CONV, "2", "rolled_back", "slow")
        assert "it was rolled back" in go(BAD).reasons[0]
        mlflow.MlflowClient().delete_model_version_tag(CONV, "2", "rolled_back")
        assert go(BAD).outcome == "refused"
        assert production() == 1

    @pytest.mark.parametrize("how", ["its mark removed", "its files damaged", "its version deleted"])
    def test_published_again_or_without_its_mark_it_stays_refused(self, go: Promote, tmp_path: Path, how: str) -> None:
        """The gate found it as good as production, so only the rollback keeps it out."""
        go(GOOD)
        second = GOOD | {"note": "second"}
        version = go(second).version
        roll_back(CONV, reason="slow on depthwise")
        client = mlflow.MlflowClient()
        if how == "its mark removed":
            client.delete_model_version_tag(CONV, str(version.number), "rolled_back")
        elif how == "its version deleted":
            client.delete_model_version(CONV, str(version.number))
        else:
            uri = client.get_model_version_download_uri(CONV, str(version.number)).removeprefix("file:")
            next((tmp_path / "store" / uri).rglob("pool.json")).write_text("{}")
        again = go(second)
        assert again.outcome == "refused"
        assert again.reasons[0].startswith("it was rolled back from production: slow on depthwise; to use it all the")
        assert again.version.number == (2 if how == "its mark removed" else 3)
        assert production() == 1
        if how == "its mark removed":
            roll_back(CONV, version.number, reason="it was another change")
            assert production() == 2
            assert go(GOOD).outcome == "refused", "now it is the one that was rolled back"


class TestVersions:
    def test_files_and_tag_replaced_together(self, go: Promote, registry: str, tmp_path: Path) -> None:
        """The version in production keeps its number, so no alias moves."""
        first = go(GOOD).version
        content_hash = replace_files(first, tmp_path, **BAD)
        mlflow.MlflowClient().set_model_version_tag(CONV, "1", "content_hash", content_hash)
        changed = find_by_number(CONV, 1)
        assert changed is not None
        assert load_version(changed).content_hash == content_hash, "files and tag agree"
        assert gate_standing(changed).reason.startswith("its tag content_hash was changed after publishing")
        with pytest.raises(ArtefactError, match="its tag content_hash was changed after publishing"):
            fetch_model(CONV, uri=registry)
        with pytest.raises(ConfigError, match="its tag content_hash was changed after publishing"):
            go(AS_BAD)

    def test_files_and_tag_replaced_where_the_run_is_no_witness(
        self, go: Promote, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = go(GOOD).version
        content_hash = replace_files(first, tmp_path, **BAD)
        mlflow.MlflowClient().set_model_version_tag(CONV, "1", "content_hash", content_hash)
        monkeypatch.setattr("tilewise.registry._gate_standing.published_content", lambda _: None)
        with pytest.raises(ArtefactError, match="the gate promoted other files under this number"):
            fetch_model(CONV, uri=registry)

    def test_the_target_deleted_and_registered_again(self, go: Promote, registry: str, tmp_path: Path) -> None:
        """Numbers begin again, so the bad model has the number of the one that was promoted."""
        go(GOOD)
        mlflow.MlflowClient().delete_registered_model(CONV)
        publish(write_model(tmp_path / "bad", **BAD))
        by_hand(1)
        with pytest.raises(ArtefactError, match="the gate promoted other files under this number"):
            fetch_model(CONV, uri=registry)
        with pytest.raises(ConfigError, match="the gate promoted other files under this number"):
            go(AS_BAD)

    def test_productions_version_deleted(self, go: Promote, refused: Version) -> None:
        mlflow.MlflowClient().delete_registered_model_alias(CONV, "production")
        mlflow.MlflowClient().delete_model_version(CONV, "1")
        with pytest.raises(ConfigError, match="version 1 was removed from it by hand"):
            go(AS_BAD)

    def test_productions_run_deleted(self, go: Promote) -> None:
        first = go(GOOD).version
        assert first.run_id is not None
        mlflow.MlflowClient().delete_run(first.run_id)
        assert go(BAD).outcome == "refused"
        assert production() == 1

    def test_a_version_of_before_the_witness_is_promoted_and_served_by_the_history(
        self, go: Promote, registry: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Runs of older versions lack the parameter content_hash."""
        monkeypatch.setattr("tilewise.registry.promotion._publish._log_content", lambda *_: None)
        assert go(GOOD).outcome == "promoted"
        assert go(GOOD).outcome == "already_production"
        assert fetch_model(CONV, uri=registry).version == 1
        mlflow.MlflowClient().set_model_version_tag(CONV, "1", "content_hash", "0" * 64)
        with pytest.raises(ConfigError, match="the gate promoted other files under this number"):
            go(BAD)

    def test_a_run_that_published_other_files_is_not_reused(self, registry: str, tmp_path: Path) -> None:
        """Its parameter would be the witness of the other files."""
        first = publish(write_model(tmp_path / "a", **GOOD))
        second = publish(write_model(tmp_path / "b", **BAD), run_id=first.run_id)
        assert second.run_id != first.run_id
        assert gate_standing(second).kind == "unrecorded"


class TestHistory:
    def test_lost_with_the_alias_it_makes_no_first_model(self, go: Promote) -> None:
        go(GOOD)
        delete_history()
        mlflow.MlflowClient().delete_registered_model_alias(CONV, "production")
        with pytest.raises(ConfigError, match="version 1 was removed from it by hand"):
            go(AS_BAD)
        assert production() is None

    def test_lost_it_lets_no_refused_version_serve(self, refused: Version, registry: str) -> None:
        delete_history()
        by_hand(refused.number)
        with pytest.raises(ArtefactError, match="the gate never promoted it"):
            fetch_model(CONV, uri=registry)
        with pytest.raises(ConfigError, match="in production already"):
            roll_back(CONV, refused.number, reason="x")

    def test_lost_production_still_counts(self, go: Promote, registry: str) -> None:
        go(GOOD)
        delete_history()
        assert go(BAD).outcome == "refused"
        assert fetch_model(CONV, uri=registry).version == 1

    def test_each_entry_names_the_content(self, go: Promote) -> None:
        version = go(GOOD).version
        entry = read_history(CONV)[-1]
        assert entry.content == version.content_hash
        assert find_by_number(CONV, 1).tags[HISTORY_TAG] == str(entry.number)  # type: ignore[union-attr]
