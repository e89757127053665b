"""Model cards state figures, weak slices, limits and the data's licence, and every committed target has one."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from benchmarks.leaderboard.cards import cards_page
from benchmarks.results import RESULTS, load

from publish.test_tables import ROOT
from synthetic import CONV
from tilewise.ops import Target
from tilewise.publish import CardFacts, model_card, slice_in_words

FACTS = CardFacts(
    target=Target.parse(CONV),
    pool_size=131,
    split_rule="holdout by hash",
    figures={
        "cross-validated": {"mean_efficiency": 0.96},
        "holdout": {"mean_efficiency": 0.976, "p10_efficiency": 0.9367, "min_efficiency": 0.306},
    },
    n_holdout=496,
    origins=["resnet50/conv1", "random"],
    weakest=["stride 2: P10 80.0 % of 20 problems"],
)


def test_a_card_has_its_facts() -> None:
    text = model_card(FACTS)
    assert "| P10 | - | 93.67 % |" in text
    assert "| worst problem | - | 30.60 % |" in text
    assert "median" not in text
    assert "- **Weakest slices, holdout**: stride 2: P10 80.0 % of 20 problems." in text
    assert "- **Limits**: Other kernels, dtypes and GPUs need a model of their own.\n" in text
    assert "tilewise's own are MIT." in text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"n_holdout": 29}, "The holdout has only 29 problems, so its tail is uncertain."),
        ({"vendor": {"geomean": 1.3, "p10": 1.0, "least": 0.48}}, "geometric mean 1.30, P10 1.00, least 0.48."),
        ({"vendor": {"geomean": 1.3, "p10": 1.0, "least": 0.48}}, "the vendor's call is faster than the selection."),
        ({"whole_pool": {"mean_efficiency": 0.912}}, "charged as the slowest listed, the mean is 91.20 %."),
        (
            {"origins": ["gfx90a68.HIP.fdb.txt.bz2"]},
            "MIOpen's find database gfx90a68, (c) Advanced Micro Devices, MIT.",
        ),
    ],
)
def test_a_limit_is_stated_where_it_holds(change: dict[str, object], sentence: str) -> None:
    assert sentence not in model_card(FACTS)
    assert sentence in model_card(dataclasses.replace(FACTS, **change))  # type: ignore[arg-type]  # fields by name


def test_a_slice_in_words() -> None:
    figures = {"mean_efficiency": 0.9, "median_efficiency": 0.9, "p10_efficiency": 0.8, "min_efficiency": 0.7}
    words = slice_in_words({"slice": "stride", "value": "2", "n_problems": 20, **figures})  # type: ignore[typeddict-item]
    assert words == "stride 2: P10 80.0 % of 20 problems"


def test_every_committed_target_has_a_card_with_its_figures() -> None:
    page = cards_page()
    for target in yaml.safe_load((ROOT / "conf/stages/all.yaml").read_text())["targets"]:
        held = load(RESULTS / f"target_{target}.json")["holdout"]
        section = page.split(f"## `{target}`\n")[1].split("\n## ")[0]
        assert f"{100 * held['p10_efficiency']:.2f} % |" in section
        assert f"{100 * held['min_efficiency']:.2f} % |" in section
        assert ("Advanced Micro Devices, MIT." in section) is ("_gfx9" in target)
