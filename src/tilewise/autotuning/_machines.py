"""The machine that a call runs on, as records of tuning state it."""

from __future__ import annotations

import platform
import sys
from functools import cache
from importlib import metadata

from tilewise.autotuning._call import Call
from tilewise.dispatch.measuring import Machine

CPU = "cpu"  # arch of calls without a GPU


def machine_of(call: Call, code: str) -> Machine:
    """Return the machine of a call: the GPU of its tensors with driver and libraries, or the host's processor.

    Args:
        call: the call.
        code: hash of the kernel's code.
    """
    if call.on_gpu and "torch" in sys.modules:
        device, arch, driver = _gpu(_index(call))
        return Machine(device, arch, driver, _version("torch"), _version("triton"), code)
    device = f"GPU of {platform.node()}" if call.on_gpu else f"{platform.machine()} {_processor()}".strip()
    return Machine(device, CPU, "", _version("torch"), _version("triton"), code)


def device_id(call: Call) -> str:
    """Return the id of the device that a call runs on, for a lock against other processes that measure on it."""
    if not call.on_gpu:
        return CPU
    if "torch" not in sys.modules:
        return "gpu"
    import torch

    return str(torch.cuda.get_device_properties(_index(call)).uuid)


def _index(call: Call) -> int:
    return next((v.device.index or 0 for v in call.named.values() if getattr(v, "is_cuda", False)), 0)


@cache
def _gpu(index: int) -> tuple[str, str, str]:
    import torch

    from tilewise.collect.engines import driver_version

    properties = torch.cuda.get_device_properties(index)
    amd = getattr(properties, "gcnArchName", "").partition(":")[0]
    arch = amd if torch.version.hip else f"sm{properties.major}{properties.minor}"
    return str(properties.name), arch, driver_version() or ""


@cache
def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()


@cache
def _version(library: str) -> str:
    """Return the version of a library that this process uses; "" if it does not use it."""
    try:
        return metadata.version(library) if library in sys.modules else ""
    except metadata.PackageNotFoundError:
        return ""
