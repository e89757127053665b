"""The old profiler's ``.conf`` files: one C++ instance string a line, converted to CK Tile's instances.

Lines differ only in details that CK Tile does not model (how threads share a copy, how K is split in two), so several
may become one instance. What the hardware or CK Tile cannot do is skipped, with the line and the reason.

Guesses, made here and nowhere else:

* The single numbers of a stream-K line (``4,2,2,1,0,0,...``) are taken as vector sizes A, B, C, groups to merge, split
  image, explicit GEMM; the last three as stream-K enabled, reduction strategy, persistent. The strategy's number is
  kept as it stands.
* The warp tile's K, which old lines do not hold, is the matrix instruction's, or K1 where that is larger, at most the
  block's.
* The flag before the groups to merge of a V3 line (direct loads in newer versions) changes nothing; a line in which it
  is set gets a note.
* A line without types (backward data in the short form, explicit GEMM, depthwise) takes type and layout from the file's
  name (``nhwgc_bf16.conf``), else from the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewise.arch import HardwareProfile
from tilewise.errors import KernelError
from tilewise.kernels.ck.instance import DEPTHWISE_SIZES, AnyInstance, DepthwiseInstance, Instance
from tilewise.kernels.ck.kernel import MAX_DIGITS, CkKernel
from tilewise.kernels.ck.rules import VECTORS, WAVEFRONT, impossible

MAX_LINE = 10_000  # characters

PIPELINES = {"v1": "compv1", "v2": "mem", "v3": "compv3", "v4": "compv4", "v5": "compv5", "v6": "compv6"}
# As CK Tile's own kernels name their pipelines.
NATIVE_PIPELINES = {
    "BASIC_V1": "compv1",
    "BASIC_ASYNC_V1": "basic_async_v1",
    "MEMORY": "mem",
    **{f"COMPUTE_V{n}": f"compv{n}" for n in (3, 4, 5, 6)},
}
SCHEDULERS = {"Intrawave": "intrawave", "Interwave": "interwave"}
SPECIALIZATIONS = {
    "Default": "default",
    "OddC": "default",
    "Filter1x1Pad0": "filter1x1_pad0",
    "Filter1x1Stride1Pad0": "filter1x1_stride1_pad0",
    "Filter3x3": "filter3x3",
}
# K of the smallest matrix instruction of m x m, by bytes of an element (CDNA 3 instruction set).
_INSTRUCTION_K = {(32, 4): 2, (16, 4): 4, (32, 2): 8, (16, 2): 16, (32, 1): 16, (16, 1): 32}
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "bf8": 1, "int8": 1}


@dataclass(frozen=True)
class Header:
    """What a line without types is of."""

    dtype: str = "bf16"
    ndim: int = 2
    layout: str = "nhwgc"

    @classmethod
    def of_file(cls, name: str, otherwise: Header) -> Header:
        """From a file's name such as ``nhwgc_bf16.conf``; what it does not tell is as `otherwise` says."""
        layout = re.search(r"(?:^|_)(nwgc|nhwgc|ndhwgc|ngchw|ngcdhw)(?:_|\.|$)", name.lower())
        dtype = re.search(r"(?:^|_)(bf16|fp16|fp32|fp8|bf8|int8)(?:_|\.|$)", name.lower())
        found = replace(otherwise, dtype=dtype[1]) if dtype else otherwise
        return replace(found, layout=layout[1], ndim=len(layout[1]) - 3) if layout else found


@dataclass(frozen=True)
class Conversion:
    """What became of a file.

    Attributes:
        instances: each once, in the order of first appearance; ids from 0.
        lines: the line numbers (from 1) that became each instance.
        skipped: line number and reason of every line that became none.
        notes: line number and what a reader should know.
    """

    instances: tuple[AnyInstance, ...]
    lines: tuple[tuple[int, ...], ...]
    skipped: tuple[tuple[int, str], ...]
    notes: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class _Old:
    """An instance of the old library, as its line tells it. Pairs are M and N."""

    variant: str
    header: Header
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


