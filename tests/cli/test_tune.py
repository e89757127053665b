"""`make tune` repeats a committed study, and the page on tuning counts the trials of all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewise.cli._request import parse
from tilewise.cli.compose import compose
from tilewise.cli.models.tune import DEEP_TRIALS, STORAGE, study_overrides
from tilewise.conf_files import conf_dir
from tilewise.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"
STUDIES = {
    path.stem: re.search(r"^# study: (.*)$", path.read_text(), re.MULTILINE)
    for path in sorted((conf_dir() / "tuned").glob("*.yaml"))
    if path.stem != "none"
}


@pytest.mark.long
@pytest.mark.parametrize("target", [*STUDIES, "gemm_universal_bf16_sm90"])
def test_a_study_is_a_training_that_changes_nothing_committed(target: str) -> None:
    overrides = study_overrides(target)
    cfg = compose(parse(["train", *overrides]).overrides)
    assert cfg.target == target
    assert (cfg.tune.write, cfg.tune.storage, cfg.out) == (None, STORAGE, f"build/tune/{target}")
    assert cfg.tune.n_trials == (6 if target == "grouped_conv_forward_bf16_sm90" else DEEP_TRIALS)
    assert compose(study_overrides(target, 7)).tune.n_trials == 7


def test_a_recorded_study_keeps_its_space_and_objectives() -> None:
    cfg = compose(study_overrides("grouped_conv_forward_bf16_sm90", 12))
    assert list(cfg.tune.objectives) == ["efficiency", "selection_time"]
    assert list(cfg.tune.space.num_leaves) == [63, 255]


def test_the_page_counts_the_trials_of_the_committed_studies() -> None:
    counts = {target: re.search(r"(\d+) trials", study[1]) for target, study in STUDIES.items() if study}
    assert set(counts) == set(STUDIES)
    searched = {target: int(found[1]) for target, found in counts.items() if found}
    page = PAGE.read_text()
    for target, trials in searched.items():
        assert f"| `{target}` | {trials} |" in page
    by_hand = [target for target in STUDIES if target not in searched]
    amd = [target for target in by_hand if target.endswith(("gfx90a", "gfx942"))]
    assert f"| the {len(amd)} convolutions on gfx90a and gfx942 | 0 |" in page
    assert all(f"| `{target}` | 0 |" in page for target in by_hand if target not in amd)
    assert f"The pipeline itself runs {compose().tune.n_trials} trials" in page


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="'nonsense' is not a target"):
        study_overrides("nonsense")
    with pytest.raises(ConfigError, match="TRIALS must be a whole number of at least 2"):
        study_overrides("gemm_universal_bf16_sm90", 1)
