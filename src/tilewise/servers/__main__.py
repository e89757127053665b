"""``python -m tilewise.servers``: run the servers until Ctrl-C, and say how to use them."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tilewise.errors import ServersError

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run the servers; 0 once they were asked to end, 1 if one does not start, 2 if they are not installed."""
    parser = argparse.ArgumentParser("python -m tilewise.servers", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/servers"), help="data, logs, environment")
    parser.add_argument("--port", type=int, help="of MLflow; else the one of the last time, or any")
    parser.add_argument("--workers", type=int, default=2, help="processes of the MLflow server")
    parser.add_argument("--auth", action="store_true", help="MLflow asks who you are; the first user is admin")
    given = parser.parse_args()
    try:
        from tilewise.servers.stack import Stack, run
    except ModuleNotFoundError as e:
        print(f"error: {e.name} is not installed: pip install 'tilewise[servers]'", file=sys.stderr)
        return 2

    def say(stack: Stack) -> None:
        print(
            f"MLflow    {stack.uri}  (PostgreSQL, artefacts on S3{'; user admin' if given.auth else ''})\n"
            f"S3        {stack.environment['AWS_ENDPOINT_URL']}\n"
            f"to use    . {stack.file}\n"
            f"DVC       dvc remote add --local --force servers {stack.remote}\n"
            f"          dvc remote modify --local servers endpointurl {stack.environment['AWS_ENDPOINT_URL']}\n"
            "Ctrl-C ends them; the data stays.",
            flush=True,
        )

    for number in _ENDING:
        signal.signal(number, _end)
    try:
        with run(given.folder, auth=given.auth, port=given.port, workers=given.workers) as stack:
            say(stack)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        pass
    except ServersError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 0


def _end(*_: object) -> None:
    """Once: while the servers end in good order, nothing interrupts that."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
