"""Plans that measure further candidates on measured problems, beside the kernels that were fastest there.

    python -m benchmarks.measuring.candidate_plan TARGET OUTPUT [--problems N] [--run-id ID] [--seed S]

A run shares its fastest kernels with earlier runs of a problem, so that labels of all runs can be brought to one level.
Problems with a row of the vendor's calls are left out. Held-out problems come first, then others at random: what a
budget cuts off is a random part.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from tilewise.arch import load_arch
from tilewise.collect import Item, Plan, Timing
from tilewise.data import TargetTable, read_measurements
from tilewise.kernels import Pool, illegal, load_pool
from tilewise.kernels.vendor import CALLS, VendorCall
from tilewise.ops import Target

ANCHORS = 4  # fastest kernels that a run measures again; labels need three in common
HOLDOUT = 0.18  # share of the shapes, as conf/config.yaml has it


def candidate_plan(table: TargetTable, pool: Pool, problems: int, run_id: str, seed: int) -> Plan:
    """Return a plan of the vendor's calls and the fastest kernels of problems that have no row of such a call.

    Args:
        table: labelled rows of the target.
        pool: the kernels to compare with; calls of the vendor among them are measured once.
        problems: the most problems.
        run_id: of the run.
        seed: of the random order.
    """
    target, arch = table.target, load_arch(table.target.arch)
    made = (VendorCall(name) for name in CALLS[target.op])
    calls = tuple(call for call in made if illegal(call, target, arch) is None)
    mixed = Pool(pool.op, pool.variant, pool.dtype, (*pool.kernels, *calls))
    number, kernel, rates = table.problem, table.kernel(pool), table.tflops
    called = set(number[table.kernel(Pool(pool.op, pool.variant, pool.dtype, calls)) >= 0].tolist())
    order = np.lexsort((-rates, number))
    fastest: dict[int, list[int]] = {}
    for row in order[kernel[order] >= 0]:
        fastest.setdefault(int(number[row]), []).append(int(kernel[row]))
    held_out = np.zeros(len(table.problems), dtype=bool)
    held_out[number] = table.is_holdout(HOLDOUT)
    place = np.random.default_rng(seed).permutation(len(table.problems))
    items = []
    wanted = [index for index in np.lexsort((place, ~held_out)) if index not in called]
    for index in wanted[:problems]:
        problem = table.problems[index]
        runs = mixed.supported(problem)
        chosen = {*fastest.get(int(index), [])[:ANCHORS], *range(len(pool), len(mixed))}
        if kernels := tuple(sorted(k for k in chosen if runs[k])):
            items.append(Item(problem, "candidates", kernels))
    return Plan(target, arch, mixed, tuple(items), Timing(), run_id)


def main() -> None:
    """Write a plan for ``tilewise collect input=OUTPUT``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Target.parse)
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--problems", type=int, default=3000)
    parser.add_argument("--run-id", default="candidates")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    table = TargetTable.of(read_measurements(args.data, args.target), args.target).labelled()
    pool = load_pool(args.target)
    plan = candidate_plan(table, pool, args.problems, args.run_id, args.seed)
    args.output.write_text(plan.dumps())
    print(f"{args.output}: {len(plan.items)} problems, {sum(len(i.kernels or ()) for i in plan.items)} pairs")


if __name__ == "__main__":
    main()
