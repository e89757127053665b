"""Accuracy of the features that describe a kernel's use of a compute unit.

python -m benchmarks.learning.blocks TARGET [--each N] [--data DIR]

Compiles each kernel of the pool for the target's arch, for some of its measured problems (no GPU is needed), and
compares shared memory, registers and blocks per compute unit with the features of the same names.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.learning.learning_curve import recorded
from tilewise.arch import HardwareProfile, load_arch
from tilewise.features import BLOCK_RESERVE_BYTES
from tilewise.kernels.triton import BARRIER_BYTES
from tilewise.markdown import table as markdown_table
from tilewise.ops import Target
from tilewise.train import Ints, Table

NEAR = 0.5  # of the best; slower kernels are not compared

# Layout of ELF and of NVIDIA's attributes in it: format, attribute, and a value or the size of the payload.
_SECTIONS_AT, _SECTION_COUNT_AT, _SECTION = 0x28, 0x3C, "<IIQQQQIIQQ"
_SIZED, _REGISTER_COUNT = 0x04, 0x2F


def registers_of(cubin: bytes) -> int:
    """Return the registers per thread of a compiled binary, from the section ``.nv.info``."""
    (start,) = struct.unpack_from("<Q", cubin, _SECTIONS_AT)
    count, names = struct.unpack_from("<HH", cubin, _SECTION_COUNT_AT)
    size = struct.calcsize(_SECTION)
    sections = [struct.unpack_from(_SECTION, cubin, start + size * i) for i in range(count)]
    most = 0
    for name, _, _, _, at, length, *_ in sections:
        begin = sections[names][4] + name
        if cubin[begin : cubin.index(b"\0", begin)] != b".nv.info":
            continue
        end = at + length
        while at < end:
            form, attribute, value = struct.unpack_from("<BBH", cubin, at)
            if (form, attribute) == (_SIZED, _REGISTER_COUNT):
                most = max(most, struct.unpack_from("<II", cubin, at + 4)[1])
            at += 4 + (value if form == _SIZED else 0)
    return most


def blocks(shared: int, registers: int, warps: int, arch: HardwareProfile) -> int:
    """Return the blocks that fit a compute unit; registers are allocated in steps of eight per thread."""
    threads = warps * arch.warp_size
    by_registers = arch.registers // (-(-registers // 8) * 8 * threads)
    by_memory = arch.shared_memory_unit_bytes // (shared + BLOCK_RESERVE_BYTES)
    return max(1, min(by_registers, by_memory, arch.max_threads // threads, arch.max_blocks))


def drawn(table: Table, each: int) -> Iterator[int]:
    """Yield `each` rows of every kernel, among the rows with a fair efficiency."""
    drawn_rows: dict[int, int] = {}
    order: Ints = np.random.default_rng(0).permutation(len(table.kernel))
    for row in order[table.efficiency[order] >= NEAR]:
        kernel = int(table.kernel[row])
        if drawn_rows.setdefault(kernel, 0) < each:
            drawn_rows[kernel] += 1
            yield int(row)


def compiled(table: Table, target: Target, each: int) -> pd.DataFrame:
    """Return one row per binary: its measured use of resources, and the features' values."""
    from tilewise.kernels.triton.programs import (
        compile_program,
        cuda_target,
        family_of,  # Triton is not installed everywhere
    )

    arch, found = load_arch(target.arch), []
    columns = [table.features.names.index(name) for name in ("shared_bytes", "registers", "resident")]
    for row in drawn(table, each):
        kernel: Any = table.pool.kernels[table.kernel[row]]
        problem = table.problems[table.problem[row]]
        first, *_ = family_of(target.op, target.variant).programs(kernel, problem, target.dtype)
        program = compile_program.__wrapped__(first, cuda_target(target.arch))
        shared, registers = program.metadata.shared, registers_of(program.asm["cubin"])
        predicted = (float(table.matrix[row, c]) for c in columns)
        found.append(
            (kernel.pipeline, shared, registers, blocks(shared, registers, kernel.num_warps, arch), *predicted)
        )
    names = ["pipeline", "shared", "registers", "blocks", "shared_feature", "registers_feature", "blocks_feature"]
    return pd.DataFrame(found, columns=names)


def main() -> None:
    """Print a row for each pipeline, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Target.parse)
    parser.add_argument("--each", type=int, default=2, help="problems of each kernel")
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    table = compiled(recorded(args.target, args.data), args.target, args.each)
    rows = []
    for pipeline, some in (*table.groupby("pipeline"), ("all", table)):
        apart = np.abs(np.log2(some.blocks_feature / some.blocks))
        equal = 100 * ((some.shared - some.shared_feature).abs() <= BARRIER_BYTES).mean()
        wrong, registers = 100 * (apart > 0).mean(), (some.registers_feature - some.registers).abs().mean()
        rows.append(
            (
                str(pipeline),
                f"{len(some)}",
                f"{equal:.0f} %",
                f"{registers:.0f}",
                f"{wrong:.0f} %",
                f"{apart.mean():.2f}",
            )
        )
    header = ("pipeline", "binaries", "shared memory right", "registers off", "blocks wrong", "log2 of blocks off")
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()
