"""Launching of selected kernels, one launcher per backend.

Takes a problem and its tensors and gives the result. Members load lazily: Triton's launcher imports torch and triton,
CK Tile's opens C libraries. Used by the dispatcher at the first run, by shadowing and by :mod:`tilewise.torch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.dispatch.launching._bind import BoundKernel as BoundKernel
    from tilewise.dispatch.launching._bind import DirectCall as DirectCall
    from tilewise.dispatch.launching._launch import TorchLauncher as TorchLauncher
    from tilewise.dispatch.launching._launch import device_arch as device_arch
    from tilewise.dispatch.launching._launchers import KernelLauncher as KernelLauncher
    from tilewise.dispatch.launching._launchers import make_launcher as make_launcher

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_bind": ("BoundKernel", "DirectCall"),
        "_launch": (
            "TorchLauncher",
            "device_arch",
        ),
        "_launchers": (
            "KernelLauncher",
            "make_launcher",
        ),
    },
)
