"""Plans that measure further candidates on measured problems, beside the kernels that were fastest there.

    python -m benchmarks.measuring.candidate_plan TARGET OUTPUT [--problems N] [--run-id ID] [--seed S]
        [--kind dense|depthwise|grouped|3d|half_aligned] [--again]
        [--kernels FILE | --pipelines NAME... | --unmeasured N --model FOLDER]

A run shares its fastest kernels with earlier runs of a problem, so that labels of all runs can be brought to one level.
Problems with a row of the vendor's calls are left out. Held-out problems come first, then those with at least half of
their kernels measured, as selections can be judged on them, then others at random: what a budget cuts off is a random
part. ``--kind`` takes convolutions of one kind alone: of one group, of which most networks consist; of one channel a
group; of several channels a group, or in three dimensions, which are rare in the sets and where the vendor's calls
differ most; or those whose channels 2 divides and 8 does not (of products, those whose rows 8 divides and 16 does not).
``--kernels`` also measures the kernels of a file that the pool lacks, one configuration a line
(``benchmarks/measuring/kernels``), on problems that one of them supports, whether or not these have rows of the
vendor's calls. ``--unmeasured`` also measures kernels of the pool without a valid row of a problem, as after a rule
was relaxed: of every eighth problem all, so that selections can be judged on it, of the others the N fastest by a
model. ``--pipelines`` measures all of them that belong to the named pipelines, as where these came after the table.
With either, problems come at random.

``--again`` measures every kernel with a valid row again, on all problems of the kind, those with rows of the vendor's
calls included. It is for programs that have become others since (:data:`tilewise.kernels.PROGRAM_VERSIONS`)::

    python -m benchmarks.measuring.candidate_plan TARGET PLAN.json --kind half_aligned --again --run-id programs-2
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from math import gcd
from pathlib import Path

import numpy as np

from tilewise.arch import load_arch
from tilewise.collect import Item, Plan, Timing
from tilewise.data import Bools, TargetTable, read_measurements
from tilewise.evaluate import slice_labels
from tilewise.kernels import Pool, illegal, is_half_aligned, load_pool
from tilewise.kernels.triton import PIPELINES, Kernel
from tilewise.kernels.vendor import CALLS, VendorCall
from tilewise.model import Predictor
from tilewise.ops import Problem, Target, stored_rows
from tilewise.train import MIN_MEASURED_SHARE, pool_of

ANCHORS = 4  # fastest kernels that a run measures again; labels need three in common
PROBLEMS = 3000
HOLDOUT = 0.18  # share of the shapes, as conf/config.yaml has it
KINDS = ("dense", "depthwise", "grouped", "3d", "half_aligned")
COMPLETE = 8  # every so many problems all unmeasured kernels are measured
Further = Callable[[int, Problem, set[int]], Sequence[Kernel]]  # (place, problem, measured kernels) -> kernels


def of_kind(kind: str, problems: Sequence[Problem], target: Target) -> Bools:
    """Return which problems are of one of :data:`KINDS`; groups and dimensions are told as evaluation's slices do."""
    if target.op != "grouped_conv":
        return np.array([kind == "half_aligned" and row_divisor(problem) == 8 for problem in problems], dtype=bool)
    if kind == "half_aligned":
        sizes = (np.array([problem.to_dict()[name] for problem in problems], np.int64) for name in ("C", "K", "G"))
        return np.asarray(is_half_aligned(*sizes), dtype=bool)
    labels = slice_labels(problems, target, load_arch(target.arch))
    return np.asarray(labels["dims"] == "3D" if kind == "3d" else labels["grouping"] == kind, dtype=bool)


def row_divisor(product: Problem) -> int:
    """Return the largest power of two, at most 16, that divides the stored rows of both operands of a product."""
    rows = stored_rows(product)
    return gcd(int(rows["a"]), int(rows["b"]), 16)


def candidate_plan(
    table: TargetTable,
    pool: Pool,
    wanted: Sequence[int],
    run_id: str,
    kernels: Sequence[Kernel] | Further = (),
    anchors: int | None = ANCHORS,
) -> Plan:
    """Return a plan of the vendor's calls, of further kernels, and of the kernels that were fastest.

    Args:
        table: labelled rows of the target.
        pool: the kernels to compare with; calls of the vendor among them are measured once.
        wanted: numbers of the problems, in the order in which they are measured.
        run_id: of the run.
        kernels: further kernels, or a function that gives them by problem; where there are any, problems that they do
            not support are left out.
        anchors: how many of the fastest kernels are measured again; None for all.
    """
    target, arch = table.target, load_arch(table.target.arch)
    calls, listed = vendor_calls(target), () if callable(kernels) else kernels
    further: Sequence[Kernel] = tuple(k for k in listed if k not in pool.kernels)
    mixed = Pool(pool.op, pool.variant, pool.dtype, tuple(dict.fromkeys((*pool.kernels, *further, *calls))))
    place = {kernel: i for i, kernel in enumerate(mixed.kernels)}
    number, kernel = table.problem, table.kernel(pool)
    fastest: dict[int, list[int]] = {}
    order = np.lexsort((-table.tflops, number))
    for row in order[kernel[order] >= 0]:
        fastest.setdefault(int(number[row]), []).append(int(kernel[row]))
    items = []
    for count, index in enumerate(wanted):
        problem, measured = table.problems[index], fastest.get(int(index), [])
        runs = mixed.supported(problem)
        if callable(kernels):
            further = kernels(count, problem, set(measured))
        if (further or callable(kernels)) and not any(runs[place[kernel]] for kernel in further):
            continue
        chosen = {*measured[:anchors], *(place[candidate] for candidate in (*further, *calls))}
        if indices := tuple(sorted(k for k in chosen if runs[k])):
            items.append(Item(problem, "candidates", indices))
    return Plan(target, arch, mixed, tuple(items), Timing(), run_id)


