"""Launches of the kernels; only the first of its kind goes through Triton's JIT.

The JIT looks at every argument of a call to find its binary, which takes the host longer than the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from tilewise.kernels.triton.programs import POINTER_ALIGNMENT, interpreted
from tilewise.torch.norm._grid import WARPS, Grid

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

_MAX_LOADED = 4096

_loaded: dict[Hashable, Callable[..., None]] = {}


def launch(
    kernel: triton.JITFunction,
    grid: Grid,
    tensors: Sequence[Tensor | None],
    numbers: tuple[float, ...] = (),
    **constants: str,
) -> None:
    """Launch a kernel of this package on the current stream of the tensors' device.

    Args:
        kernel: takes the tensors, the sizes of the grid, the numbers and the constants.
        grid: its programs.
        tensors: its pointers; None for those that this binary does not have.
        numbers: passed as fp32.
        constants: in addition to those of the grid, in the order in which the kernel has them.
    """
    device = next(t.get_device() for t in tensors if t is not None)
    if device >= 0 and torch.cuda.current_device() != device:
        with torch.cuda.device(device):
            return launch(kernel, grid, tensors, numbers, **constants)
    types, pointers = [], []
    for t in tensors:
        types.append(None if t is None else t.dtype)
        pointers.append(0 if t is None else t.data_ptr())
    key = (kernel.__name__, grid.sizes, device, *types, *constants.values())
    run = _loaded.get(key)
    is_aligned = not any(pointer % POINTER_ALIGNMENT for pointer in pointers)
    if run is not None and is_aligned:
        return run(triton.runtime.driver.active.get_current_stream(device), pointers, numbers)
    compiled = kernel[grid.programs](*tensors, *grid.sizes, *numbers, **grid.constants, **constants, num_warps=WARPS)
    if is_aligned and not interpreted():  # binaries for other pointers are slower
        if len(_loaded) >= _MAX_LOADED:
            _loaded.clear()
        _loaded[key] = partial(_run, compiled, grid, tuple(constants.values()))
    return None


def _run(
    compiled: CompiledKernel, grid: Grid, constants: Sequence[str], stream: int, *arguments: Sequence[float]
) -> None:
    pointers, numbers = arguments
    rest = (*grid.sizes, *numbers, *grid.constants.values(), *constants)
    place = (*grid.programs, 1, stream, compiled.function, compiled.packed_metadata)
    compiled.run(*place, None, None, None, *pointers, *rest)
