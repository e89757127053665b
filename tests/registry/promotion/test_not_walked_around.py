"""Ways around the gate: other inputs, weaker limits, damaged productions, edited tags. None works without a trace."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest

from small_model import table, write_model
from synthetic import CONV
from tilewise.errors import ArtefactError, ConfigError, DataError
from tilewise.gate import Thresholds
from tilewise.ops import OPS
from tilewise.registry import find_by_number, list_aliases, load_version, read_description, read_history
from tilewise.registry.promotion import Override, Promotion, PromotionRules, promote
from tilewise.registry.promotion._override import SWITCH

pytestmark = pytest.mark.long

REASON = "the <table> has [few] problems"
KEY = list(OPS["grouped_conv"].column_names())
SMALL = Thresholds(floor_mean=80, floor_p10=50, min_problems=5)  # tables of tests have eight holdout problems
INSIST = Override(REASON)
GOOD: dict[str, Any] = {"trees": 60}
BAD: dict[str, Any] = {"trees": 60, "sign": -1.0}

Promote = Callable[..., Promotion]


@pytest.fixture
def go(registry: str, tmp_path: Path) -> Promote:
    """Promote a model described by the arguments of :func:`small_model.write_model`."""

    def _go(
        model: dict[str, Any],
        frame: pd.DataFrame | None = None,
        *,
        thresholds: Thresholds = SMALL,
        fraction: float = 0.18,
        override: Override = INSIST,
    ) -> Promotion:
        folder = write_model(tmp_path / "models" / CONV, **model)
        rules = PromotionRules(thresholds, fraction, override=override)
        return promote(folder, table() if frame is None else frame, rules, tmp_path / "reports")

    return _go


def first_problems(n: int) -> pd.DataFrame:
    """Return the rows of `n` holdout problems."""
    from tilewise.data import TargetTable
    from tilewise.ops import Target

    rows = TargetTable.of(table(), Target.parse(CONV)).holdout(0.18).rows
    return rows.merge(rows[KEY].drop_duplicates().head(n), on=KEY)


class TestHoldout:
    @pytest.mark.parametrize(
        ("frame", "fraction", "match"),
        [
            (None, 0.1, r"must contain the 8 problems that production was judged on, but \d of these 8 are missing"),
            (7, 0.18, "but 1 of these 8 are missing"),
        ],
        ids=["fraction", "data"],
    )
    def test_it_contains_productions(self, go: Promote, frame: int | None, fraction: float, match: str) -> None:
        go(GOOD)
        rows = None if frame is None else first_problems(frame)
        one = Thresholds(floor_mean=80, floor_p10=50, min_problems=1)
        with pytest.raises(ConfigError, match=match):
            go(BAD, rows, fraction=fraction, thresholds=one)
        assert list_aliases(CONV)["production"] == 1

    def test_as_many_kernels_are_measured(self, go: Promote) -> None:
        go(GOOD)
        few = table()[lambda f: f["kernel_name"].isin(f["kernel_name"].unique()[:12])]
        with pytest.raises(ConfigError, match="measured kernels fell from"):
            go(BAD, few)

    def test_a_larger_one_will_do(self, go: Promote) -> None:
        go(GOOD, first_problems(7))
        promotion = go(GOOD | {"note": "second"})
        assert promotion.outcome == "promoted"
        assert promotion.decision["holdout"]["n_problems"] == 8

    def test_a_small_one_is_refused_for_a_first_model(self, go: Promote) -> None:
        with pytest.raises(DataError, match=r"at least 25 holdout problems whose kernels differ in speed .* got 8"):
            go(GOOD, thresholds=Thresholds(floor_mean=90, floor_p10=75), override=Override())

    @pytest.mark.parametrize("lone", [False, True], ids=["equal", "one kernel"])
    def test_problems_without_spread_do_not_count(self, go: Promote, lone: bool) -> None:
        go(GOOD)
        flat = table().drop_duplicates(KEY) if lone else table().assign(tflops=1.0, latency_ms=1.0)
        with pytest.raises(DataError, match="got 0"):
            go(BAD, flat)
        assert list_aliases(CONV)["production"] == 1

    def test_the_record_is_in_tags_decision_and_run(self, go: Promote) -> None:
        promotion = go(GOOD)
        version = find_by_number(CONV, 1)
        assert version is not None
        holdout = promotion.decision["holdout"]
        assert (version.tags["holdout_problems"], version.tags["holdout_count"]) == (holdout["problems"], "8")
        logged = mlflow.artifacts.load_text(f"runs:/{version.run_id}/promotion/holdout.json")
        assert len(json.loads(logged)["rates"]) == holdout["n_problems"] == 8

    @pytest.mark.parametrize("how", ["tag", "list", "both"])
    def test_an_altered_record_of_production_refuses(self, go: Promote, how: str, tmp_path: Path) -> None:
        """A person who can write tags makes a record of the rows that the person likes."""
        go(GOOD)
        one = Thresholds(floor_mean=80, floor_p10=50, min_problems=1)
        client = mlflow.MlflowClient()
        if how != "list":
            client.set_model_version_tag(CONV, "1", "holdout_problems", "0" * 64)
        if how != "tag":
            file = next((tmp_path / "store").rglob("promotion/holdout.json"))
            file.write_text("{}") if how == "list" else file.unlink()
        with pytest.raises(ConfigError, match="lost or damaged"):
            go(BAD, first_problems(3), thresholds=one)

    def test_a_version_of_before_the_record_binds_by_its_number_of_problems(self, go: Promote, tmp_path: Path) -> None:
        go(GOOD)
        for tag in ("holdout_problems", "holdout_count", "holdout_rates"):
            mlflow.MlflowClient().delete_model_version_tag(CONV, "1", tag)
        next((tmp_path / "store").rglob("promotion/holdout.json")).unlink()
        with pytest.raises(ConfigError, match="1 of these 8 are missing"):
            go(BAD, first_problems(7))

    def test_one_who_insists_is_seen(self, go: Promote, tmp_path: Path) -> None:
        go(GOOD)
        promotion = go(GOOD | {"note": "second"}, first_problems(7), override=Override(REASON, holdout=True))
        assert promotion.outcome == "promoted"
        waived = promotion.decision["override"]["waived"]
        assert any("production was judged on, but 1 of these 8 are missing" in rule for rule in waived)


class TestLimits:
    def test_weaker_ones_need_a_reason(self, go: Promote) -> None:
        weak = Thresholds(mean_drop=50, floor_mean=90, floor_p10=75)
        with pytest.raises(ConfigError, match=r"gate\.mean_drop is 50 instead of 0\.5; to insist, .*reason"):
            go(GOOD, thresholds=weak, override=Override())
        assert list_aliases(CONV) == {}, "refused before anything is published"

    @pytest.mark.parametrize("how", ["setting", "environment"])
    def test_none_where_overrides_are_forbidden(self, go: Promote, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if how == "environment":
            monkeypatch.setenv(SWITCH, "off")
        with pytest.raises(ConfigError, match="overrides are forbidden here"):
            go(GOOD, override=Override(REASON, allowed=how != "setting"))

    def test_a_reason_is_seen_everywhere(self, go: Promote, tmp_path: Path) -> None:
        promotion = go(GOOD)
        assert promotion.outcome == "promoted"
        version, words = find_by_number(CONV, 1), "gate.min_problems is 5 instead of 25"
        assert version is not None
        for text in (
            version.tags["gate_override"],
            version.tags["gate_decision"],
            read_description(version),
            read_history(CONV)[-1].reason,
            promotion.path.read_text(),
        ):
            assert words in text
            assert REASON in text
        page = promotion.path.with_suffix(".html").read_text()
        assert words in page
        assert "the &lt;table&gt; has [few] problems" in page

    def test_without_an_override_none_is_told(self, go: Promote, tmp_path: Path) -> None:
        wide = pd.concat([table().assign(N=table()["N"] * 2**i, run_id=f"r{i}") for i in range(8)], ignore_index=True)
        shipped = Thresholds(floor_mean=90, floor_p10=75)
        promotion = go(GOOD, wide, thresholds=shipped, override=Override())
        assert "override" not in promotion.decision
        assert promotion.gate is not None
        assert "min_problems" not in promotion.decision["gate"]["thresholds"]
        version = find_by_number(CONV, 1)
        assert version is not None
        assert "gate_override" not in version.tags


class TestProduction:
    def damage(self, tmp_path: Path) -> None:
        """Change one byte of production's file."""
        for file in (tmp_path / "store").rglob("model_tflops.lgbm.gz"):
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(bytes(content))

    @pytest.mark.parametrize("how", ["byte", "away"])
    def test_one_that_cannot_be_loaded_refuses(self, go: Promote, tmp_path: Path, how: str) -> None:
        go(GOOD)
        stored = next((tmp_path / "store").rglob("model_tflops.lgbm.gz"))
        if how == "byte":
            self.damage(tmp_path)
        else:
            stored.rename(tmp_path / "away")
        with pytest.raises(ArtefactError, match=r"production, which cannot be loaded: .*'tilewise rollback version=N'"):
            go(BAD, thresholds=Thresholds(min_problems=5))
        assert list_aliases(CONV)["production"] == 1
        if how == "away":
            (tmp_path / "away").rename(stored)
            assert go(BAD, thresholds=Thresholds(min_problems=5)).outcome == "refused"

    def test_its_own_files_repair_it(self, go: Promote, tmp_path: Path) -> None:
        go(GOOD)
        self.damage(tmp_path)
        assert go(GOOD).outcome == "already_production"
        version = find_by_number(CONV, list_aliases(CONV)["production"])
        assert version is not None
        assert (version.number, load_version(version).content_hash) == (2, version.content_hash)

    def test_one_who_insists_is_seen(self, go: Promote, tmp_path: Path) -> None:
        go(GOOD)
        self.damage(tmp_path)
        promotion = go(GOOD | {"note": "second"}, override=Override(REASON, production=True))
        assert promotion.outcome == "promoted"
        assert "production cannot be loaded" in str(promotion.decision["override"]["waived"])

    def test_a_pool_that_was_not_measured_refuses(self, go: Promote, monkeypatch: pytest.MonkeyPatch) -> None:
        from tilewise.evaluate import evaluate as real

        go(GOOD)

        def evaluate(model: Any, frame: pd.DataFrame, *rest: Any) -> Any:
            if not rest:  # production's
                raise DataError("none has a valid kernel of the model's pool")
            return real(model, frame, *rest)

        monkeypatch.setattr("tilewise.registry.promotion._judge.evaluate", evaluate)
        with pytest.raises(DataError, match="no kernel of production's pool was measured"):
            go(BAD, thresholds=Thresholds(min_problems=5))

    def test_an_alias_removed_by_hand_makes_no_first_model(self, go: Promote) -> None:
        go(GOOD)
        mlflow.MlflowClient().delete_registered_model_alias(CONV, "production")
        with pytest.raises(ConfigError, match="version 1 was removed from it by hand"):
            go(BAD, thresholds=Thresholds(min_problems=5))
        assert "production" not in list_aliases(CONV)