def unmeasured(predictor: Predictor, pool: Pool, fewest: int) -> Further:
    """Return a function that gives kernels of the pool without a row; see ``--unmeasured``.

    Args:
        predictor: of a model of the pool's target.
        pool: kernels to choose from; numbers of measured kernels are those in it.
        fewest: how many kernels are given, but for every :data:`COMPLETE`-th problem.
    """

    def further(place: int, problem: Problem, measured: set[int]) -> list[Kernel]:
        left = [kernel for i, kernel in enumerate(pool.kernels) if i not in measured and isinstance(kernel, Kernel)]
        most = None if place % COMPLETE == 0 else fewest
        return [prediction.kernel for prediction in predictor.rank(problem, left, most)]

    return further


def unmeasured_of(pipelines: Sequence[str], pool: Pool) -> Further:
    """Return a function that gives the kernels of pipelines that have no row; see ``--pipelines``.

    Args:
        pipelines: their names.
        pool: kernels to choose from; numbers of measured kernels are those in it.
    """
    numbered = [(i, k) for i, k in enumerate(pool.kernels) if isinstance(k, Kernel) and k.pipeline in pipelines]
    return lambda place, problem, measured: [kernel for i, kernel in numbered if i not in measured]


def vendor_calls(target: Target) -> tuple[VendorCall, ...]:
    """Return the vendor's calls for a target."""
    arch = load_arch(target.arch)
    return tuple(call for name in CALLS[target.op] if illegal(call := VendorCall(name), target, arch) is None)


def read_kernels(file: Path, target: Target) -> tuple[Kernel, ...]:
    """Return the kernels of a file, one configuration a line, that are legal for a target."""
    arch, kernels = load_arch(target.arch), map(Kernel.from_config, file.read_text().split())
    return tuple(kernel for kernel in kernels if illegal(kernel, target, arch) is None)


def measured_pool(table: TargetTable) -> Pool:
    """Return the kernels with a valid row that still run on the target's arch, those of the shipped pool first."""
    target, arch = table.target, load_arch(table.target.arch)
    kernels = (kernel for kernel in pool_of(table.rows, target).kernels if illegal(kernel, target, arch) is None)
    return Pool(target.op, target.variant, target.dtype, tuple(kernels))


def in_order(table: TargetTable, pool: Pool, seed: int, called_too: bool) -> list[int]:
    """Return the numbers of the problems: held-out ones, then those measured with half of the pool, then the rest.

    Each part is at random. Problems with a row of the vendor's calls are left out unless `called_too`.
    """
    target, number, count = table.target, table.problem, len(table.problems)
    calls = Pool(target.op, target.variant, target.dtype, vendor_calls(target))
    called = set() if called_too else set(number[table.kernel(calls) >= 0].tolist())
    held_out = np.zeros(count, dtype=bool)
    held_out[number] = table.is_holdout(HOLDOUT)
    measured, candidates = table.support(pool)
    is_judged = np.bincount(number, measured / np.maximum(candidates, 1), count) >= MIN_MEASURED_SHARE
    place = np.random.default_rng(seed).permutation(count)
    return [int(index) for index in np.lexsort((place, ~is_judged, ~held_out)) if index not in called]


def main() -> None:
    """Write a plan for ``tilewise collect input=OUTPUT``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Target.parse)
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--problems", type=int, help="the most problems; 3000, but all of them with --again")
    parser.add_argument("--run-id", default="candidates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, help="measure problems of this kind alone")
    further = parser.add_mutually_exclusive_group()
    further.add_argument("--kernels", type=Path, help="file of further kernels, one configuration a line")
    further.add_argument("--unmeasured", type=int, metavar="N", help="number of the pool's kernels without a row")
    further.add_argument("--pipelines", nargs="+", choices=PIPELINES, help="the pool's kernels of these without a row")
    parser.add_argument("--model", type=Path, help="folder of the model that says which of these are fastest")
    parser.add_argument("--again", action="store_true", help="measure every kernel with a valid row again")
    args = parser.parse_args()
    if (args.unmeasured is None) is not (args.model is None):
        parser.error("--unmeasured and --model go together")
    table = TargetTable.of(read_measurements(args.data, args.target), args.target).labelled()
    pool = measured_pool(table) if args.again else load_pool(args.target)
    kernels: Sequence[Kernel] | Further = read_kernels(args.kernels, args.target) if args.kernels else ()
    if args.model is not None:
        kernels = unmeasured(Predictor.load(args.model), pool, args.unmeasured)
    if args.pipelines is not None:
        kernels = unmeasured_of(args.pipelines, pool)
    if callable(kernels):
        order = np.random.default_rng(args.seed).permutation(len(table.problems)).tolist()
    else:
        order = in_order(table, pool, args.seed, called_too=args.again or bool(kernels))
    if args.kind is not None:
        kept = of_kind(args.kind, table.problems, args.target)
        order = [i for i in order if kept[i]]
    most, anchors = (args.problems, None) if args.again else (args.problems or PROBLEMS, ANCHORS)
    plan = candidate_plan(table, pool, order[:most], args.run_id, kernels, anchors)
    args.output.write_text(plan.dumps())
    print(f"{args.output}: {len(plan.items)} problems, {sum(len(i.kernels or ()) for i in plan.items)} pairs")


if __name__ == "__main__":
    main()
