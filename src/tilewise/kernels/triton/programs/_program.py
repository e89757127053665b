"""Compiling and launching Triton programs without the JIT's per-call specialisation.

A :class:`Program` holds everything that decides a binary. So any machine can compile it ahead of its use, and a launch
never triggers an unplanned compilation. Sizes are never specialised (a size of 1, or a multiple of 16, would make
another binary), except for the alignment that a program declares.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.runtime.cache import triton_key
from triton.tools.tensor_descriptor import TensorDescriptor

if TYPE_CHECKING:
    from torch import Tensor

_reading = Lock()

POINTER_ALIGNMENT = 16  # bytes; torch's allocator guarantees more
VECTOR = 8  # elements of 16 bits in the widest load; channel counts that it divides allow such loads

TRITON_TYPES = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8e4nv"}  # of the operands
RESULT_TYPES = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}
ABSENT = "none"  # the element type of a pointer that a program does not have: its argument is the constant None


@dataclass(frozen=True)
class Program:
    """A Triton function with everything that decides its binary.

    `pointers` are (argument, element type) in order, then come `sizes` (32-bit integers), then the constants. An
    element type from :func:`descriptor` makes the argument a tensor descriptor (TMA) instead of a pointer, and
    :data:`ABSENT` the constant None. `divisors` has a known divisor of sizes, which allows loads of so many elements.
    """

    fn: Any = field(hash=False)  # a triton JITFunction: equal by identity, and its hash reads the sources it refers to
    pointers: tuple[tuple[str, str], ...]
    sizes: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    divisors: frozenset[tuple[str, int]]
    num_warps: int
    num_stages: int

    def source(self) -> ASTSource:
        """Return the source that triton compiles."""
        names = [n for n, _ in self.pointers] + list(self.sizes) + [n for n, _ in self.constants]
        if names != self.fn.arg_names:
            raise TypeError(f"{self.fn.__name__} takes {self.fn.arg_names}, the program declares {names}")
        signature = {n: _argument_type(t) for n, t in self.pointers}
        signature |= dict.fromkeys(self.sizes, "i32") | {n: "constexpr" for n, _ in self.constants}
        constants = {n: None for n, t in self.pointers if t == ABSENT} | dict(self.constants)
        divisors = {n: POINTER_ALIGNMENT for n, t in self.pointers if t != ABSENT and not _is_descriptor(t)}
        divisors |= dict(self.divisors)
        # in the order of the arguments: the text of attrs is part of Triton's cache key
        attrs = {(i,): [["tt.divisibility", divisors[n]]] for i, n in enumerate(names) if n in divisors}
        source = GluonASTSource if isinstance(self.fn, GluonJITFunction) else ASTSource
        return source(self.fn, signature, constants, attrs)


def descriptor(element: str, block: Sequence[int]) -> str:
    """Return the type of a tensor descriptor whose loads bring `block`."""
    return f"tensordesc<{element}[{', '.join(map(str, block))}]>"


def swizzled_descriptor(element: str, block: Sequence[int]) -> str:
    """Return the type of :func:`descriptor` in Gluon, with the layout in shared memory: rows of at most 128 bytes."""
    bits = 8 if element.startswith("fp8") else 16
    layout = NVMMASharedLayout(min(128, block[-1] * bits // 8), bits, rank=len(block))
    return f"tensordesc<{element}[{', '.join(map(str, block))}],{layout!r}>"


def described(tensor: Tensor, shape: Sequence[int], block: Sequence[int]) -> TensorDescriptor:
    """Return a descriptor of `tensor`, contiguous, with `shape`; its loads bring `block`."""
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    return TensorDescriptor(tensor, list(shape), strides, list(block))


def _argument_type(element: str) -> str:
    if element == ABSENT:
        return "constexpr"
    return element if _is_descriptor(element) else f"*{element}"


def _is_descriptor(element: str) -> bool:
    return element.startswith("tensordesc<")


@dataclass(frozen=True)
class Launch:
    """One launch of a program: the grid, then the tensors (or descriptors) and sizes in the program's order.

    An absent pointer has None in place of a tensor.
    """

    program: Program
    grid: tuple[int, int, int]
    tensors: Sequence[Tensor | TensorDescriptor | None]
    sizes: Sequence[int]


def cuda_target(arch: str) -> GPUTarget:
    """Return the compile target of a CUDA arch, e.g. ``sm90``; no device is needed."""
    return GPUTarget("cuda", int(arch.removeprefix("sm")), 32)


def read_compiler() -> None:
    """Let Triton read its own files, whose digest is part of every key in its cache.

    It takes up to half a second, once, at the first program at the latest; it leaves the interpreter to other threads.
    """
    with _reading:
        triton_key()


@cache
def compile_program(program: Program, target: GPUTarget | None = None) -> Any:
    """Compile for `target` (None: the current device), or load from Triton's on-disk cache."""
    read_compiler()  # wait for a thread that reads
    options = {"num_warps": program.num_warps, "num_stages": program.num_stages}
    return triton.compile(program.source(), target=target, options=options)


@cache
def load_program(program: Program, device: int) -> Any:
    """Compile and load on the current CUDA device, which must be `device`: a handle belongs to one device's context.

    Raises:
        Exception: of Triton or the driver, if compilation fails or the program needs more than the device has.
    """
    compiled = compile_program.__wrapped__(program)  # uncached: a cached binary may be loaded elsewhere
    compiled[(1, 1, 1)]  # asking for a launcher loads the binary
    return compiled


def interpreted() -> bool:
    """Return whether Triton's interpreter replaces a GPU (``TRITON_INTERPRET=1``)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@cache
def compute_units() -> int:
    """Return the multiprocessors of the current device; 4 for the interpreter."""
    if interpreted():
        return 4
    driver = triton.runtime.driver.active
    return int(driver.utils.get_device_properties(driver.get_current_device())["multiprocessor_count"])


def launch(item: Launch) -> None:
    """Run one launch on the current device and stream."""
    program = item.program
    if interpreted():
        program.fn[item.grid](*item.tensors, *item.sizes, **dict(program.constants))
    else:
        constants = (value for _, value in program.constants)
        compile_program(program)[item.grid](*item.tensors, *item.sizes, *constants)


def launch_all(items: Iterable[Launch]) -> None:
    """Run the launches of a kernel, in order."""
    for item in items:
        launch(item)
