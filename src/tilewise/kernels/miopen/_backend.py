"""The backend contract of MIOpen's solvers.

MIOpen decides in each solver's code which problems it computes. Those rules are not repeated here: a table lists the
solvers that were fast for a problem, and a model learns from it which ones to expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Backend, Rules
from tilewise.kernels._formulas import KernelLike
from tilewise.kernels._named import NamedKernel, NamedNumbers, nominal_columns
from tilewise.ops import Problem, Target

NAME = "miopen"
DTYPES = {"grouped_conv": ("fp32", "fp16", "bf16")}


@dataclass(frozen=True)
class Solver(NamedKernel):
    """A solver of MIOpen; its algorithm is MIOpen's name of the solver, such as ``ConvAsm1x1U``."""

    backend_name: ClassVar[str] = NAME


def illegal(kernel: Solver, target: Target, arch: HardwareProfile) -> str | None:
    """Return why a solver cannot run for `target` on `arch` whatever the problem, or None."""
    if arch.vendor != "amd":
        return f"MIOpen runs on GPUs of AMD, {arch.name} is one of {arch.vendor}"
    if target.dtype not in DTYPES.get(target.op, ()):
        return f"there are no {target.dtype} solvers for {target.op}"
    return None


def checks(kernel: KernelLike, problem: Problem, variant: str, dtype: str) -> Rules:
    """Yield the rules that a problem must meet: none are known."""
    yield from ()


MIOPEN = Backend(
    name=NAME,
    label="MIOpen",
    kernel=Solver,
    illegal=illegal,
    checks=checks,
    dtypes=DTYPES,
    pipelines=lambda op: NamedNumbers(NAME),
    common_columns=partial(nominal_columns, NAME),
    lists_fastest=True,
    tagged=True,
)
