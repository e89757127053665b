"""Properties of the GPU that measured an imported file, captured beside it as JSON.

The names are those of HIP's ``hipDeviceProp_t``, so that its fields can be written as they are. A file of measurements
does not state its GPU; this one does, and it must be a GPU of the target's arch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewise.arch import HardwareProfile, load_arch
from tilewise.errors import DataError

_TEXTS = {"name": "hw_device", "uuid": "hw_uuid", "driver": "driver", "libraries": "libraries"}  # key -> column
_NUMBERS = ("multiProcessorCount", "clockRate", "memoryClockRate", "totalGlobalMem")
_NEEDED = ("name", "gcnArchName")
_KNOWN = ("gcnArchName", *_TEXTS, *_NUMBERS)


def read_hardware(path: Path, arch: str) -> dict[str, str]:
    """Return the provenance columns that a file of hardware properties fills, checked against the arch's profile.

    Args:
        path: a JSON object: `name` and `gcnArchName` (such as ``gfx942:sramecc+:xnack-``), and optionally `uuid`,
            `driver`, `libraries`, `multiProcessorCount`, `clockRate` and `memoryClockRate` in kHz, and
            `totalGlobalMem` in bytes.
        arch: the arch of the target.

    Raises:
        DataError: the file cannot be read, a property is missing, unknown or of the wrong type, or the GPU is not one
            of the arch.
        ConfigError: the arch has no profile.
    """
    try:
        values: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise DataError(f"{path}: must be a readable JSON file of hardware properties: {e}") from e
    if not isinstance(values, dict):
        raise DataError(f"{path}: must be a JSON object of hardware properties, got {str(values)[:60]!r}")
    if fault := _fault(values, load_arch(arch)):
        raise DataError(f"{path}: {fault}")
    return {column: values[key] for key, column in _TEXTS.items() if key in values}


def _fault(values: Mapping[str, Any], arch: HardwareProfile) -> str:
    """Return the first rule that the properties break, with the remedy; "" for a sound file."""
    for key in _NEEDED:
        if key not in values:
            return f"{key} is missing; capture it with the measurements"
    for key, value in values.items():
        if key not in _KNOWN:
            return f"{key!r} is not a hardware property; known are {', '.join(_KNOWN)}"
        if key in _NUMBERS and (type(value) is not int or value <= 0):
            return f"{key} must be a positive whole number, got {value!r}"
        if key not in _NUMBERS and (not isinstance(value, str) or not value.strip()):
            return f"{key} must be a text that is not empty, got {value!r}"
    found = values["gcnArchName"].partition(":")[0]
    if found != arch.name:
        return f"gcnArchName must be the target's arch {arch.name}, got {found}; give arch={found}, or its own file"
    units = values.get("multiProcessorCount", arch.compute_units)
    if units != arch.compute_units:
        return (
            f"multiProcessorCount must be {arch.compute_units}, as conf/arch/{arch.name}.yaml has it, got {units}; "
            "a GPU of another size needs an arch of its own"
        )
    return ""
