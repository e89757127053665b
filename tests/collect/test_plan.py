"""A plan survives its JSON text, and an impossible plan is refused with the reason."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewise.collect import Item, Outcome, Plan, Timing, load_plan
from tilewise.errors import ConfigError, DataError
from tilewise.kernels import Pool, unsupported
from tilewise.kernels.triton import Kernel
from tilewise.ops import GroupedConvProblem


def test_a_plan_survives_its_json(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan.dumps())
    again = load_plan(path)
    assert again == plan
    assert again.hash == plan.hash


def test_the_hash_changes_with_every_part(plan: Plan) -> None:
    others = [
        dataclasses.replace(plan, run_id="run-2"),
        dataclasses.replace(plan, items=plan.items[1:]),
        dataclasses.replace(plan, timing=Timing(rounds=9)),
        dataclasses.replace(plan, pool=Pool(plan.pool.op, plan.pool.variant, plan.pool.dtype, plan.pool.kernels[1:])),
    ]
    assert len({plan.hash, *(o.hash for o in others)}) == 5


def test_a_problem_may_ask_for_some_kernels(plan: Plan, tmp_path: Path) -> None:
    some = dataclasses.replace(plan, items=(dataclasses.replace(plan.items[0], kernels=(0, 4)), *plan.items[1:]))
    (tmp_path / "plan.json").write_text(some.dumps())
    again = load_plan(tmp_path / "plan.json")
    assert again == some
    assert again.hash != plan.hash
    assert again.kernel_mask(0).tolist() == [True, False, False, False, True, False]
    assert sorted(again.excluded_outcomes(0)) == [1, 2, 3, 5]
    assert again.kernel_mask(1).all()
    assert again.excluded_outcomes(1) == {}


@pytest.mark.parametrize("kernels", [(), (4, 0), (1, 1), (-1,), (6,)])
def test_kernels_outside_the_pool_are_refused(plan: Plan, kernels: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="problem 0: kernels must be ascending indices below 6"):
        dataclasses.replace(plan, items=(dataclasses.replace(plan.items[0], kernels=kernels),))


def test_an_illegal_kernel_is_refused(plan: Plan) -> None:
    pool = Pool(plan.pool.op, plan.pool.variant, plan.pool.dtype, (Kernel(256, 256, 64, "taps", 4, 3),))
    with pytest.raises(ConfigError, match=r"256x256x64_taps_w4_s3_g1_k1 is illegal on sm90: .*accumulators"):
        dataclasses.replace(plan, pool=pool)


def test_a_repeated_problem_is_refused(plan: Plan) -> None:
    with pytest.raises(ConfigError, match="problem 5 repeats problem 0"):
        dataclasses.replace(plan, items=(*plan.items, Item(plan.items[0].problem, "again")))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda v: v.pop("pool"), "not a plan: KeyError"),
        (lambda v: v["items"][0]["problem"].update(G=3), "C: must be divisible by G = 3"),
        (lambda v: v["timing"].update(rounds=0), "min_rounds <= rounds"),
        (lambda v: v["timing"].update(speed=1), "not a plan: TypeError"),
        (lambda v: v["pool"].update(hash="0"), "names or hash do not match its kernels"),
        (lambda v: v["items"][0].update(kernels=["none"]), "not a plan: ValueError"),
        (lambda v: v.update(items=[7]), "not a plan: AttributeError"),
        (lambda v: v.update(target=[]), "not a plan: TypeError"),
        (lambda v: v["arch"].pop("l2_bytes"), "'l2_bytes' is missing"),
    ],
)
def test_a_damaged_plan_is_named(
    plan: Plan, tmp_path: Path, damage: Callable[[dict[str, Any]], object], message: str
) -> None:
    values = json.loads(plan.dumps())
    damage(values)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(values))
    with pytest.raises(DataError, match=rf"plan\.json: .*{message}"):
        load_plan(path)


def test_a_missing_or_torn_plan_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.json"):
        load_plan(tmp_path / "none.json")
    for torn in (b'{"target":', b"\xff\xfe{}", b"[" * 100_000, b"9" * 5000):
        (tmp_path / "torn.json").write_bytes(torn)
        with pytest.raises(DataError, match=r"torn\.json"):
            load_plan(tmp_path / "torn.json")


def test_known_and_unsupported_kernels_need_no_run(plan: Plan) -> None:
    huge = GroupedConvProblem(2**16, 64, 64, 1, 64, 64, 1, 1)  # beyond 32-bit indices: no kernel supports it
    known = {1: Outcome("timeout", "took too long")}
    asked = plan.target.variant, plan.target.dtype
    reasons = {i: unsupported(kernel, huge, *asked) for i, kernel in enumerate(plan.pool.kernels)}
    assert all(reasons.values())
    assert plan.settled_outcomes(huge, known) == {i: Outcome("unsupported", why) for i, why in reasons.items()} | known
    fits = plan.items[0].problem
    free = {i for i, kernel in enumerate(plan.pool.kernels) if not unsupported(kernel, fits, *asked)}
    assert free
    assert set(plan.settled_outcomes(fits, {})) == set(range(len(plan.pool))) - free
