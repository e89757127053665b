"""Records of tuning as measurement tables, which the commands train on. Needs pyarrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa

from tilewise.arch import load_arch
from tilewise.autotuning.op._kernel_op import KernelOp
from tilewise.autotuning.records import TunedEntry
from tilewise.collect import FailedKernels, Item, JournalEntry, Plan, Timing, measurement_table
from tilewise.collect.engines import Device
from tilewise.dispatch.measuring import Machine
from tilewise.errors import DataError
from tilewise.ops import Problem, Target

REGIME = "in_call"  # of times that were taken in the process that called the kernel


def record_table(op: KernelOp, records: Iterable[TunedEntry], target: Target, run_id: str) -> pa.Table:
    """Return the records of a target as a measurement table; each machine's rows have a run of their own.

    Records of other code are left out, as are all but the most frequent combination of element types: a table tells
    calls apart by their key.

    Args:
        op: the kernel's op.
        records: of the kernel.
        target: the target.
        run_id: name of the run, or its beginning.

    Raises:
        DataError: no record belongs to the target and the kernel's present code.
        ConfigError: the arch has no profile in ``conf/arch``.
    """
    fitting = [
        record
        for record in records
        if record.context.machine.kernels == op.definition.source
        and op.target(record.key.dtypes, record.context.machine.arch) == target
        and record.tried & op.kernels.keys()
    ]
    if not fitting:
        raise DataError(f"no record of {target.name} belongs to the kernel's present code; call or collect it first")
    usual = Counter(record.key.dtypes for record in fitting).most_common(1)[0][0]
    by_machine: dict[Machine, dict[Problem, TunedEntry]] = {}
    for record in fitting:
        if record.key.dtypes == usual:
            by_machine.setdefault(record.context.machine, {})[op.problem(record.key)] = record
    tables = [
        _table(op, found, target, run_id if len(by_machine) == 1 else f"{run_id}-{number}")
        for number, found in enumerate(by_machine.values(), 1)
    ]
    return pa.concat_tables(tables)


def _table(op: KernelOp, records: dict[Problem, TunedEntry], target: Target, run_id: str) -> pa.Table:
    names = list(op.kernels)
    items, journal = [], []
    for number, (problem, record) in enumerate(records.items()):
        tried = [i for i, name in enumerate(names) if name in record.tried]
        items.append(Item(problem, "tuning", tuple(tried)))
        ok = [i for i in tried if names[i] in record.measured]
        figures = {name: [record.measured[names[i]].get(name) for i in ok] for name in _figures(record, names, ok)}
        failed = [
            FailedKernels(*record.failed[names[i]], [i]) for i in tried if names[i] in record.failed
        ]  # fmt: skip
        device = _device(record.context.machine)
        journal.append(JournalEntry(number, record.measured_at, device, {"kernel": ok, **figures}, failed))
    plan = Plan(target, load_arch(target.arch), op.pool(target), tuple(items), Timing(), run_id)
    return measurement_table(plan, journal)


def _figures(record: TunedEntry, names: Sequence[str], ok: Sequence[int]) -> list[str]:
    return list(dict.fromkeys(figure for i in ok for figure in record.measured[names[i]])) or ["latency_ms"]


def _device(machine: Machine) -> Device:
    libraries = ", ".join(f"{n} {v}" for n, v in (("torch", machine.torch), ("triton", machine.triton)) if v)
    return Device(machine.device, None, machine.driver or None, libraries, REGIME)
