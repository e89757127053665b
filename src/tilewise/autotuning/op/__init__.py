"""A tuned kernel as an op of the user's own: its definition, its models, and its records as measurement tables.

Takes a kernel's key, configurations and expressions; gives targets, problems, kernels and a model's ranking of them.
Members load lazily, as models need the dispatcher and tables need pyarrow. Used by the tuned kernels and the commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.autotuning.op._advisers import Advisers as Advisers
    from tilewise.autotuning.op._find_kernel import find_kernel as find_kernel
    from tilewise.autotuning.op._kernel_engine import KernelEngine as KernelEngine
    from tilewise.autotuning.op._kernel_op import KernelOp as KernelOp
    from tilewise.autotuning.op._record_table import record_table as record_table
    from tilewise.autotuning.op._statements import Statements as Statements

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_advisers": ("Advisers",),
        "_find_kernel": ("find_kernel",),
        "_kernel_engine": ("KernelEngine",),
        "_kernel_op": ("KernelOp",),
        "_record_table": ("record_table",),
        "_statements": ("Statements",),
    },
)
