"""Error rates of the gate's slices: refusals of an equal model, and detected losses in one slice.

python -m benchmarks.registry.gate_chance [--pairs 80]

Losses are drawn with the distribution of real models: three problems in ten lose, by 5 points on average, a few by far
more. 30 slices of 20 to 150 of 400 problems overlap. A slice that really loses has a given number of points less on
average.
"""

from __future__ import annotations

import argparse

import numpy as np

from tilewise.gate import Slice, SliceRule, Thresholds, check_slices
from tilewise.metrics import Floats

SIZES = [20, 25, 40, 80, 150] * 6
RULE, DROPS = SliceRule(), Thresholds().drops


def efficiencies(rng: np.random.Generator, n: int) -> Floats:
    """Return efficiencies of two models of equal skill, of shape (2, n)."""
    missed = np.where(rng.random((2, n)) < 0.3, rng.exponential(0.05, (2, n)), 0)
    return 1 - missed.clip(max=0.5)


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=80)
    pairs = parser.parse_args().pairs
    rng, refused = np.random.default_rng(4), 0
    for _ in range(pairs):
        slices = [Slice("slice", str(i), rng.choice(400, n, replace=False)) for i, n in enumerate(SIZES)]
        ours, theirs = efficiencies(rng, 400)
        refused += any(s.failed for s in check_slices(slices, ours, theirs, DROPS, RULE))
    print(f"equal models refused by one of {len(SIZES)} slices: {refused} of {pairs}")
    for n in (20, 40, 80):
        for points in (1, 2, 4):
            found = 0
            for _ in range(pairs):
                ours, theirs = efficiencies(rng, n)
                worse = (ours - rng.exponential(points / 100, n)).clip(min=0)
                (tested,) = check_slices([Slice("slice", "", np.arange(n))], worse, theirs, DROPS, _one_of(len(SIZES)))
                found += bool(tested.failed)
            print(f"a loss of {points} points on a slice of {n} problems is found: {100 * found / pairs:.0f} %")


def _one_of(slices: int) -> SliceRule:
    """Return the rule for one slice if `slices` slices share the error rate."""
    return SliceRule(1 - (1 - RULE.level) / slices, RULE.min_problems, RULE.n_resamples)


if __name__ == "__main__":
    main()
