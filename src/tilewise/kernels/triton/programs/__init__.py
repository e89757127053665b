"""The Triton programs of all kernels: the launches of a kernel for a problem, and their compilation.

Takes kernels, problems and tensors; gives programs, launches and compiled binaries. Importing it imports triton, and
only functions with tensors import torch. Used by `collect`, `dispatch` and the benchmarks; never on the light path.
"""

from __future__ import annotations

from tilewise.kernels.triton.programs._correctness import count_mismatches, scale_of
from tilewise.kernels.triton.programs._epilogue import activated, pass_launch
from tilewise.kernels.triton.programs._family import Family, family_of
from tilewise.kernels.triton.programs._operand_tensors import TORCH_TYPES, empty_result, random_operands, seed_of
from tilewise.kernels.triton.programs._program import (
    POINTER_ALIGNMENT,
    RESULT_TYPES,
    TRITON_TYPES,
    Launch,
    Program,
    compile_program,
    cuda_target,
    interpreted,
    launch_all,
    load_program,
    read_compiler,
)

__all__ = [
    "POINTER_ALIGNMENT",
    "RESULT_TYPES",
    "TORCH_TYPES",
    "TRITON_TYPES",
    "Family",
    "Launch",
    "Program",
    "activated",
    "compile_program",
    "count_mismatches",
    "cuda_target",
    "empty_result",
    "family_of",
    "interpreted",
    "launch_all",
    "load_program",
    "pass_launch",
    "random_operands",
    "read_compiler",
    "scale_of",
    "seed_of",
]
