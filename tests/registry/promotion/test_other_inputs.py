"""Arguments, data, clocks and files that change meanwhile: none gets a worse model into production."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest

from gate.shadowed import file_of, observed
from registry.promotion.ways import (
    BAD,
    GOOD,
    SMALL,
    Promote,
    production,
    replace_files,
)
from small_model import _mirrored, table, write_model
from synthetic import CONV
from tilewise.errors import ArtefactError, ConfigError, DataError
from tilewise.model import load_artefact
from tilewise.ops import OPS
from tilewise.registry import (
    Version,
    find_by_number,
    list_versions,
)
from tilewise.registry.promotion import PromotionRules, publish
from tilewise.registry.promotion import _promote as promotion_module

pytestmark = pytest.mark.long


class TestTime:
    @pytest.mark.parametrize("now", [0.0, 4e9], ids=["1970", "2096"])
    def test_a_wrong_clock_changes_no_decision(self, go: Promote, monkeypatch: pytest.MonkeyPatch, now: float) -> None:
        go(GOOD)
        monkeypatch.setattr(time, "time", lambda: now)
        assert go(BAD).outcome == "refused"
        assert go(GOOD | {"note": "second"}).outcome == "promoted"
        assert production() == 3

    def test_the_folder_swapped_during_a_promotion(
        self, go: Promote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The model that is judged and the one that is published are the same."""
        go(GOOD)

        def swapped(folder: Path, **options: Any) -> Version:
            return publish(write_model(tmp_path / "other", **BAD), **options)

        monkeypatch.setattr(promotion_module, "publish", swapped)
        with pytest.raises(ArtefactError, match="the folder must not change during a promotion"):
            go(GOOD | {"note": "second"})
        assert production() == 1

    def test_its_stored_files_replaced_before_they_are_judged(
        self, go: Promote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        go(GOOD)

        def tampered(folder: Path, **options: Any) -> Version:
            version = publish(folder, **options)
            content_hash = replace_files(version, tmp_path, **BAD)
            mlflow.MlflowClient().set_model_version_tag(CONV, str(version.number), "content_hash", content_hash)
            return version

        monkeypatch.setattr(promotion_module, "publish", tampered)
        promotion = go(GOOD | {"note": "second"})
        assert promotion.outcome == "refused"
        assert any("changed or damaged after publishing" in r for r in promotion.reasons)
        assert production() == 1


class TestArguments:
    @pytest.mark.parametrize("fraction", [0.0, -0.1, 1.0, 2.0, float("nan"), float("inf")])
    def test_a_holdout_fraction_that_is_none(self, fraction: float) -> None:
        with pytest.raises(ConfigError, match=r"holdout\.fraction must lie between 0 and 1"):
            PromotionRules(SMALL, fraction)

    @pytest.mark.parametrize("reason", ["", "   ", "\n\t"])
    def test_a_reason_without_words_is_none(self, go: Promote, reason: str) -> None:
        with pytest.raises(ConfigError, match="to insist, set them and"):
            go(GOOD, reason=reason)
        assert list_versions(CONV) == []

    @pytest.mark.parametrize("value", ["off", "OFF", " off ", "no", "0", "false", "never"])
    def test_overrides_are_off_unless_the_switch_says_on(
        self, go: Promote, monkeypatch: pytest.MonkeyPatch, value: str
    ) -> None:
        monkeypatch.setenv("TILEWISE_GATE_OVERRIDE", value)
        with pytest.raises(ConfigError, match="overrides are forbidden here"):
            go(GOOD)

    def test_praise_by_observations_does_not_help(self, go: Promote, refused: Version) -> None:
        first = find_by_number(CONV, 1)
        assert first is not None
        praise = file_of(observed([2.0] * 40, 5, candidate=refused.content_hash, production=first.content_hash))
        assert go(BAD, observations=praise).outcome == "refused"
        assert production() == 1


class TestData:
    @pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0, 0.0])
    def test_rates_that_are_none(self, go: Promote, rate: float) -> None:
        go(GOOD)
        frame = table()
        frame = frame.assign(tflops=frame["tflops"].where(frame.index % 2 == 0, rate))
        with pytest.raises((DataError, ConfigError), match=r"positive, finite number|measured kernels fell"):
            go(BAD, frame)
        assert production() == 1

    def test_rates_of_another_world(self, go: Promote) -> None:
        """Mirrored, so that the kernels that a bad model selects look fast."""
        go(GOOD)
        with pytest.raises(ConfigError, match=r"must agree with those that it was judged on, but the candidate's mean"):
            go(BAD, _mirrored(table()))
        assert production() == 1

    @pytest.mark.parametrize("how", ["raised", "left out"])
    def test_rates_of_a_bad_model_s_selections(self, go: Promote, tmp_path: Path, how: str) -> None:
        """Few rows: of each problem the one that decides."""
        go(GOOD)
        bad, rows = load_artefact(write_model(tmp_path / "bad", **BAD)), table()
        key = list(OPS["grouped_conv"].column_names())
        frames = []
        for _, group in rows.groupby(key, dropna=False):
            order = [
                bad.pool.names[i] for i in bad.rank(OPS["grouped_conv"].from_dict(group[key].to_dict("records")[0]))
            ]
            if how == "raised":
                best = group["tflops"].max()
                frames.append(group.assign(tflops=group["tflops"].where(group["kernel_name"] != order[0], best)))
            else:
                frames.append(group[~group["kernel_name"].isin(order[:1])])
        with pytest.raises(ConfigError, match=r"must agree with those that it was judged on"):
            go(BAD, pd.concat(frames, ignore_index=True))
        assert production() == 1

    @pytest.mark.parametrize("how", ["changed", "gone"])
    def test_recorded_rates_are_not_lost_unnoticed(self, go: Promote, tmp_path: Path, how: str) -> None:
        go(GOOD)
        file = next((tmp_path / "store").rglob("promotion/holdout.json"))
        if how == "gone":
            file.unlink()
        else:
            file.write_text(file.read_text().replace(", 1", ", 2"))
        with pytest.raises(ConfigError, match="lost or damaged"):
            go(BAD, _mirrored(table()))

    def test_measured_again_with_noise_they_agree(self, go: Promote) -> None:
        go(GOOD)
        noise = np.random.default_rng(1).normal(1.0, 0.01, len(table()))
        assert go(GOOD | {"note": "second"}, table().assign(tflops=table()["tflops"] * noise)).outcome == "promoted"

    def test_rows_repeated_a_hundred_times_count_once(self, go: Promote) -> None:
        """Of the problems that a bad model happens to be best at, for example."""
        go(GOOD)
        rows = table()
        lucky = rows[rows["N"] == rows["N"].iloc[0]]
        repeated = pd.concat([rows, *(lucky.assign(run_id=f"again {i}") for i in range(100))], ignore_index=True)
        promotion = go(BAD, repeated)
        assert promotion.outcome == "refused"
        assert promotion.gate is not None
        assert promotion.gate.n_problems == 8
