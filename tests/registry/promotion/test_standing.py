"""A promotion with nothing left to do is recognised by the registry and its files; anything else is promoted again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from registry.promotion.ways import by_hand
from small_model import altered, table, write_model
from store import fresh_store
from synthetic import CONV
from tilewise.errors import ConfigError
from tilewise.gate import DECISION_FILE, DECISION_PAGE, Thresholds, decision_to_html, decision_to_json, parse_decision
from tilewise.model import load_artefact
from tilewise.registry import CANDIDATE, find_by_number, list_versions, roll_back, set_alias
from tilewise.registry.promotion import Override, PromotionRules, find_standing, promote
from tilewise.registry.promotion._standing import model_identity

THRESHOLDS = Thresholds(floor_mean=80, floor_p10=50, min_problems=5)
OVERRIDE = Override("small tables of tests")

Standing = Callable[[], int | None]
Put = Callable[[str], None]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return tmp_path / "models" / CONV


@pytest.fixture
def put(registry: str, tmp_path: Path, model_dir: Path) -> Put:
    """Return a function that promotes a model with a note."""

    def _put(note: str) -> None:
        write_model(model_dir, trees=60, note=note)
        promote(model_dir, table(), PromotionRules(THRESHOLDS, 0.18, override=OVERRIDE), tmp_path / "reports")

    return _put


@pytest.fixture
def find(registry: str, tmp_path: Path, model_dir: Path) -> Standing:
    """Return a function that tells the version with which the model's promotion stands."""

    def _find() -> int | None:
        found = find_standing(load_artefact(model_dir), THRESHOLDS, OVERRIDE, tmp_path / "reports", registry)
        return found.number if found else None

    return _find


@pytest.fixture
def standing(put: Put, find: Standing) -> Standing:
    """Promote two models; return the function that tells the version with which the second promotion stands."""
    put("first")
    put("second")
    return find


@pytest.mark.long
def test_a_first_promotion_stands(put: Put, find: Standing) -> None:
    put("first")
    assert find() == 1


@pytest.mark.long
def test_stands_after_it_was_carried_out(standing: Standing) -> None:
    assert standing() == 2


@pytest.mark.long
def test_another_candidate_does_not(standing: Standing, model_dir: Path) -> None:
    write_model(model_dir, trees=60, note="third")
    assert standing() is None


@pytest.mark.long
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
def test_a_third_one_stands_but_not_with_aliases_moved_by_hand(standing: Standing, put: Put) -> None:
    put("third")
    assert standing() == 3
    by_hand(2)
    assert standing() is None
    by_hand(2, "candidate")
    assert standing() is None, "both name a version that the gate promoted, but not this one"
    by_hand(3)
    by_hand(3, "candidate")
    assert standing() == 3


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
def test_not_with_a_record_that_was_edited_together_with_its_page(standing: Standing, tmp_path: Path) -> None:
    file = tmp_path / "reports" / DECISION_FILE
    edited = parse_decision(file.read_text())
    assert edited is not None
    del edited["override"]
    file.write_text(decision_to_json(edited))
    file.with_name(DECISION_PAGE).write_text(decision_to_html(edited))
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


def test_the_identity_names_content_origin_and_kind(tmp_path: Path) -> None:
    model = load_artefact(write_model(tmp_path / CONV))
    stated = altered(model, manifest={"data_hash": "d1", "git_revision": "r1"})
    identity = {"content_hash": model.content_hash, "label": "lambdarank", "pool_size": 24}
    assert model_identity(stated) == identity | {"data_hash": "d1", "git_revision": "r1"}
    assert model_identity(altered(model, manifest={})) == identity | {"data_hash": None, "git_revision": None}
