"""Swift's rings: which server keeps an object. Run in a process of its own, ``python -m ..._swift_rings FOLDER PORTS``.

Importing Swift leaves sockets of eventlet in modules of the standard library (``http.client`` or ``urllib.request``),
on which the threads of the importing process then wait for ever.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tilewise.errors import ServersError
from tilewise.servers._service_process import HOST

DEVICE = "disk"
_PART_POWER = 4  # names are spread over 2**4 parts; changing the number loses all stored objects


def write_rings(folder: Path, ports: Mapping[str, int]) -> None:
    """Write a ring that stores everything once, on the one device, for each server with its port.

    Raises:
        ServersError: Swift cannot write them.
    """
    command = [sys.executable, "-m", __name__, str(folder), json.dumps(dict(ports))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise ServersError(f"{folder}: Swift cannot write its rings there: {reason}")


def main() -> None:
    """Write the rings that the command line names."""
    from swift.common.ring import RingBuilder

    folder, ports = Path(sys.argv[1]), json.loads(sys.argv[2])
    for name, port in ports.items():
        builder = RingBuilder(_PART_POWER, 1, 0)
        builder.add_dev({"region": 1, "zone": 1, "ip": HOST, "port": port, "device": DEVICE, "weight": 1})
        builder.rebalance(seed=0)
        builder.get_ring().save(str(folder / f"{name}.ring.gz"))


if __name__ == "__main__":
    main()
