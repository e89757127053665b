"""How often chance refuses an equal model by its slices, and how often a real loss in one slice is found.

python -m benchmarks.gate_chance [--pairs 80]

Misses are drawn as models make them: three problems in ten are missed, by 5 points on average, few by far. 30 slices of
20 to 150 of 400 problems overlap; a slice that really loses has so many points less on average.
"""

from __future__ import annotations

import argparse

import numpy as np

from tilewise.metrics import Floats
from tilewise.registry.slices import Slice, check_slices
from tilewise.registry.thresholds import SliceRule, Thresholds

SIZES = [20, 25, 40, 80, 150] * 6
RULE, DROPS = SliceRule(), Thresholds().drops


def efficiencies(rng: np.random.Generator, n: int) -> Floats:
    """(2, n): two models of equal skill."""
    missed = np.where(rng.random((2, n)) < 0.3, rng.exponential(0.05, (2, n)), 0)
    return 1 - missed.clip(max=0.5)


def main() -> None:
    """Simulate, print."""
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
    """The rule for one slice, where it shares the error with others."""
    return SliceRule(1 - (1 - RULE.level) / slices, RULE.min_problems, RULE.n_resamples)


if __name__ == "__main__":
    main()
