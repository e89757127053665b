"""A process that serves: each line of JSON problems on stdin is answered with a line of selections, until stdin ends.

``python asker.py TARGET``, told by ``TILEWISE_*`` and ``MLFLOW_TRACKING_URI``.
"""

from __future__ import annotations

import json
import sys

from tilewise.dispatch import Dispatcher


def main() -> None:
    """Answer."""
    with Dispatcher.from_registry(sys.argv[1]) as dispatcher:
        for line in sys.stdin:
            kernels = [dispatcher.select(problem).kernel_name for problem in json.loads(line)]
            print(json.dumps({"version": dispatcher.version, "kernels": kernels}), flush=True)


if __name__ == "__main__":
    main()
