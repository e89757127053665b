"""Plans that measure further candidates on measured problems, beside the kernels that were fastest there.

    python -m benchmarks.measuring.candidate_plan TARGET OUTPUT [--problems N] [--run-id ID] [--seed S] [--grouped]
                                                                [--new]

A run shares its fastest kernels with earlier runs of a problem, so that labels of all runs can be brought to one level.
Problems with a row of the vendor's calls are left out. Held-out problems come first, then others at random: what a
budget cuts off is a random part. ``--grouped`` takes convolutions of several channels a group alone: they are rare in
the sets, and the vendor's calls for them differ most. ``--new`` measures the kernels of the shipped pool that no row
has, in place of the vendor's calls, on all problems that they support.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewise.arch import load_arch
from tilewise.collect import Item, Plan, Timing
from tilewise.data import TargetTable, read_measurements
from tilewise.kernels import Pool, illegal, load_pool
from tilewise.kernels.vendor import CALLS, VendorCall
from tilewise.ops import GroupedConvProblem, Problem, Target

ANCHORS = 4  # fastest kernels that a run measures again; labels need three in common
HOLDOUT = 0.18  # share of the shapes, as conf/config.yaml has it


def is_grouped(problem: Problem) -> bool:
    """Return whether a problem is a convolution of several channels in each of several groups."""
    return isinstance(problem, GroupedConvProblem) and 1 < problem.G < problem.C


def candidate_plan(table: TargetTable, pool: Pool, wanted: Sequence[int], run_id: str, *, new: bool = False) -> Plan:
    """Return a plan of further candidates, and of the kernels that were fastest.

    Args:
        table: labelled rows of the target.
        pool: the kernels to compare with; calls of the vendor among them are measured once.
        wanted: numbers of the problems, in the order in which they are measured.
        run_id: of the run.
        new: the candidates are the kernels of the pool without a row; else they are the vendor's calls.
    """
    target, arch = table.target, load_arch(table.target.arch)
    calls = () if new else vendor_calls(target)
    mixed = Pool(pool.op, pool.variant, pool.dtype, (*pool.kernels, *calls))
    number, kernel = table.problem, table.kernel(pool)
    candidates = set(range(len(pool))) - set(kernel.tolist()) if new else set(range(len(pool), len(mixed)))
    fastest: dict[int, list[int]] = {}
    order = np.lexsort((-table.tflops, number))
    for row in order[kernel[order] >= 0]:
        fastest.setdefault(int(number[row]), []).append(int(kernel[row]))
    items = []
    for index in wanted:
        problem = table.problems[index]
        runs = mixed.supported(problem)
        added = {k for k in candidates if runs[k]}
        if added or not new:
            chosen = added.union(k for k in fastest.get(int(index), [])[:ANCHORS] if runs[k])
            items.append(Item(problem, "candidates", tuple(sorted(chosen))))
    return Plan(target, arch, mixed, tuple(items), Timing(), run_id)


def vendor_calls(target: Target) -> tuple[VendorCall, ...]:
    """Return the vendor's calls for a target."""
    arch = load_arch(target.arch)
    return tuple(call for name in CALLS[target.op] if illegal(call := VendorCall(name), target, arch) is None)


def with_call(table: TargetTable) -> set[int]:
    """Return the numbers of the problems with a row of the vendor's calls."""
    target = table.target
    calls = Pool(target.op, target.variant, target.dtype, vendor_calls(target))
    return set(table.problem[table.kernel(calls) >= 0].tolist())


def in_order(table: TargetTable, seed: int) -> list[int]:
    """Return the numbers of all problems: held-out ones first, then at random."""
    held_out = np.zeros(len(table.problems), dtype=bool)
    held_out[table.problem] = table.is_holdout(HOLDOUT)
    place = np.random.default_rng(seed).permutation(len(table.problems))
    return [int(index) for index in np.lexsort((place, ~held_out))]


def main() -> None:
    """Write a plan for ``tilewise collect input=OUTPUT``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Target.parse)
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--problems", type=int, default=3000)
    parser.add_argument("--run-id", default="candidates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grouped", action="store_true", help="convolutions of several channels a group alone")
    parser.add_argument("--new", action="store_true", help="kernels of the shipped pool without a row")
    args = parser.parse_args()
    table = TargetTable.of(read_measurements(args.data, args.target), args.target).labelled()
    pool = load_pool(args.target)
    done = set[int]() if args.new else with_call(table)
    wanted = [i for i in in_order(table, args.seed) if i not in done]
    if args.grouped:
        wanted = [i for i in wanted if is_grouped(table.problems[i])]
    plan = candidate_plan(table, pool, wanted[: args.problems], args.run_id, new=args.new)
    args.output.write_text(plan.dumps())
    print(f"{args.output}: {len(plan.items)} problems, {sum(len(i.kernels or ()) for i in plan.items)} pairs")


if __name__ == "__main__":
    main()
