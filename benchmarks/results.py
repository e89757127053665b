"""Result files of benchmarks: one JSON file each, written atomically; and figures that several scripts share."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tilewise.errors import DataError
from tilewise.files import write_text

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Return the environment of the figures: devices, driver, libraries, cores and time."""
    import torch
    import triton

    from tilewise.collect.engines import driver_version

    return {
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "driver": driver_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def conditions(command: str) -> dict[str, Any]:
    """Return the command of figures that need no GPU, the cores, and the load of the minute before."""
    return {"command": command, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}


def save(path: Path, values: Mapping[str, Any]) -> None:
    """Write `values` with one line per entry of lists of objects, so that a change of figures is a readable diff."""
    lines = []
    for key, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            inner = ",\n".join(f"  {json.dumps(v)}" for v in value)
            lines.append(f" {json.dumps(key)}: [\n{inner}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def load(path: Path) -> dict[str, Any]:
    """Read a file of :func:`save`.

    Raises:
        DataError: the file is missing or is not a JSON object.
    """
    try:
        values = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as e:
        raise DataError(f"{path}: {e}") from e
    if not isinstance(values, dict):
        raise DataError(f"{path}: not a JSON object")
    return values


def spread_evenly(count: int, wanted: int) -> list[int]:
    """Return `wanted` of `count` indices, evenly spread and including the first; all if there are fewer."""
    if wanted >= count:
        return list(range(count))
    return [i * count // wanted for i in range(wanted)]


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return count, geometric mean, P10, median and P90 of positive values."""
    v = np.asarray(values, dtype=np.float64)
    p10, p50, p90 = np.percentile(v, [10, 50, 90])
    return {
        "n": len(v),
        "geomean": float(np.exp(np.log(v).mean())),
        "p10": float(p10),
        "median": float(p50),
        "p90": float(p90),
    }
