"""Parsers for each kind of line in the old profiler's ``.conf`` files; fields are addressed by index."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewise.errors import KernelError
from tilewise.kernels.ck._ck_kernel import CkKernel
from tilewise.kernels.ck._ck_rules import VECTORS
from tilewise.kernels.ck._conf_fields import (
    ConfHeader,
    mapped,
    read_direct_load,
    read_int,
    read_ndim,
    require_count,
)
from tilewise.kernels.ck._instance import DEPTHWISE_SIZES, DepthwiseInstance, Instance

# Pipeline names of CK Tile's own kernels.
NATIVE_PIPELINES: Mapping[str, str] = {
    "BASIC_V1": "compv1",
    "BASIC_ASYNC_V1": "basic_async_v1",
    "MEMORY": "mem",
    **{f"COMPUTE_V{n}": f"compv{n}" for n in (3, 4, 5, 6)},
}
NATIVE_VARIANTS: Mapping[str, str] = {
    "GroupedConvolutionForwardKernel": "forward",
    "GroupedConvolutionBackwardDataKernel": "bwd_data",
    "GroupedConvolutionBackwardWeightKernel": "bwd_weight",
}
SCHEDULERS: Mapping[str, str] = {"Intrawave": "intrawave", "Interwave": "interwave"}
SPECIALIZATIONS: Mapping[str, str] = {
    "Default": "default",
    "OddC": "default",
    "Filter1x1Pad0": "filter1x1_pad0",
    "Filter1x1Stride1Pad0": "filter1x1_stride1_pad0",
    "Filter3x3": "filter3x3",
}


@dataclass(frozen=True)
class OldInstance:
    """An instance of the old library as its line states it. Pairs are (M, N), triples of `tile` (M, N, K).

    Attributes:
        k1: K elements that a thread copies at once.
        xdl: rows and columns of the matrix instruction.
        xdl_per_wave: instructions of a warp along M and N.
        vectors: elements per load of A and B and per store of C.
        version: the pipeline, ``v1`` to ``v6``.
        groups: groups to merge.
        notes: remarks for the reader.
    """

    variant: str
    header: ConfHeader
    specialization: str
    block_size: int
    tile: tuple[int, int, int]
    k1: int
    xdl: tuple[int, int]
    xdl_per_wave: tuple[int, int]
    vectors: tuple[int, int, int]
    scheduler: str = "Intrawave"
    version: str = "v1"
    groups: int = 1
    split_image: bool = False
    two_stage: bool = False
    explicit_gemm: bool = False
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class _Places:
    """Indices of the fields in a kind of long line.

    Attributes:
        image: layout of the image.
        dtype: type of the operands.
        specialization: specialization of the convolution.
        block: block size; tile and copies follow it.
        one_k1: whether A and B share one K1 field.
    """

    image: int
    dtype: int
    specialization: int
    block: int
    one_k1: bool = False


def _forward(name: str, fields: Sequence[str], header: ConfHeader) -> OldInstance:
    v3, large = "_V3" in name or "CShuffleV3" in name, "Large_Tensor" in name
    require_count(fields, 50 if v3 else 48 if large else 49)
    block = 16 if v3 else 17  # other lines have a number of prefetch stages before it
    old = replace(_long_form("forward", fields, _Places(1, 5, 14, block)), split_image=large)
    if v3:
        notes = read_direct_load(fields[48])
        return replace(old, scheduler=fields[44], version=fields[45], groups=read_int(fields[49]), notes=notes)
    return old if large else replace(old, groups=read_int(fields[48]))


def _bwd_data(name: str, fields: Sequence[str], header: ConfHeader) -> OldInstance:
    if len(fields) == 15:
        return _bwd_data_short(fields, header)
    require_count(fields, 51)
    return replace(_long_form("bwd_data", fields, _Places(4, 5, 13, 17)), groups=read_int(fields[49]))


def _bwd_data_short(fields: Sequence[str], header: ConfHeader) -> OldInstance:
    """Parse block, M, N, K, AK1, BK1, specialization, M and N per XDL and per wave, vectors A, B, C, merged groups."""
    block, m, n, k, k1, _, m_xdl, n_xdl, m_wave, n_wave, va, vb, vc, groups = map(read_int, (*fields[:6], *fields[7:]))
    xdl, per_wave = (m_xdl, n_xdl), (m_wave, n_wave)
    return OldInstance("bwd_data", header, fields[6], block, (m, n, k), k1, xdl, per_wave, (va, vb, vc), groups=groups)


def _bwd_weight(name: str, fields: Sequence[str], header: ConfHeader) -> OldInstance:
    v3, two_stage = "CShuffleV3" in name or "_V3" in name, "TwoStage" in name
    require_count(fields, 45 if v3 else 46 if two_stage else 43)
    places = _Places(1, 4, 11, 12, one_k1=True)
    old = replace(_long_form("bwd_weight", fields, places), split_image="Large" in name)
    if v3:
        notes = read_direct_load(fields[43])
        return replace(old, scheduler=fields[39], version=fields[40], groups=read_int(fields[44]), notes=notes)
    if two_stage:
        return replace(old, scheduler=fields[39], version=fields[40], groups=read_int(fields[41]), two_stage=True)
    m, n, k0 = old.tile  # these lines state K / K1
    return replace(old, tile=(m, n, k0 * old.k1))


def _long_form(variant: str, fields: Sequence[str], places: _Places) -> OldInstance:
    """Parse the fields that all kinds but the short one share, from the block size on."""
    header = ConfHeader(fields[places.dtype], read_ndim(fields[0]), fields[places.image].lower())
    block, m, n, k, k1 = map(read_int, fields[places.block : places.block + 5])
    at = places.block + (5 if places.one_k1 else 6)
    m_xdl, n_xdl, m_wave, n_wave = map(read_int, fields[at : at + 4])
    # Two copies of seven fields (the fifth: elements per load), two shuffle counts, a Seq, elements per store.
    vectors = (read_int(fields[at + 8]), read_int(fields[at + 15]), read_int(fields[at + 21]))
    for seq in (4, 5, 6, 11, 12, 13, 20):
        if not fields[at + seq].startswith("Seq("):
            raise KernelError(f"field {at + seq + 1} must be a Seq(...), got {fields[at + seq][:40]!r}")
    xdl, per_wave = (m_xdl, n_xdl), (m_wave, n_wave)
    return OldInstance(variant, header, fields[places.specialization], block, (m, n, k), k1, xdl, per_wave, vectors)


OLD_PARSERS: Mapping[str, Callable[[str, Sequence[str], ConfHeader], OldInstance]] = {
    "DeviceGroupedConvFwd": _forward,
    "DeviceGroupedConvBwdData": _bwd_data,
    "DeviceGroupedConvBwdWeight": _bwd_weight,
}

_EXPLICIT = re.compile(
    r"BlkSize: (\d+), BlkTile: (\d+)x(\d+)x(\d+), WaveTile: (\d+)x(\d+), K1: (\d+)x(\d+), WaveMap: (\d+)x(\d+), "
    r"VmemReadVec: (\d+)x(\d+)xSeq\((\d+(?:,\s*\d+)*)\), BlkGemmPipelineScheduler: (\w+), "
    r"BlkGemmPipelineVersion: (\w+)",
    re.ASCII,
)


def parse_explicit(body: str, header: ConfHeader) -> OldInstance:
    """Parse a backward weight of a 1x1 filter as a plain matrix product; its fields have names.

    Raises:
        KernelError: a field is missing or malformed, or stores have different widths.
    """
    match = _EXPLICIT.search(body)
    if match is None:
        raise KernelError("fields of an explicit GEMM are missing: BlkSize, BlkTile, WaveTile, K1, WaveMap, ...")
    block, m, n, k, m_xdl, n_xdl, k1_a, k1_b, m_wave, n_wave, va, vb = map(read_int, match.groups()[:12])
    widths = {read_int(v.strip()) for v in match[13].split(",")}
    if len(widths) > 1:
        raise KernelError(f"all stores must have one width, got {match[13]}")
    vc = widths.pop()
    return OldInstance(
        "bwd_weight", header, "Filter1x1Stride1Pad0", block, (m, n, k), min(k1_a, k1_b), (m_xdl, n_xdl),
        (m_wave, n_wave), (va, vb, vc), match[14], match[15], explicit_gemm=True,
        two_stage=header.dtype != "fp32" and vc % 2 == 1,  # stores narrower than 32 bits need a second kernel
    )  # fmt: skip


def parse_native(variant: str, fields: Sequence[str]) -> Instance:
    """Parse CK Tile's own string, which for backward weight may have a stream-K tail.

    Raises:
        KernelError: a field is missing or malformed.
    """
    require_count(fields, 31, 32, 34)
    va, vb, vc, groups, split_image, explicit_gemm = map(read_int, fields[6:12])
    m, n, k, warp_m, warp_n, warp_k, inner_m, inner_n, inner_k = map(read_int, fields[12:21])
    streamk = len(fields) > 31 and read_int(fields[31]) != 0
    if streamk and len(fields) != 34:
        raise KernelError("stream-K needs a reduction strategy and a flag for persistent")
    if fields[21] != fields[22]:
        raise KernelError(f"both operands must have one type, got {fields[21][:20]} and {fields[22][:20]}")
    kernel = CkKernel(
        m, n, k, mapped(NATIVE_PIPELINES, fields[23], "pipeline"), read_ndim(fields[0]),
        warp_m=warp_m, warp_n=warp_n, warp_k=warp_k, warp_tile_m=inner_m, warp_tile_n=inner_n, warp_tile_k=inner_k,
        scheduler=mapped(SCHEDULERS, fields[24], "scheduler"), epilogue="cshuffle",
        double_smem_buffer=read_int(fields[25]) != 0,
        vector_a=va, vector_b=vb, vector_c=vc, num_groups_to_merge=groups, streamk_enabled=streamk,
        streamk_reduction_strategy=str(read_int(fields[32])) if streamk else "",
        streamk_persistent=streamk and read_int(fields[33]) != 0,
    )  # fmt: skip
    return Instance(
        variant,
        fields[21],
        kernel,
        fields[2].lower(),
        num_wave_groups=read_int(fields[26]),
        specialization=mapped(SPECIALIZATIONS, fields[1], "specialization"),
        split_image=split_image != 0,
        explicit_gemm=explicit_gemm != 0,
    )


def parse_depthwise(fields: Sequence[str], header: ConfHeader) -> DepthwiseInstance:
    """Parse the twelve numbers of a depthwise forward convolution.

    Raises:
        KernelError: the number of fields or a value is wrong.
    """
    if len(fields) != len(DEPTHWISE_SIZES):
        raise KernelError(f"unknown kind of line: neither an instance <...> nor {len(DEPTHWISE_SIZES)} numbers")
    sizes = dict(zip(DEPTHWISE_SIZES, map(read_int, fields), strict=True))
    if min(sizes[n] for n in sizes if not n.startswith("pad_")) < 1:
        raise KernelError("all numbers but the padding must be at least 1")
    if not {sizes["in_vec"], sizes["out_vec"]} <= set(VECTORS):
        raise KernelError(f"in_vec and out_vec must be one of {', '.join(map(str, VECTORS))}")
    layout = header.layout if header.layout.startswith("ngc") else "ngchw"
    return DepthwiseInstance(header.dtype, header.ndim, layout, **sizes)
