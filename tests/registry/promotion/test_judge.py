"""The record of a judgement, and its parts: models evaluated on the same rows, and a production that cannot be used."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gate.shadowed import A, B, C, file_of, observed
from registry.promotion.ways import GOOD, KEY, REASON, TARGET, Promote
from small_model import KERNELS, PROBLEMS, altered, table, with_pool, write_model
from synthetic import CONV, measurements
from tilewise.data import TargetTable, split_rule, table_hash
from tilewise.errors import ArtefactError, DataError
from tilewise.evaluate import evaluate, noise_ceiling
from tilewise.gate import Observations, round_figures
from tilewise.model import TrainedModel, load_artefact
from tilewise.registry import Version
from tilewise.registry._versions import HASH_TAG, create_version
from tilewise.registry.promotion import Override
from tilewise.registry.promotion._holdout_problems import HoldoutProblems
from tilewise.registry.promotion._judge import (
    _align,
    _differences,
    _evaluate_incumbent,
    _evidence,
    _load_incumbent,
    fair_fraction,
)
from tilewise.registry.promotion._standing import model_identity

FLOORS = Override("why", production=True)
PROBLEMS_HELD_OUT = HoldoutProblems.of(TargetTable.of(table(), TARGET).holdout(0.18))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return load_artefact(write_model(tmp_path_factory.mktemp("models") / CONV, **GOOD))


@pytest.mark.long
def test_the_record_states_models_rows_noise_and_override(go: Promote, tmp_path: Path) -> None:
    twice = measurements(CONV, PROBLEMS, KERNELS, repeats=PROBLEMS)
    decision: dict[str, Any] = {**go(GOOD, twice).decision}
    holdout = TargetTable.of(twice, TARGET).holdout(0.18)
    ceiling = noise_ceiling(twice, TARGET)
    assert ceiling is not None
    gate, reasons = decision.pop("gate"), decision.pop("reasons")
    assert (gate["promote"], gate["n_problems"], reasons[0]) == (True, 8, gate["reasons"][0])
    waived = ["gate.floor_mean is 80 instead of 90", "gate.floor_p10 is 50 instead of 75"]
    waived += ["gate.min_problems is 5 instead of 25"]
    assert decision == {
        "target": CONV,
        "outcome": "promoted",
        "notes": [],
        "candidate": model_identity(load_artefact(tmp_path / "models" / CONV)),
        "production": None,
        "holdout": {
            "hash": table_hash(holdout.rows.reset_index(drop=True)),
            "split_rule": split_rule(TARGET, 0.18),
            "fraction": 0.18,
            "noise_ceiling": round_figures(dataclasses.asdict(ceiling)),
            "n_problems": 8,
            "problems": HoldoutProblems.of(holdout).digest,
        },
        "override": {"reason": REASON, "waived": waived},
    }


@pytest.mark.long
def test_the_record_names_production(go: Promote, tmp_path: Path) -> None:
    go(GOOD)
    first = model_identity(load_artefact(tmp_path / "models" / CONV))
    decision = go(GOOD | {"note": "second"}).decision
    assert decision["production"] == first
    assert decision["candidate"] == model_identity(load_artefact(tmp_path / "models" / CONV)) != first
    assert decision["holdout"]["noise_ceiling"] is None, "measured once"
    assert decision["notes"] == []


@pytest.mark.parametrize(("manifest", "fraction", "notes"), [
    ({}, 0.18, []),
    ({"holdout_fraction": 0.18}, 0.18, []),
    ({"holdout_fraction": 0.3}, 0.18, []),
    ({"holdout_fraction": 0.1}, 0.1, ["production was trained with a holdout of 0.1; both are judged on that one"]),
    ({"holdout_fraction": 0.0}, 0.18, [
        "production was trained on all problems, these included: the comparison favours it"
    ]),
])  # fmt: skip
def test_both_are_judged_on_problems_that_neither_knows(
    manifest: dict[str, Any], fraction: float, notes: list[str]
) -> None:
    incumbent: Any = SimpleNamespace(manifest=manifest)
    assert fair_fraction(incumbent, 0.18) == (fraction, notes)


class TestUnusableProduction:
    @pytest.fixture
    def lost(self, registry: str, tmp_path: Path) -> Version:
        """Return a version whose files are gone."""
        return create_version(CONV, (tmp_path / "gone").as_uri(), None, None, {HASH_TAG: "c" * 64}, "")

    def test_without_one_there_is_nothing_to_load(self) -> None:
        assert _load_incumbent(None, Override(), []) is None

    def test_files_that_are_gone_refuse_with_the_remedies(self, lost: Version) -> None:
        with pytest.raises(ArtefactError) as raised:
            _load_incumbent(lost, Override("why"), [])
        text = str(raised.value)
        assert text.startswith(f"a candidate is judged against production, which cannot be loaded: {lost}: ")
        assert text.endswith(
            "; put a sound version into production with 'tilewise rollback version=N', or restore its files in the "
            "registry; to insist, set gate.override.production=true and gate.override.reason='...', which everybody "
            "will see"
        )

    def test_files_that_are_gone_may_be_waived(self, lost: Version) -> None:
        waived = ["another rule"]
        assert _load_incumbent(lost, FLOORS, waived) is None
        assert waived[1:] == ["production cannot be loaded (ArtefactError), so the floors of a first model apply"]

    def test_kernels_that_were_not_measured_refuse_with_the_remedies(self, model: TrainedModel) -> None:
        first = with_pool(model, model.pool.kernels[:1])
        others = table()[lambda f: f["kernel_name"] != model.pool.names[0]]
        waived: list[str] = []
        with pytest.raises(DataError) as raised:
            _evaluate_incumbent(first, others, Override("why"), waived)
        assert str(raised.value) == (
            "a candidate is judged against production, but no kernel of production's pool was measured on these rows; "
            "add measurements of these kernels to data=, or go back with 'tilewise rollback version=N'; to insist, "
            "set gate.override.production=true and gate.override.reason='...', which everybody will see"
        )
        assert _evaluate_incumbent(first, others, FLOORS, waived) is None
        assert waived == [
            "no kernel of production's pool was measured on these rows, so the floors of a first model apply"
        ]


class TestAligned:
    def test_a_problem_that_one_model_lacks_counts_as_lost(self, model: TrainedModel) -> None:
        rows = TargetTable.of(table(), TARGET).holdout(0.18).rows
        keys = rows[KEY].drop_duplicates().sort_values(KEY, kind="stable").reset_index(drop=True)
        first, last = keys.head(1), keys.tail(1)
        ours, theirs = (evaluate(model, _without(rows, gone)) for gone in (first, last))
        both = _align(TARGET.op, PROBLEMS_HELD_OUT, ours, theirs)
        assert both[KEY].astype(str).equals(keys.astype(str))
        for suffix, lacking in (("", 0), ("_production", len(keys) - 1)):
            lost = np.arange(len(keys)) == lacking
            assert ((both[f"efficiency{suffix}"] == 0) == lost).all()
            assert ((both[f"selected{suffix}"] == "none") == lost).all()
        assert both["oracle"].notna().all()
        assert list(both.columns[-2:]) == ["efficiency_production", "selected_production"]

    def test_alone_a_model_has_its_own_problems(self, model: TrainedModel) -> None:
        ours = evaluate(model, table(), 0.18)
        both = _align(TARGET.op, PROBLEMS_HELD_OUT, ours, None)
        assert list(both["efficiency"]) == list(ours.per_problem.sort_values(KEY, kind="stable")["efficiency"])
        assert "efficiency_production" not in both
        assert list(both.columns[-3:]) == ["efficiency", "selected", "oracle"]


class TestNotes:
    def test_equal_models_have_none(self, model: TrainedModel) -> None:
        assert _differences(model, model) == []

    def test_pools_and_features_that_differ_are_counted(self, model: TrainedModel) -> None:
        features = model.features.select(model.features.names[2:])
        fewer = altered(with_pool(model, model.pool.kernels[:20]), features=features)
        assert _differences(model, fewer) == [
            "the pools differ: 4 kernels are new, 0 are gone",
            "the feature schemas differ: 2 features are new, 0 are gone",
        ]
        assert _differences(fewer, model) == [
            "the pools differ: 0 kernels are new, 4 are gone",
            "the feature schemas differ: 0 features are new, 2 are gone",
        ]

    def test_observations_that_do_not_count_are_told(self) -> None:
        candidate, incumbent = (_of_content(content) for content in (B, A))
        seen = file_of(observed([1.5] * 3), observed([2.0] * 2, candidate=C))
        notes: list[str] = []
        evidence = _evidence(Observations(seen.valid, 4), candidate, incumbent, notes)
        assert evidence is not None
        assert (len(evidence.problems), evidence.n_other_models) == (3, 2)
        assert notes == [
            "4 lines of the observations are damaged and left out",
            "2 observations are of other models and left out",
        ]

    def test_nothing_counts_without_a_production(self) -> None:
        notes: list[str] = []
        assert _evidence(file_of(observed([1.5])), _of_content(B), None, notes) is None
        assert notes == ["what was observed does not count: there is no production to compare with"]


def _without(rows: Any, gone: Any) -> Any:
    """Return the rows of all problems but one."""
    is_gone = (rows[KEY].astype(str) == gone[KEY].astype(str).iloc[0]).all(axis=1)
    return rows[~is_gone]


def _of_content(content_hash: str) -> Any:
    return SimpleNamespace(content_hash=content_hash)