class TestTags:
    def test_productions_content_hash_edited_promotes_nothing(self, go: Promote) -> None:
        go(GOOD)
        bad = go(BAD)
        assert bad.outcome == "refused"
        mlflow.MlflowClient().set_model_version_tag(CONV, "1", "content_hash", bad.version.content_hash)
        with pytest.raises(ConfigError, match="its tag content_hash was changed after publishing"):
            go(BAD)
        assert list_aliases(CONV)["production"] == 1

    def test_edited_with_its_files_gone_promotes_nothing(self, go: Promote, tmp_path: Path) -> None:
        go(GOOD)
        bad = go(BAD)
        mlflow.MlflowClient().set_model_version_tag(CONV, "1", "content_hash", bad.version.content_hash)
        shutil.rmtree(tmp_path / "store" / "mlartifacts")
        with pytest.raises(ConfigError, match="its tag content_hash was changed after publishing"):
            go(BAD)
        assert list_aliases(CONV)["production"] == 1

    def test_a_version_without_the_tag_is_not_served_unchecked(self, go: Promote) -> None:
        go(GOOD)
        mlflow.MlflowClient().delete_model_version_tag(CONV, "1", "content_hash")
        version = find_by_number(CONV, 1)
        assert version is not None
        with pytest.raises(ArtefactError, match="its tag content_hash is gone"):
            load_version(version)
