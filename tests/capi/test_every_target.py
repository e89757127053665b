"""Python and C pick the same kernel on every validation problem of every target."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

from capi.client import NO_KERNEL, Client, c_problem, needs_compiler
from model.test_ranker import CK, compiled
from small_model import altered, write_model
from tilewise.capi import export_model
from tilewise.cli.compose import compose
from tilewise.collect.problems import SETS, load_problem_set
from tilewise.data import holdout_mask
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import Problem, Target

pytestmark = [needs_compiler, pytest.mark.long]
MODELS = Path(__file__).parents[2] / "models"
# Targets of MIOpen's solvers have no made-up kernels; their pools are as those of test_mixed_pool.py.
TRAINED = tuple(name for name in compose(["stages=all"]).targets if not name.endswith(("gfx942", "gfx90a")))


def validation_problems(op: str) -> list[Problem]:
    """Return the holdout of every problem set, as evaluation splits it."""
    problems = [i.problem for name, s in SETS.items() if s.op == op for i in load_problem_set(op, name)]
    held = holdout_mask(op, np.array([p.group_key for p in problems]), compose().holdout.fraction)
    return list(dict.fromkeys(p for p, h in zip(problems, held, strict=True) if h))


def model_of(name: str, folder: Path) -> TrainedModel:
    """Return the pipeline's model where there is one, else a small one; for CK Tile's kernels one of made-up trees."""
    if name in TRAINED:
        there = MODELS / name
        return load_artefact(there if there.is_dir() else write_model(folder / name, target=name))
    _, pool, arch, table, trees, estimate = compiled(name)
    any_model, target = load_artefact(write_model(folder / "any", trees=4)), Target.parse(name)
    made = {"target": target, "pool": pool, "arch": arch, "features": table, "scores": trees}
    return altered(any_model, **made, scale=None, cost_model=estimate)


def pick(model: TrainedModel, problem: Problem, left_out: Collection[str]) -> str | int:
    """Return the kernel that Python selects from those that C programs can launch."""
    can = np.flatnonzero(model.supported(problem) & ~np.isin(model.pool.names, list(left_out)))
    if not left_out:
        best = model.best(problem, 1)[0]
    elif len(can):  # the shortlist is one of these kernels too
        columns = {name: column[can] for name, column in model.pool.columns.items()}
        best = [can[model.score_candidates(np.zeros(len(can), dtype=np.int64), problem.to_dict(), columns).argmax()]]
    else:
        best = []
    return model.pool.names[best[0]] if len(best) else NO_KERNEL


@pytest.mark.parametrize("name", [*TRAINED, *CK])
def test_python_and_c_pick_the_same_kernel(name: str, tmp_path: Path) -> None:
    model = model_of(name, tmp_path)
    left_out = export_model(model, tmp_path / "model.twm")
    problems = validation_problems(model.target.op)
    assert len(problems) > 100
    python = [pick(model, p, left_out) for p in problems]
    with Client(tmp_path / "model.twm") as asked:
        assert asked.code == 0, asked.error
        assert [asked.select(c_problem(p)) for p in problems] == python
    assert len(set(python)) > 5, "a model that always answers alike would prove nothing"
