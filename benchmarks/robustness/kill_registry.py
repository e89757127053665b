"""Kill train, register and promote at many points: the registry must stay usable, and the next run must complete.

python -m benchmarks.robustness.kill_registry [--points 30] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)  # for the processes that are killed
os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> None:
    """Run the campaign; it stops at the first failure."""
    from registry.killing import Campaign, points

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        campaign = Campaign(Path(scratch))
        steps = campaign.undisturbed()
        print(f"an undisturbed life makes {steps} steps", flush=True)
        for i, at in enumerate(points(steps, args.points, args.seed)):
            campaign.kill(seed=1 + i, at=at)
            print(f"{i + 1}/{args.points}: killed at step {at}, sound, completed", flush=True)


if __name__ == "__main__":
    main()
