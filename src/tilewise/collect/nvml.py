"""What the driver's management library knows: its version, what the GPU is, and the current clock.

Read through ctypes, because a bare GPU machine has the driver but not always a Python package for it. Read only: clocks
and other settings of the card are never touched.
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
    """The GPU driver's version, or None where there is no driver."""
    library = _library()
    text = ctypes.create_string_buffer(96)
    if library is None or library.nvmlSystemGetDriverVersion(text, len(text)) != _OK:
        return None
    return text.value.decode()


def describe(visible: str | None) -> tuple[str, tuple[int, int]] | None:
    """Name and compute capability of a GPU, without making a CUDA context; None where there is none.

    Args:
        visible: ``CUDA_VISIBLE_DEVICES``, of which the first counts; None: not set.
    """
    library = _library()
    handle = _visible(library, visible) if library is not None else None
    text, major, minor = ctypes.create_string_buffer(96), ctypes.c_int(), ctypes.c_int()
    if (
        library is None
        or handle is None
        or library.nvmlDeviceGetName(handle, text, len(text)) != _OK
        or library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) != _OK
    ):
        return None
    return text.value.decode(), (major.value, minor.value)


def _visible(library: ctypes.CDLL, visible: str | None) -> ctypes.c_void_p | None:
    first = "0" if visible is None else visible.split(",")[0].strip()
    if not first.isdecimal():  # an id such as GPU-..., or nothing at all
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
    """The multiprocessors' present clock of the GPU with this id (``GPU-...``), or None where unknown."""
    device = _device(uuid)
    clock = ctypes.c_uint()
    if device is None:
        return None
    library = _library()
    assert library is not None
    return clock.value if library.nvmlDeviceGetClockInfo(device, _CLOCK_SM, ctypes.byref(clock)) == _OK else None
