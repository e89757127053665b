"""From traced formulas to the arrays that the C core runs: what results need, in order, in little room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tilewise.core.trace import Symbol, Trace, UntraceableError

# In the order of core/program.h. Booleans are integers there, 0 or 1.
_OPS = (
    "add_i", "sub_i", "mul_i", "floordiv_i", "mod_i", "gcd_i", "neg_i", "min_i", "max_i", "and_i", "or_i", "xor_i",
    "not_i", "not_b", "eq_i", "ne_i", "lt_i", "le_i", "add_f", "sub_f", "mul_f", "div_f", "neg_f", "min_f", "max_f",
    "ceil_f", "floor_f", "log_f", "log2_f", "eq_f", "ne_f", "lt_f", "le_f", "float_i", "where", "expand",
)  # fmt: skip
_OF_BOOLS = {f"{op}_b": f"{op}_i" for op in ("and", "or", "xor", "eq", "ne")}
_CODES = {op: code for code, op in enumerate(_OPS)}


@dataclass
class Program:
    """A straight-line program; see core/program.h.

    Attributes:
        n_inputs: columns of the problem.
        constants: bytes of 8-byte slots.
        steps: int32, seven a step.
        index: int32, what ``expand`` looks up.
        n_slots: 8-byte slots of a run.
    """

    n_inputs: int
    constants: bytes = b""
    steps: list[int] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    n_slots: int = 0


class Compiler:
    """Lays out the nodes that results need.

    Args:
        trace: the formulas' steps.
        n_inputs: columns of the problem.
        results: what is wanted; their slots are kept to the end.

    Raises:
        UntraceableError: a step is none of the core's.
    """

    def __init__(self, trace: Trace, n_inputs: int, results: Iterable[Symbol]) -> None:
        self._nodes = trace.nodes
        self.program = Program(n_inputs)
        self._slot: dict[int, int] = {}
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._index: dict[tuple[int, int], int] = {}
        kept = {self._real(r.node) for r in results}
        order, last = self._needed(kept)
        self._place_constants(order)
        for number in order:
            if self._nodes[number].op not in ("input", "const"):
                self._step(number)
            for argument in {self._real(a) for a in self._nodes[number].args}:
                if last[argument] == number and argument not in kept and self._nodes[argument].args:
                    self._free[self._length(argument)].append(self._slot[argument])

    def output(self, result: Symbol) -> tuple[int, int]:
        """Where a result is: its first slot, and the number of its partition, -1 where all kernels share one value."""
        classes = self._nodes[result.node].classes
        return self._slot[self._real(result.node)], -1 if classes is None else classes.number

    def _real(self, number: int) -> int:
        """A bool taken as an integer is the same slots."""
        while self._nodes[number].op == "same":
            number = self._nodes[number].args[0]
        return number

    def _length(self, number: int) -> int:
        classes = self._nodes[number].classes
        return 1 if classes is None else len(classes)

    def _needed(self, kept: set[int]) -> tuple[list[int], dict[int, int]]:
        """The nodes that lead to results, in order, and which takes each last."""
        needed, waiting = set(kept), list(kept)
        while waiting:
            for argument in self._nodes[waiting.pop()].args:
                if (real := self._real(argument)) not in needed:
                    needed.add(real)
                    waiting.append(real)
        order = sorted(needed)
        return order, {self._real(a): number for number in order for a in self._nodes[number].args}

    def _place_constants(self, order: list[int]) -> None:
        slots, chunks = self.program.n_inputs, []
        for number in order:
            node = self._nodes[number]
            if node.op == "input":
                self._slot[number] = node.value
            elif node.op == "const":
                self._slot[number] = slots
                value = np.frombuffer(node.value, dtype={"b": bool, "i": np.int64, "f": np.float64}[node.kind])
                chunks.append((value.astype(np.int64) if node.kind == "b" else value).tobytes())
                slots += len(value)
        self.program.constants, self.program.n_slots = b"".join(chunks), slots

    def _step(self, number: int) -> None:
        node, n = self._nodes[number], self._length(number)
        op = _OF_BOOLS.get(node.op, node.op)
        if op not in _CODES:
            raise UntraceableError(f"the core has no {node.op}")
        if self._free[n]:
            out = self._free[n].pop()
        else:
            out, self.program.n_slots = self.program.n_slots, self.program.n_slots + n
        self._slot[number] = out
        args = [self._real(a) for a in node.args]
        at = [self._slot[a] for a in args]
        steps = sum(1 << i for i, a in enumerate(args) if self._length(a) > 1)
        if op == "expand":
            at, steps = [at[0], self._lookup(args[0], number), self._length(args[0])], 0
        while len(at) < 3:
            at.append(at[0])
        self.program.steps += [_CODES[op], out, n, *at, steps]

    def _lookup(self, coarse: int, fine: int) -> int:
        """Where the classes of a partition are listed for those of a finer one."""
        of, to = self._nodes[coarse].classes, self._nodes[fine].classes
        assert of is not None
        assert to is not None
        key = of.number, to.number
        if key not in self._index:
            self._index[key] = len(self.program.index)
            self.program.index += of.of_kernel[to.first].tolist()
        return self._index[key]
