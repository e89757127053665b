"""The decision log has one line per decision, which can be replayed and explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from small_model import write_model
from synthetic import CONV
from tilewise.dispatch import Dispatcher, Switches
from tilewise.dispatch.logs import find_deciding_model, read_decision_log, same_ranking
from tilewise.errors import DataError
from tilewise.model import load_artefact
from tilewise.ops import GroupedConvProblem

PLAIN = GroupedConvProblem(N=8, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model", trees=10)


class TestDecisionLog:
    def test_a_decision_is_one_line_and_can_be_replayed(self, folder: Path, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        with Dispatcher.from_folder(folder, switches=Switches(journal=str(path))) as dispatcher:
            selections = [dispatcher.select(PLAIN) for _ in range(3)]
            explained = dispatcher.explain(PLAIN)
        (line,) = read_decision_log(path)
        assert (line["kernel_name"], line["why"], line["cause"]) == (selections[0].kernel_name, "model", None)
        assert (line["target"], line["problem"], line["lost"]) == (CONV, PLAIN.stated(), 0)
        assert line["content_hash"] == load_artefact(folder).content_hash
        assert line["ranking"] == [(s.kernel_name, s.predicted_tflops) for s in dispatcher.rank(PLAIN, 5)]
        assert line["seconds"] > 0
        assert same_ranking(line, explained)
        model = find_deciding_model(line, folder, None)
        assert model is not None
        assert model.content_hash == line["content_hash"]

    def test_a_missing_model_is_an_error(self, folder: Path, tmp_path: Path) -> None:
        line: Any = {"content_hash": "0" * 64, "target": CONV}
        with pytest.raises(DataError, match="neither in"):
            find_deciding_model(line, folder, f"sqlite:///{tmp_path}/none.db")

    def test_a_share(self, folder: Path, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        with Dispatcher.from_folder(folder, switches=Switches(journal=str(path), journal_share=0)) as dispatcher:
            dispatcher.select(PLAIN)
        assert not path.exists()

    def test_a_damaged_line_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "journal").write_text('{"format": 1}\n')
        with pytest.raises(DataError, match="journal:1: not a decision"):
            read_decision_log(tmp_path / "journal")

    @pytest.mark.parametrize(
        "damage",
        [b'{"format": 1, "targ', b"[" * 100_000, b"\xff\xfe", b"[]", b'{"format": 1, "target": null}', b""],
    )
    def test_a_damaged_line_costs_no_other(self, folder: Path, tmp_path: Path, damage: bytes) -> None:
        path = tmp_path / "journal"
        with Dispatcher.from_folder(folder, switches=Switches(journal=str(path))) as dispatcher:
            dispatcher.select(PLAIN)
            dispatcher.select({**PLAIN.to_dict(), "N": 1})
        first, second = path.read_bytes().splitlines()
        path.write_bytes(b"\n".join([first, damage, second, damage]))
        assert [line["problem"]["N"] for line in read_decision_log(path)] == [8, 1]


class TestExplain:
    def test_the_shares_of_the_features_multiply_to_the_ratio_of_the_predictions(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tilewise.dispatch._explain.MAX_FEATURES", 100)  # all of them, for the product
        explained = Dispatcher.from_folder(folder, switches=Switches()).explain(PLAIN)
        first, second = explained["ranking"][:2]
        assert (explained["kernel_name"], explained["runner_up"]) == (first[0], second[0])
        product = 1.0
        for row in explained["features"]:
            product *= 1 + row["percent"] / 100
            assert row["winner"] != row["runner_up"]
        assert len(explained["features"]) < 100
        assert first[1] is not None
        assert second[1] is not None
        assert product == pytest.approx(first[1] / second[1])

    def test_without_a_model(self) -> None:
        explained = Dispatcher.from_pool(CONV).explain(PLAIN)
        assert (explained["why"], explained["cause"], explained["features"]) == ("fallback", "there is no model", [])