def convert(text: str, header: Header, arch: HardwareProfile | None = None) -> Conversion:
    """Convert the lines of a ``.conf``.

    Args:
        text: the file; ``#`` begins a comment.
        header: what lines without types are of.
        arch: also skip what breaks a rule of this arch; None: only what no arch can do.
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
            if isinstance(instance, Instance) and (why := impossible(instance.kernel, instance.dtype, arch)):
                raise KernelError(why)
        except KernelError as e:
            skipped.append((number, str(e)))
        else:
            lines.setdefault(instance, []).append(number)
            notes += [(number, remark) for remark in remarks]
    instances = tuple(replace(instance, id=i) for i, instance in enumerate(lines))
    return Conversion(instances, tuple(map(tuple, lines.values())), tuple(skipped), tuple(notes))


def parse_line(line: str, header: Header) -> tuple[AnyInstance, tuple[str, ...]]:
    """The instance of one line, and what a reader should know of it.

    Raises:
        KernelError: the line is of no known kind, malformed, or has no counterpart in CK Tile.
    """
    if len(line) > MAX_LINE:
        raise KernelError(f"{len(line)} characters, more than {MAX_LINE}")
    if "<" not in line:
        return _depthwise(_split(line), header), ()
    name, _, rest = line.partition("<")
    if not rest.endswith(">"):
        raise KernelError("the closing > is missing")
    body = rest[:-1]
    name = name.strip()
    if "_Explicit" in name:
        return _tile(_explicit(body, header))
    arguments = _split(body)
    if name == "GroupedConvolutionForwardDepthwise":
        return _depthwise(arguments, header), ()
    if name in _NATIVE:
        return _native(_NATIVE[name], arguments), ()
    parser = next((parse for prefix, parse in _OLD.items() if name.startswith(prefix)), None)
    if parser is None:
        raise KernelError(f"{name[:80]!r} is no known kind of instance")
    return _tile(parser(name, arguments, header))


def _tile(old: _Old) -> tuple[Instance, tuple[str, ...]]:
    """The CK Tile instance of an old one."""
    m, n = (_divided(old.tile[i], old.xdl[i] * old.xdl_per_wave[i], "MN"[i]) for i in (0, 1))
    k = _divided(old.block_size, WAVEFRONT * m * n, "the block size", "its warps")
    if old.xdl[0] != old.xdl[1] or (old.xdl[0], _BYTES.get(old.header.dtype, 0)) not in _INSTRUCTION_K:
        raise KernelError(f"no matrix instruction of {old.xdl[0]}x{old.xdl[1]} for {old.header.dtype}")
    inner = min(max(old.k1, _INSTRUCTION_K[old.xdl[0], _BYTES[old.header.dtype]]), old.tile[2])
    pipeline = _mapped(PIPELINES, old.version, "pipeline version")
    kernel = CkKernel(
        *old.tile,
        pipeline,
        old.header.ndim,
        warp_m=m,
        warp_n=n,
        warp_k=k,
        warp_tile_m=old.xdl[0],
        warp_tile_n=old.xdl[1],
        warp_tile_k=inner,
        scheduler=_mapped(SCHEDULERS, old.scheduler, "scheduler"),
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
        specialization=_mapped(SPECIALIZATIONS, old.specialization, "specialization"),
        two_stage=old.two_stage,
        explicit_gemm=old.explicit_gemm,
        split_image=old.split_image,
    )
    return instance, old.notes


# ---- kinds of line ---------------------------------------------------------------------------------------------------


def _forward(name: str, a: Sequence[str], header: Header) -> _Old:
    v3, large = "_V3" in name or "CShuffleV3" in name, "Large_Tensor" in name
    _count(a, 50 if v3 else 48 if large else 49)
    at = 16 if v3 else 17  # the block size; non-V3 lines have a number of prefetch stages before it
    old = _xdl("forward", _typed(a, 1, 5), a[14], a, at, split_image=large)
    if v3:
        flag = _direct_load(a[48])
        return replace(old, scheduler=a[44], version=a[45], groups=_int(a[49]), notes=flag)
    return old if large else replace(old, groups=_int(a[48]))


def _bwd_data(name: str, a: Sequence[str], header: Header) -> _Old:
    if len(a) == 15:
        return _bwd_data_short(a, header)
    _count(a, 51)
    return replace(_xdl("bwd_data", _typed(a, 4, 5), a[13], a, 17), groups=_int(a[49]))


def _bwd_data_short(a: Sequence[str], header: Header) -> _Old:
    """Block, M, N, K, AK1, BK1, specialisation, M and N per XDL, per wave, vectors A, B, C, groups to merge."""
    block, m, n, k, k1, _, m_xdl, n_xdl, m_wave, n_wave, va, vb, vc, groups = map(_int, (*a[:6], *a[7:]))
    xdl, per_wave = (m_xdl, n_xdl), (m_wave, n_wave)
    return _Old("bwd_data", header, a[6], block, (m, n, k), k1, xdl, per_wave, (va, vb, vc), groups=groups)


def _bwd_weight(name: str, a: Sequence[str], header: Header) -> _Old:
    v3, two_stage = "CShuffleV3" in name or "_V3" in name, "TwoStage" in name
    _count(a, 45 if v3 else 46 if two_stage else 43)
    old = _xdl("bwd_weight", _typed(a, 1, 4), a[11], a, 12, one_k1=True, split_image="Large" in name)
    if v3:
        flag = _direct_load(a[43])
        return replace(old, scheduler=a[39], version=a[40], groups=_int(a[44]), notes=flag)
    if two_stage:
        return replace(old, scheduler=a[39], version=a[40], groups=_int(a[41]), two_stage=True)
    m, n, k0 = old.tile  # K is split in K0 and K1
    return replace(old, tile=(m, n, k0 * old.k1))


def _xdl(
    variant: str,
    header: Header,
    specialization: str,
    a: Sequence[str],
    at: int,
    *,
    one_k1: bool = False,
    split_image: bool = False,
) -> _Old:
    """What all but the short form share: from the block size at `at` on; A and B have one K1 in common or one each."""
    block, m, n, k, k1 = map(_int, a[at : at + 5])
    at += 5 if one_k1 else 6
    m_xdl, n_xdl, m_wave, n_wave = map(_int, a[at : at + 4])
    # two copies of seven fields (the fifth: elements a load), two shuffle counts, a Seq, elements a store
    vectors = (_int(a[at + 8]), _int(a[at + 15]), _int(a[at + 21]))
    for seq in (4, 5, 6, 11, 12, 13, 20):
        if not a[at + seq].startswith("Seq("):
            raise KernelError(f"field {at + seq + 1} must be a Seq(...), got {a[at + seq][:40]!r}")
    xdl, per_wave = (m_xdl, n_xdl), (m_wave, n_wave)
    return _Old(variant, header, specialization, block, (m, n, k), k1, xdl, per_wave, vectors, split_image=split_image)


_EXPLICIT = re.compile(
    r"BlkSize: (\d+), BlkTile: (\d+)x(\d+)x(\d+), WaveTile: (\d+)x(\d+), K1: (\d+)x(\d+), WaveMap: (\d+)x(\d+), "
    r"VmemReadVec: (\d+)x(\d+)xSeq\((\d+(?:,\s*\d+)*)\), BlkGemmPipelineScheduler: (\w+), "
    r"BlkGemmPipelineVersion: (\w+)",
    re.ASCII,
)


def _explicit(body: str, header: Header) -> _Old:
    """Backward weight of a 1x1 filter as a plain matrix product; its fields have names."""
    match = _EXPLICIT.search(body)
    if match is None:
        raise KernelError("fields of an explicit GEMM are missing: BlkSize, BlkTile, WaveTile, K1, WaveMap, ...")
    block, m, n, k, m_xdl, n_xdl, k1_a, k1_b, m_wave, n_wave, va, vb = map(_int, match.groups()[:12])
    widths = {_int(v.strip()) for v in match[13].split(",")}
    if len(widths) > 1:
        raise KernelError(f"stores of different widths, {match[13]}")
    vc = widths.pop()
    return _Old(
        "bwd_weight", header, "Filter1x1Stride1Pad0", block, (m, n, k), min(k1_a, k1_b), (m_xdl, n_xdl),
        (m_wave, n_wave), (va, vb, vc), match[14], match[15], explicit_gemm=True,
        two_stage=header.dtype != "fp32" and vc % 2 == 1,  # narrower stores than a 32-bit word need a second kernel
    )  # fmt: skip


_OLD: Mapping[str, Callable[[str, Sequence[str], Header], _Old]] = {
    "DeviceGroupedConvFwd": _forward,
    "DeviceGroupedConvBwdData": _bwd_data,
    "DeviceGroupedConvBwdWeight": _bwd_weight,
}
_NATIVE = {
    "GroupedConvolutionForwardKernel": "forward",
    "GroupedConvolutionBackwardDataKernel": "bwd_data",
    "GroupedConvolutionBackwardWeightKernel": "bwd_weight",
}


def _native(variant: str, a: Sequence[str]) -> Instance:
    """CK Tile's own string; with a stream-K tail for backward weight."""
    _count(a, 31, 32, 34)
    va, vb, vc, groups, split_image, explicit_gemm = map(_int, a[6:12])
    m, n, k, warp_m, warp_n, warp_k, inner_m, inner_n, inner_k = map(_int, a[12:21])
    streamk = len(a) > 31 and _int(a[31]) != 0
    if streamk and len(a) != 34:
        raise KernelError("stream-K needs a reduction strategy and whether it is persistent")
    if a[21] != a[22]:
        raise KernelError(f"operands of two types, {a[21][:20]} and {a[22][:20]}")
    kernel = CkKernel(
        m, n, k, _mapped(NATIVE_PIPELINES, a[23], "pipeline"), _ndim(a[0]),
        warp_m=warp_m, warp_n=warp_n, warp_k=warp_k, warp_tile_m=inner_m, warp_tile_n=inner_n, warp_tile_k=inner_k,
        scheduler=_mapped(SCHEDULERS, a[24], "scheduler"), epilogue="cshuffle", double_smem_buffer=_int(a[25]) != 0,
        vector_a=va, vector_b=vb, vector_c=vc, num_groups_to_merge=groups,
    )  # fmt: skip
    return Instance(
        variant,
        a[21],
        kernel,
        a[2].lower(),
        num_wave_groups=_int(a[26]),
        specialization=_mapped(SPECIALIZATIONS, a[1], "specialization"),
        split_image=split_image != 0,
        explicit_gemm=explicit_gemm != 0,
        streamk_enabled=streamk,
        streamk_reduction_strategy=str(_int(a[32])) if streamk else "",
        streamk_persistent=streamk and _int(a[33]) != 0,
    )


