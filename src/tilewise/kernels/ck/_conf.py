"""Conversion of the old profiler's ``.conf`` files (one C++ instance string per line) to CK Tile's instances.

Lines that differ only in details that CK Tile does not model (how threads share a copy, how K is split in two) become
one instance. A line that neither the hardware nor CK Tile supports is skipped, with its number and the reason.

The format leaves four things open. The choices are made in this module and :mod:`._conf_lines`, nowhere else:

* The single numbers of a stream-K line (``4,2,2,1,0,0,...``) are read as vector sizes A, B, C, groups to merge, split
  image and explicit GEMM; the last three as stream-K enabled, reduction strategy and persistent. The strategy's number
  is copied unchanged.
* Old lines do not hold the warp tile's K. It is the matrix instruction's K, or K1 if that is larger, and at most the
  block's K.
* The flag before the groups to merge of a V3 line (direct loads in newer versions) is ignored. A line that sets it gets
  a note.
* A line without types (backward data in the short form, explicit GEMM, depthwise) takes type and layout from the file's
  name (``nhwgc_bf16.conf``), else from the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewise.arch import HardwareProfile
from tilewise.errors import KernelError
from tilewise.kernels.ck._ck_kernel import CkKernel
from tilewise.kernels.ck._ck_rules import ELEMENT_BYTES, WAVEFRONT, build_fault
from tilewise.kernels.ck._conf_fields import ConfHeader, mapped, split_fields
from tilewise.kernels.ck._conf_lines import (
    NATIVE_VARIANTS,
    OLD_PARSERS,
    SCHEDULERS,
    SPECIALIZATIONS,
    OldInstance,
    parse_depthwise,
    parse_explicit,
    parse_native,
)
from tilewise.kernels.ck._instance import AnyInstance, Instance

MAX_LINE = 10_000  # characters

PIPELINES: Mapping[str, str] = {
    "v1": "compv1",
    "v2": "mem",
    "v3": "compv3",
    "v4": "compv4",
    "v5": "compv5",
    "v6": "compv6",
}
# K of the smallest m x m matrix instruction, by (m, bytes of an element); see the CDNA 3 instruction set.
_INSTRUCTION_K = {(32, 4): 2, (16, 4): 4, (32, 2): 8, (16, 2): 16, (32, 1): 16, (16, 1): 32}


@dataclass(frozen=True)
class Conversion:
    """The result of converting a file.

    Attributes:
        instances: distinct instances in the order of first appearance; ids count from 0.
        lines: the line numbers (from 1) that each instance was read from.
        skipped: line number and reason of every line without an instance.
        notes: line number and a remark for the reader.
    """

    instances: tuple[AnyInstance, ...]
    lines: tuple[tuple[int, ...], ...]
    skipped: tuple[tuple[int, str], ...]
    notes: tuple[tuple[int, str], ...]


def convert_conf(text: str, header: ConfHeader, arch: HardwareProfile | None = None) -> Conversion:
    """Convert the lines of a ``.conf``.

    Args:
        text: content of the file; ``#`` begins a comment.
        header: type and layout of lines that do not state them.
        arch: skip lines that break a rule of this arch; None checks only the rules that hold for every arch.
    """
    lines: dict[AnyInstance, list[int]] = {}
    skipped: list[tuple[int, str]] = []
    notes: list[tuple[int, str]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line or line.startswith(";"):
            continue
        try:
            instance, remarks = parse_line(line, header)
            if isinstance(instance, Instance) and (fault := build_fault(instance.kernel, instance.dtype, arch)):
                raise KernelError(fault)
        except KernelError as e:
            skipped.append((number, str(e)))
        else:
            lines.setdefault(instance, []).append(number)
            notes += [(number, remark) for remark in remarks]
    instances = tuple(replace(instance, id=i) for i, instance in enumerate(lines))
    return Conversion(instances, tuple(map(tuple, lines.values())), tuple(skipped), tuple(notes))


def parse_line(line: str, header: ConfHeader) -> tuple[AnyInstance, tuple[str, ...]]:
    """Parse one line into its instance and remarks for the reader.

    Raises:
        KernelError: the line is malformed, of an unknown kind, or has no counterpart in CK Tile.
    """
    if len(line) > MAX_LINE:
        raise KernelError(f"a line has at most {MAX_LINE} characters, got {len(line)}")
    if "<" not in line:
        return parse_depthwise(split_fields(line), header), ()
    name, _, rest = line.partition("<")
    if not rest.endswith(">"):
        raise KernelError("the closing > is missing")
    body = rest[:-1]
    name = name.strip()
    if "_Explicit" in name:
        return _to_ck_tile(parse_explicit(body, header))
    arguments = split_fields(body)
    if name == "GroupedConvolutionForwardDepthwise":
        return parse_depthwise(arguments, header), ()
    if name in NATIVE_VARIANTS:
        return parse_native(NATIVE_VARIANTS[name], arguments), ()
    parser = next((parse for prefix, parse in OLD_PARSERS.items() if name.startswith(prefix)), None)
    if parser is None:
        known = ", ".join((*OLD_PARSERS, *NATIVE_VARIANTS))
        raise KernelError(f"{name[:80]!r} is an unknown kind of instance; known are {known}")
    return _to_ck_tile(parser(name, arguments, header))


def _to_ck_tile(old: OldInstance) -> tuple[Instance, tuple[str, ...]]:
    """Return the CK Tile instance of an old one, and the notes about it."""
    m, n = (_quotient(old.tile[i], old.xdl[i] * old.xdl_per_wave[i], "MN"[i]) for i in (0, 1))
    k = _quotient(old.block_size, WAVEFRONT * m * n, "the block size", "its warps")
    element_bytes = ELEMENT_BYTES.get(old.header.dtype, 0)
    if old.xdl[0] != old.xdl[1] or (old.xdl[0], element_bytes) not in _INSTRUCTION_K:
        raise KernelError(f"no matrix instruction of {old.xdl[0]}x{old.xdl[1]} for {old.header.dtype}")
    kernel = CkKernel(
        *old.tile,
        mapped(PIPELINES, old.version, "pipeline version"),
        old.header.ndim,
        warp_m=m,
        warp_n=n,
        warp_k=k,
        warp_tile_m=old.xdl[0],
        warp_tile_n=old.xdl[1],
        warp_tile_k=min(max(old.k1, _INSTRUCTION_K[old.xdl[0], element_bytes]), old.tile[2]),
        scheduler=mapped(SCHEDULERS, old.scheduler, "scheduler"),
        epilogue="cshuffle",
        double_smem_buffer=old.version == "v4",
        vector_a=old.vectors[0],
        vector_b=old.vectors[1],
        vector_c=old.vectors[2],
        num_groups_to_merge=old.groups,
    )
    instance = Instance(
        old.variant,
        old.header.dtype,
        kernel,
        old.header.layout,
        specialization=mapped(SPECIALIZATIONS, old.specialization, "specialization"),
        two_stage=old.two_stage,
        explicit_gemm=old.explicit_gemm,
        split_image=old.split_image,
    )
    return instance, old.notes


def _quotient(size: int, divisor: int, name: str, divisor_name: str = "its warps' instructions") -> int:
    if divisor < 1 or size % divisor or size < divisor:
        raise KernelError(f"{name} {size} must be a multiple of {divisor_name}, {divisor}")
    return size // divisor
