"""Read-only queries of the GPU driver's management library (NVML): driver version, device, clock.

They go through ctypes, because a bare GPU machine has the driver but not always a Python package for it. Clocks and
other settings of the card are never changed.
"""

from __future__ import annotations

import ctypes
from functools import cache

_CLOCK_SM = 1
_OK = 0


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == _OK else None


def driver_version() -> str | None:
    """Return the GPU driver's version, or None if there is no driver."""
    library = _library()
    text = ctypes.create_string_buffer(96)
    if library is None or library.nvmlSystemGetDriverVersion(text, len(text)) != _OK:
        return None
    return text.value.decode()


def describe_gpu(visible: str | None) -> tuple[str, tuple[int, int]] | None:
    """Return name and compute capability of a GPU without creating a CUDA context, or None if there is no GPU.

    Args:
        visible: the value of ``CUDA_VISIBLE_DEVICES``, of which the first device counts; None if it is not set.
    """
    library = _library()
    handle = _first_visible(library, visible) if library is not None else None
    text, major, minor = ctypes.create_string_buffer(96), ctypes.c_int(), ctypes.c_int()
    if (
        library is None
        or handle is None
        or library.nvmlDeviceGetName(handle, text, len(text)) != _OK
        or library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) != _OK
    ):
        return None
    return text.value.decode(), (major.value, minor.value)


def _first_visible(library: ctypes.CDLL, visible: str | None) -> ctypes.c_void_p | None:
    first = "0" if visible is None else visible.split(",")[0].strip()
    if not first.isdecimal():  # an id such as GPU-..., or an empty string, which hides all devices
        return _device(first) if first else None
    handle = ctypes.c_void_p()
    return handle if library.nvmlDeviceGetHandleByIndex_v2(int(first), ctypes.byref(handle)) == _OK else None


@cache
def _device(uuid: str) -> ctypes.c_void_p | None:
    library = _library()
    handle = ctypes.c_void_p()
    if library is None or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != _OK:
        return None
    return handle


def sm_clock_mhz(uuid: str) -> int | None:
    """Return the present clock in MHz of the multiprocessors of the GPU with this id (``GPU-...``), or None."""
    device = _device(uuid)
    clock = ctypes.c_uint()
    if device is None:
        return None
    library = _library()
    assert library is not None
    return clock.value if library.nvmlDeviceGetClockInfo(device, _CLOCK_SM, ctypes.byref(clock)) == _OK else None
