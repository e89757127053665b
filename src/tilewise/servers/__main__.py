"""``python -m tilewise.servers``: run the servers until Ctrl-C, and print how to use them."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tilewise.errors import MissingExtraError, ServersError

_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run the servers.

    Returns:
        0 after a signal to end, 1 if a server does not start, 2 if the extra ``servers`` is not installed.
    """
    parser = argparse.ArgumentParser("python -m tilewise.servers", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/servers"), help="data, logs, environment")
    parser.add_argument("--port", type=int, help="of MLflow; default: the one of the last start, or any free one")
    parser.add_argument("--workers", type=int, default=2, help="processes of the MLflow server")
    parser.add_argument("--open", action="store_true", help="MLflow asks for no user: everybody may do everything")
    args = parser.parse_args()
    try:
        from tilewise.servers._stack import Stack, run_stack
    except MissingExtraError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2

    def print_usage(stack: Stack) -> None:
        file = stack.admin_file
        admin = f"admin     . {file}  (users and roles: docs/servers.md)\n" if file else "open      to everybody\n"
        print(
            f"MLflow    {stack.uri}  (PostgreSQL, artefacts on S3)\n"
            f"relay     {stack.relay}  (TILEWISE_PUSH: dispatchers learn at once that an alias moved)\n"
            f"S3        {stack.environment['AWS_ENDPOINT_URL']}\n"
            f"to use    . {stack.file}\n"
            f"{admin}"
            f"DVC       dvc remote add --local --force servers {stack.remote}\n"
            f"          dvc remote modify --local servers endpointurl {stack.environment['AWS_ENDPOINT_URL']}\n"
            "          dvc remote modify --local servers verify true\n"
            "Ctrl-C ends them; the data stays.",
            flush=True,
        )

    for number in _END_SIGNALS:
        signal.signal(number, _end)
    print(f"starting, which takes up to a minute; logs: {args.folder / 'logs'}", file=sys.stderr, flush=True)
    try:
        with run_stack(args.folder, open_to_all=args.open, port=args.port, workers=args.workers) as stack:
            print_usage(stack)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        pass
    except ServersError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 0


def _end(*_: object) -> None:
    """Ignore further signals, so that nothing interrupts the servers' shutdown."""
    for number in _END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
