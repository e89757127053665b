"""Readers of measuring runs under fuzz: plans, journals, and command lines of MIOpenDriver."""

from __future__ import annotations

import dataclasses
import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from fuzzed.contract import Outcome, Reader, refused
from tilewise.arch import load_arch
from tilewise.collect import Item, Plan, Samples, Timing, load_plan, measurement_table
from tilewise.collect import Outcome as Measured
from tilewise.collect._journal import Journal, _checksum
from tilewise.collect.engines import Device
from tilewise.collect.problems._miopen_driver import parse_driver_lines
from tilewise.errors import DataError
from tilewise.kernels import Pool, load_pool
from tilewise.ops import GroupedConvProblem, Target

_DEVICE = Device("a", "uuid-a", "580", "torch", "cold")
_AT = "2026-01-01T00:00:00+00:00"
_DRIVER_LINES = """# a log of a network
MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver convbfp16 -n 32 -c 64 -H 56 -W 56 -k 64 -y 3 -x 3 -p 1 -q 1
MIOpenDriver conv -n 8 -c 128 -H 28 -W 28 -k 128 -y 1 -x 1 -u 2 -v 2 -l 1 -j 1 -m conv -g 2 -F 1 -t 1
./MIOpenDriver conv --batchsize 1 --spatial_dim 3 --in_d 8 -c 16 -H 8 -W 8 -k 16 -y 3 -x 3 -@ 3 -$ 1 -_ 3
"""


@cache
def small_plan() -> Plan:
    """Return a plan of four problems and six kernels; one problem asks for three of them."""
    target = Target.parse("grouped_conv_forward_bf16_sm90")
    items = [Item(GroupedConvProblem(n, 8, 8, 1, 8, 8, 3, 3), "test") for n in range(1, 5)]
    items[3] = dataclasses.replace(items[3], kernels=(0, 2, 5))
    pool = Pool(target.op, target.variant, target.dtype, load_pool(target).kernels[:6])
    return Plan(target, load_arch("sm90"), pool, tuple(items), Timing(), "run-1")


@cache
def _plan_bytes() -> bytes:
    return small_plan().dumps().encode()


@cache
def _journal_bytes() -> bytes:
    import tempfile

    ok = Measured("ok", None, Samples((0.1, 0.2, 0.3), (1980, 1965, 1980), 4))
    outcomes = [ok, Measured("unsupported", "more groups"), ok, Measured("runtime_error"), ok, Measured("timeout", "t")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        with Journal(path, small_plan()) as journal:
            journal.add(0, _AT, _DEVICE, outcomes)
            journal.note_broken(2, {5: Measured("timeout", "no answer")})
            journal.add(1, _AT, dataclasses.replace(_DEVICE, hw_uuid=None), outcomes)
        return path.read_bytes()


def _sealed(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return f"{text}\t{_checksum(text.encode(), small_plan().hash).decode()}"


def _read_plan(content: bytes, folder: Path) -> Outcome:
    path = folder / "plan.json"
    path.write_bytes(content)
    try:
        plan = load_plan(path)
    except DataError as e:
        return refused(e, str(path))
    again = Plan.from_dict(json.loads(plan.dumps()))
    assert again == plan
    assert again.hash == plan.hash
    plan.dumps().encode()
    for i in range(len(plan.items)):
        plan.excluded_outcomes(i)
    return "read"


def _read_journal(content: bytes, folder: Path) -> Outcome:
    """Open a damaged journal: its entries make a table, and the run goes on."""
    path, plan = folder / "journal", small_plan()
    for file in folder.iterdir():
        file.unlink()
    path.write_bytes(content)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            journal = Journal(path, plan)
        except DataError as e:
            assert path.read_bytes() == content, "a refused journal stays unchanged"
            return refused(e, str(path))
    with journal:
        kept = dict(journal.entries)
        if kept:  # as many rows as the plan asks for
            assert measurement_table(plan, kept.values()).num_rows == sum(3 if i == 3 else 6 for i in kept)
        journal.add(2, _AT, _DEVICE, [Measured("timeout", "t")] * 6)
    with Journal(path, plan) as again:
        assert again.entries.keys() == kept.keys() | {2}
        assert all(again.entries[i] == entry for i, entry in kept.items() if i != 2)
    lines = content.splitlines(keepends=True)
    torn = bool(lines) and not lines[-1].endswith(b"\n")
    measured = {line.partition(b",")[0] for line in lines[: len(lines) - torn] if line.startswith(b'{"done":')}
    assert said or len(kept) == len(measured), "a loss must be reported"
    return "read"


def _read_driver(content: bytes, folder: Path) -> Outcome:
    try:
        items = parse_driver_lines(content.decode(), "set.txt")
    except UnicodeDecodeError:
        return "refused"
    except DataError as e:
        return refused(e, "set.txt")
    assert len({item.problem for item in items}) == len(items)
    return "read"


READERS = {
    "plan": Reader(_plan_bytes, _read_plan, lines=False),
    "journal": Reader(_journal_bytes, _read_journal, lines=True, seal=_sealed),
    "driver_lines": Reader(_DRIVER_LINES.encode, _read_driver),
}