def _depthwise(a: Sequence[str], header: Header) -> DepthwiseInstance:
    if len(a) != len(DEPTHWISE_SIZES):
        raise KernelError(f"no known kind of line: neither an instance <...> nor {len(DEPTHWISE_SIZES)} numbers")
    sizes = dict(zip(DEPTHWISE_SIZES, map(_int, a), strict=True))
    if min(sizes[n] for n in sizes if not n.startswith("pad_")) < 1:
        raise KernelError("all numbers but the padding must be at least 1")
    if not {sizes["in_vec"], sizes["out_vec"]} <= set(VECTORS):
        raise KernelError(f"in_vec and out_vec must be one of {', '.join(map(str, VECTORS))}")
    layout = header.layout if header.layout.startswith("ngc") else "ngchw"
    return DepthwiseInstance(header.dtype, header.ndim, layout, **sizes)


# ---- fields ----------------------------------------------------------------------------------------------------------


def _split(text: str) -> list[str]:
    """The fields between commas; ``Seq(...)`` is one field."""
    fields, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "(<") - (char in ")>")
        if depth < 0:
            raise KernelError(f"brackets do not match at character {i + 1}")
        if char == "," and depth == 0:
            fields.append(text[start:i].strip())
            start = i + 1
    if depth:
        raise KernelError("brackets do not match at the end")
    return [*fields, text[start:].strip()]


