"""The problems that a command plans to measure; the committed runs are planned again identically."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tilewise.cli.compose import compose
from tilewise.cli.measuring.collect import plan_from_config
from tilewise.cli.problems import counts
from tilewise.collect import Item
from tilewise.collect.problems import SETS, load_problem_set
from tilewise.data import holdout_mask
from tilewise.errors import ConfigError
from tilewise.markdown import fill
from tilewise.ops import GemmProblem


def planned(*overrides: str) -> tuple[Item, ...]:
    return plan_from_config(compose(overrides)).items


# The problems of the committed runs, in their order.
@pytest.mark.long
@pytest.mark.parametrize(
    ("overrides", "count", "digest"),
    [
        ((), 1828, "2bb3fe90010780be88762352a66bdf349a0573c835c0ab004a28ace7d6590068"),
        (("collect.repeat=150",), 474, "d45e96da05bd402b1791a004a13d045b18154e7625cc7e836dabb2a944a90904"),
        (
            ("variant=bwd_data", "collect.part=[0,480]"),
            480,
            "5edd5c84ea5a73d632e5a9c039a9fe1c8876421d74a744454b39c6d0ec8a2f76",
        ),
    ],
)
def test_a_committed_run_is_planned_again(overrides: tuple[str, ...], count: int, digest: str) -> None:
    items = planned(*overrides)
    assert len(items) == count
    text = "\n".join(f"{i.origin} {i.problem.stated()}" for i in items)
    assert hashlib.sha256(text.encode()).hexdigest() == digest


@pytest.mark.long
def test_sets_are_chosen_by_name_and_by_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("origin,M,N,K\nmine,1,2,3\n")
    gemm = "target=gemm_universal_bf16_sm90"
    assert planned(gemm) == load_problem_set("gemm", "gemm-1")
    assert planned(gemm, f"collect.problems={path}") == (Item(GemmProblem(1, 2, 3), "mine"),)
    both = planned("collect.problems=[grouped_conv-1,grouped_conv-2]", "variant=bwd_weight")
    assert both == load_problem_set("grouped_conv", ("grouped_conv-1", "grouped_conv-2"))


@pytest.mark.long
@pytest.mark.parametrize("part", ["[3]", "[5,5]", "[-1,4]", "[0,1829]", "[0,x]", "7"])
def test_a_part_outside_the_set_is_refused(part: str) -> None:
    with pytest.raises(ConfigError, match=r"collect\.part must be \[FIRST,END\] .* within 0 and 1828"):
        planned(f"collect.part={part}")


@pytest.mark.long
def test_a_repeat_measures_the_validation_problems_first() -> None:
    gemm = "target=gemm_universal_fp8_sm90"
    items = planned(gemm)
    held = holdout_mask("gemm", np.array([i.problem.group_key for i in items]), float(compose().holdout.fraction))
    validating = [i for i, h in zip(items, held, strict=True) if h]
    others = [i for i, h in zip(items, held, strict=True) if not h]
    assert planned(gemm, "collect.repeat=0") == tuple(validating)
    assert planned(gemm, "collect.repeat=7") == (*validating, *others[:7])
    with pytest.raises(ConfigError, match=r"collect\.repeat must be a whole number of at least 0, got -1"):
        planned(gemm, "collect.repeat=-1")


@pytest.mark.long
def test_a_problem_in_two_files_is_refused() -> None:
    with pytest.raises(ConfigError, match="problem 1828 repeats problem 0"):
        planned("collect.problems=[grouped_conv-1,grouped_conv-1]")


def test_counts_tell_training_from_validation() -> None:
    lines = counts(load_problem_set("grouped_conv"), "grouped_conv", 0.18).splitlines()
    assert lines[2] == "| all | 1828 | 1504 | 324 |"
    assert any(line.startswith("| kind: depthwise | 279 | ") for line in lines)


@pytest.mark.long
def test_the_page_has_the_counts_of_every_set() -> None:
    """``python -m tilewise.cli.problems describe --page docs/problems.md`` writes them."""
    page = (Path(__file__).parents[2] / "docs" / "problems.md").read_text()
    tables = {
        name: counts(load_problem_set(s.op, name), s.op, float(compose().holdout.fraction)) for name, s in SETS.items()
    }
    assert fill(page, tables) == page
