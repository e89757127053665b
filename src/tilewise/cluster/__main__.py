"""``python -m tilewise.cluster``: run a scheduler and workers on this machine until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from tilewise._rounding import round_as_recorded
from tilewise.errors import MissingExtraError

PORT = 8786
DASHBOARD = "127.0.0.1:8787"


def main() -> int:
    """Run the cluster.

    Returns:
        0 after a signal to end, 2 if the extra ``cluster`` is not installed or the port is taken.
    """
    parser = argparse.ArgumentParser("python -m tilewise.cluster", description=__doc__)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="worker processes; default: one per core")
    parser.add_argument("--gpus", type=int, default=0, help="further worker processes, each with one GPU")
    parser.add_argument("--port", type=int, default=PORT, help=f"of the scheduler; default: {PORT}")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    round_as_recorded()
    try:
        from tilewise.cluster._dask import host_cluster

        with host_cluster(args.workers, args.gpus, args.port, DASHBOARD) as cluster:
            print(
                f"scheduler  {cluster.scheduler_address}, {args.workers} workers, {args.gpus} with a GPU\n"
                f"dashboard  {cluster.dashboard_link}\n"
                f"to use     tilewise train cluster=dask cluster.address={cluster.scheduler_address}\n"
                "Ctrl-C ends them.",
                flush=True,
            )
            while True:
                signal.pause()
    except KeyboardInterrupt:
        return 0
    except (MissingExtraError, OSError, RuntimeError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2


def _end(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":  # each worker process imports this module again
    sys.exit(main())
