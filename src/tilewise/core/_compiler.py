"""Compilation of traced formulas into bytecode: the operations that results need, in order, in few slots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tilewise.core._trace import Symbol, Trace, UntraceableError

# In the order of core/bytecode.h, where booleans are the integers 0 and 1.
_OPS = (
    "add_i", "sub_i", "mul_i", "floordiv_i", "mod_i", "gcd_i", "neg_i", "min_i", "max_i", "and_i", "or_i", "xor_i",
    "not_i", "not_b", "eq_i", "ne_i", "lt_i", "le_i", "add_f", "sub_f", "mul_f", "div_f", "neg_f", "min_f", "max_f",
    "ceil_f", "floor_f", "log_f", "log2_f", "eq_f", "ne_f", "lt_f", "le_f", "float_i", "where", "expand",
)  # fmt: skip
_OF_BOOLS = {f"{op}_b": f"{op}_i" for op in ("and", "or", "xor", "eq", "ne")}
_CODES = {op: code for code, op in enumerate(_OPS)}


@dataclass
class Bytecode:
    """A straight-line program for the C core; see core/bytecode.h.

    Attributes:
        n_inputs: columns of the problem.
        constants: bytes of 8-byte slots.
        instructions: int32, seven numbers per instruction.
        index: int32, the tables of ``expand``.
        n_slots: 8-byte slots of a frame.
    """

    n_inputs: int
    constants: bytes = b""
    instructions: list[int] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    n_slots: int = 0


class Compiler:
    """Bytecode for the nodes that some results need.

    Args:
        trace: the nodes of the formulas.
        n_inputs: columns of the problem.
        results: values to keep; no later instruction reuses their slots.

    Raises:
        UntraceableError: the core lacks an operation.
    """

    def __init__(self, trace: Trace, n_inputs: int, results: Iterable[Symbol]) -> None:
        self._nodes = trace.nodes
        self.bytecode = Bytecode(n_inputs)
        self._slot: dict[int, int] = {}
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._index: dict[tuple[int, int], int] = {}
        result_nodes = {self._stored(r.node) for r in results}
        order, last_use = self._order(result_nodes)
        self._place_constants(order)
        for number in order:
            if self._nodes[number].op not in ("input", "const"):
                self._append(number)
            for argument in {self._stored(a) for a in self._nodes[number].args}:
                if last_use[argument] == number and argument not in result_nodes and self._nodes[argument].args:
                    self._free[self._length(argument)].append(self._slot[argument])

    def output(self, result: Symbol) -> tuple[int, int]:
        """Return the first slot of a result and the number of its partition, -1 if all kernels share one value."""
        classes = self._nodes[result.node].classes
        return self._slot[self._stored(result.node)], -1 if classes is None else classes.number

    def _stored(self, number: int) -> int:
        """Return the node whose slots hold a value: a bool used as an integer has the slots of the bool."""
        while self._nodes[number].op == "same":
            number = self._nodes[number].args[0]
        return number

    def _length(self, number: int) -> int:
        classes = self._nodes[number].classes
        return 1 if classes is None else len(classes)

    def _order(self, results: set[int]) -> tuple[list[int], dict[int, int]]:
        """Return the nodes that results depend on, in order, and the last node that uses each of them."""
        needed, waiting = set(results), list(results)
        while waiting:
            for argument in self._nodes[waiting.pop()].args:
                if (stored := self._stored(argument)) not in needed:
                    needed.add(stored)
                    waiting.append(stored)
        order = sorted(needed)
        return order, {self._stored(a): number for number in order for a in self._nodes[number].args}

    def _place_constants(self, order: list[int]) -> None:
        slots, chunks = self.bytecode.n_inputs, []
        for number in order:
            node = self._nodes[number]
            if node.op == "input":
                self._slot[number] = node.place
            elif node.op == "const":
                self._slot[number] = slots
                value = np.frombuffer(node.constant, dtype={"b": bool, "i": np.int64, "f": np.float64}[node.kind])
                chunks.append((value.astype(np.int64) if node.kind == "b" else value).tobytes())
                slots += len(value)
        self.bytecode.constants, self.bytecode.n_slots = b"".join(chunks), slots

    def _append(self, number: int) -> None:
        """Append the instruction of one node."""
        node, n = self._nodes[number], self._length(number)
        op = _OF_BOOLS.get(node.op, node.op)
        if op not in _CODES:
            raise UntraceableError(f"the core has no operation {node.op}")
        if self._free[n]:
            out = self._free[n].pop()
        else:
            out, self.bytecode.n_slots = self.bytecode.n_slots, self.bytecode.n_slots + n
        self._slot[number] = out
        args = [self._stored(a) for a in node.args]
        operands = [self._slot[a] for a in args]
        vectors = sum(1 << i for i, a in enumerate(args) if self._length(a) > 1)
        if op == "expand":
            operands, vectors = [operands[0], self._table(args[0], number), self._length(args[0])], 0
        while len(operands) < 3:
            operands.append(operands[0])
        self.bytecode.instructions += [_CODES[op], out, n, *operands, vectors]

    def _table(self, coarse: int, fine: int) -> int:
        """Return where `index` lists the class of a coarse partition for each class of a finer one."""
        of, to = self._nodes[coarse].classes, self._nodes[fine].classes
        assert of is not None
        assert to is not None
        key = of.number, to.number
        if key not in self._index:
            self._index[key] = len(self.bytecode.index)
            self.bytecode.index += of.of_kernel[to.first].tolist()
        return self._index[key]
