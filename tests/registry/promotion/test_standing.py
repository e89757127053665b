"""A promotion with nothing left to do is recognised by the registry and its files; anything else is promoted again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from small_model import table, write_model
from store import fresh_store
from synthetic import CONV
from tilewise.errors import ConfigError
from tilewise.gate import DECISION_FILE, DECISION_PAGE, Thresholds
from tilewise.model import load_artefact
from tilewise.registry import CANDIDATE, find_by_number, list_versions, roll_back, set_alias
from tilewise.registry.promotion import Override, PromotionRules, find_standing, promote

THRESHOLDS = Thresholds(floor_mean=80, floor_p10=50, min_problems=5)
OVERRIDE = Override("small tables of tests")

Standing = Callable[[], int | None]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return tmp_path / "models" / CONV


@pytest.fixture
def standing(registry: str, tmp_path: Path, model_dir: Path) -> Standing:
    """Promote a model; return a function that tells the version with which the same promotion stands."""

    def put(note: str) -> None:
        write_model(model_dir, trees=60, note=note)
        promote(model_dir, table(), PromotionRules(THRESHOLDS, 0.18, override=OVERRIDE), tmp_path / "reports")

    def find() -> int | None:
        found = find_standing(load_artefact(model_dir), THRESHOLDS, OVERRIDE, tmp_path / "reports", registry)
        return found.number if found else None

    put("first")
    put("second")
    return find


def test_stands_after_it_was_carried_out(standing: Standing) -> None:
    assert standing() == 2


def test_another_candidate_does_not(standing: Standing, model_dir: Path) -> None:
    write_model(model_dir, trees=60, note="third")
    assert standing() is None


def test_not_after_a_rollback(standing: Standing) -> None:
    roll_back(CONV, reason="slower")
    assert standing() is None


@pytest.mark.long
def test_not_where_another_is_the_candidate(standing: Standing) -> None:
    first = find_by_number(CONV, 1)
    assert first
    set_alias(first, CANDIDATE)
    assert standing() is None


@pytest.mark.long
def test_not_in_an_empty_registry(standing: Standing, tmp_path: Path, model_dir: Path) -> None:
    assert standing() == 2
    for uri in (fresh_store(tmp_path / "new"), f"sqlite:///{tmp_path}/none.db"):
        found = find_standing(load_artefact(model_dir), THRESHOLDS, OVERRIDE, tmp_path / "reports", uri)
        assert found is None


@pytest.mark.long
@pytest.mark.parametrize("name", [DECISION_FILE, DECISION_PAGE])
@pytest.mark.parametrize("text", [None, "{}"])
def test_not_without_its_record(standing: Standing, tmp_path: Path, name: str, text: str | None) -> None:
    file = tmp_path / "reports" / name
    file.unlink() if text is None else file.write_text(text)
    assert standing() is None


@pytest.mark.long
@pytest.mark.parametrize("content", [None, b"broken"])
def test_not_where_the_registrys_files_are_damaged(standing: Standing, tmp_path: Path, content: bytes | None) -> None:
    assert len(list_versions(CONV)) == 2
    for file in (tmp_path / "store").rglob("pool.json"):
        file.unlink() if content is None else file.write_bytes(content)
    assert standing() is None


@pytest.mark.long
def test_weaker_limits_are_refused_as_ever(standing: Standing, tmp_path: Path, model_dir: Path, registry: str) -> None:
    assert standing() == 2
    with pytest.raises(ConfigError, match="must not be weaker than the shipped ones"):
        find_standing(load_artefact(model_dir), THRESHOLDS, Override(), tmp_path / "reports", registry)