def _count(arguments: Sequence[str], *counts: int) -> None:
    if len(arguments) not in counts:
        raise KernelError(f"has {len(arguments)} fields, expected {' or '.join(map(str, counts))}")


def _typed(a: Sequence[str], image: int, dtype: int) -> Header:
    """Dimensions, the image's layout and the operands' type, where they stand."""
    return Header(a[dtype], _ndim(a[0]), a[image].lower())


def _ndim(text: str) -> int:
    if text not in ("1", "2", "3"):
        raise KernelError(f"spatial dimensions must be 1, 2 or 3, got {text[:40]!r}")
    return int(text)


def _int(text: str) -> int:
    if not re.fullmatch(rf"[0-9]{{1,{MAX_DIGITS}}}", text):
        raise KernelError(f"expected a number of at most {MAX_DIGITS} digits, got {text[:40]!r}")
    return int(text)


def _divided(size: int, by: int, what: str, per: str = "its warps' instructions") -> int:
    if by < 1 or size % by or size < by:
        raise KernelError(f"{what} {size} is no multiple of {per}, {by}")
    return size // by


def _direct_load(text: str) -> tuple[str, ...]:
    if text not in ("0", "1", "false", "true"):
        raise KernelError(f"expected a flag before the groups to merge, got {text[:40]!r}")
    return (f"the flag before the groups to merge is {text}: not used",) if text in ("1", "true") else ()


def _mapped(names: Mapping[str, str], name: str, what: str) -> str:
    if name not in names:
        raise KernelError(f"{what} {name[:40]!r} has no counterpart; known are {_listed(names)}")
    return names[name]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
