"""CK Tile kernels and their names.

Grouped convolution: ``grouped_conv_{variant}_{dtype}_{ndim}d_{tile_m}x{tile_n}x{tile_k}_{pipeline}``, then the suffixes
wave mode (``_intrawave``, ``_interwave``), ``_dsb`` (double shared-memory buffer) and ``_si`` (store immediate). The
three tile numbers are M, N and K of the implicit matrix product per block; the first is not a "block size".

GEMM: ``gemm_universal_{dtype}_{layout}_{pipeline}_{epilogue}_{scheduler}_{pad_m}_{pad_n}_{pad_k}_{persistent}_``
``{tile}_{warps}_{warp tile}``, with flags as ``True`` and ``False``, optionally followed by ``_vec{a}_{b}_{c}``, by
``_splitk{parts}`` where K is split, by the stream-K part, and by a free suffix. The prefix ``gemm_`` alone means the
same.

Stream-K: matrix products end in ``_streamk`` (reduction by atomics), ``_streamk_linear`` or ``_streamk_tree``, as CK
Tile spells them. A convolution's name gets ``_streamk``, ``_{strategy}`` if the source states one, and ``_persistent``.

CK Tile's generator spells convolutions in another way: ``grouped_conv_fwd_{dtype}_{layout}_{ndim}d_{pipeline}_``
``{epilogue}_{scheduler}_{tile}_{warps}_{warp tile}``, then widths other than 4, 8, 8 and flags. Such a name states more
parameters than the canonical one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from tilewise.errors import KernelError
from tilewise.kernels._contract import RegistryEntry, TileKernel
from tilewise.kernels.ck import _depthwise

MAX_DIGITS = 9  # of any number in a name, far below the limit of int64

_N = rf"(?:0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})"
_FLAG = "True|False"
_STREAMK = r"(?:(?P<streamk_enabled>_streamk)(?:_(?P<streamk_reduction_strategy>(?!persistent)[A-Za-z0-9]+))?"
_CONV = re.compile(
    rf"(?P<ndim>[123])d_(?P<tile_m>{_N})x(?P<tile_n>{_N})x(?P<tile_k>{_N})_(?P<pipeline>[a-z][a-z0-9]*(?:_[a-z0-9]+)*?)"
    r"(?:_(?P<scheduler>intrawave|interwave))?(?P<double_smem_buffer>_dsb)?(?P<store_immediate>_si)?"
    rf"{_STREAMK}(?P<streamk_persistent>_persistent)?)?"
)
_GEMM = re.compile(
    r"(?P<gemm_layout>rcr|rrr|crr|ccr)_(?P<pipeline>[a-z][a-z0-9]*(?:_[a-z0-9]+)*)_(?P<epilogue>[a-z][a-z0-9]*)"
    rf"_(?P<scheduler>intrawave|interwave|default)_(?P<pad_m>{_FLAG})_(?P<pad_n>{_FLAG})_(?P<pad_k>{_FLAG})"
    rf"_(?P<persistent>{_FLAG})_(?P<tile_m>{_N})x(?P<tile_n>{_N})x(?P<tile_k>{_N})"
    rf"_(?P<warp_m>{_N})x(?P<warp_n>{_N})x(?P<warp_k>{_N})"
    rf"_(?P<warp_tile_m>{_N})x(?P<warp_tile_n>{_N})x(?P<warp_tile_k>{_N})"
    rf"(?:_vec(?P<vector_a>{_N})_(?P<vector_b>{_N})_(?P<vector_c>{_N}))?"
    rf"(?:_splitk(?P<split_k>(?!0){_N}))?"
    r"(?:(?P<streamk_enabled>_streamk)(?:_(?P<streamk_reduction_strategy>linear|tree)(?=_|$))?)?"
    r"(?P<suffix>(?!_vec|_splitk[0-9]|_streamk(?:_|$))(?:_[A-Za-z0-9]+)+)?"
)
_GENERATED_CONV = re.compile(
    r"grouped_conv_(?P<short>fwd|bwd_data|bwd_weight|bwdd|bwdw)_(?P<dtype>[a-z]+[0-9]+)_(?P<layout>[a-z]+)"
    r"_(?P<ndim>[123])d_(?P<pipeline>[a-z][a-z0-9]*(?:_[a-z0-9]+)*)_(?P<epilogue>cshuffle|default)"
    rf"_(?P<scheduler>intrawave|interwave)_(?P<tile_m>{_N})x(?P<tile_n>{_N})x(?P<tile_k>{_N})"
    rf"_(?P<warp_m>{_N})x(?P<warp_n>{_N})x(?P<warp_k>{_N})"
    rf"_(?P<warp_tile_m>{_N})x(?P<warp_tile_n>{_N})x(?P<warp_tile_k>{_N})"
    rf"(?:_vec(?P<vector_a>{_N})_(?P<vector_b>{_N})_(?P<vector_c>{_N}))?"
    rf"(?:_gm(?P<num_groups_to_merge>{_N}))?(?P<double_smem_buffer>_dsb)?"
)
_SHORT_VARIANTS = {"fwd": "forward", "bwdd": "bwd_data", "bwdw": "bwd_weight"}
CONV_WIDTHS = (4, 8, 8)  # elements per load of A and B, and per store of C, of CK Tile's kernels whose name states none
STRATEGIES = ("atomic", "linear", "tree")  # in which stream-K's matrix products add partial sums
_CONV_EXAMPLE = "2d_16x64x128_compv4_intrawave_dsb"
_GEMM_EXAMPLE = "rcr_compv3_cshuffle_intrawave_False_False_False_False_128x128x128_1x4x1_16x16x128"


@dataclass(frozen=True)
class CkKernel(TileKernel):
    """The parameters of a CK Tile kernel that names and configurations state; 0, "" and False also mean "not stated".

    Attributes:
        ndim: spatial dimensions that a convolution is compiled for (1, 2 or 3); 0 for a matrix product. The support
            rules compare it with the problem.
        gemm_layout: rcr, rrr, crr or ccr, the layout that a matrix product is compiled for; "" for a convolution, whose
            layout is always NHWGC.
        warp_m, warp_n, warp_k: warps of a block along each dimension. Names of convolutions do not state them.
        warp_tile_m, warp_tile_n, warp_tile_k: tile of one matrix instruction. Names of convolutions do not state it.
        scheduler: ``intrawave``, ``interwave``; ``default`` in some names of matrix products.
        epilogue: ``cshuffle``, ``default``.
        pad_m, pad_n, pad_k: whether the kernel computes sizes that its tile does not divide.
        persistent: whether one block per compute unit processes several tiles.
        double_smem_buffer: whether shared memory holds two buffers (``dsb``).
        store_immediate: the suffix ``si``.
        vector_a, vector_b, vector_c: elements per load of A and B, and per store of C.
        num_groups_to_merge: groups of a convolution computed as one.
        suffix: the rest of a matrix product's name after the known parts, without the first underscore.
        split_k: parts of K that a matrix product computes at once and then adds, 2 or more; 0 if K is not split.
        streamk_enabled: whether K is divided evenly over the compute units (stream-K).
        streamk_reduction_strategy: how partial sums are added, in the source's spelling: ``atomic``, ``linear``,
            ``tree``, or a number; "" if a convolution's source states none.
        streamk_persistent: whether stream-K's blocks stay on their compute unit; of a matrix product, `persistent`.
        dw_tile_h, dw_tile_w: output pixels of a tile of a depthwise kernel, whose pipeline is ``depthwise``.
        dw_filter, dw_stride_h, dw_stride_w, dw_pad_h, dw_pad_w: the filter that it is built for.
        dw_nbatch: images per tile.
        dw_sub_h, dw_sub_w: output pixels per lane.
        dw_in_vec, dw_out_vec: elements per load and per store.

    Raises:
        KernelError: `split_k` is out of its range, or splits a convolution, whose name cannot state it; or the name
            cannot state how a stream-K kernel adds its partial sums.
    """

    later_columns: ClassVar[tuple[str, ...]] = (
        "split_k",
        "streamk_enabled",
        "streamk_reduction_strategy",
        "streamk_persistent",
        *_depthwise.SIZES,
    )

    ndim: int = 0
    gemm_layout: str = ""
    warp_m: int = 0
    warp_n: int = 0
    warp_k: int = 0
    warp_tile_m: int = 0
    warp_tile_n: int = 0
    warp_tile_k: int = 0
    scheduler: str = ""
    epilogue: str = ""
    pad_m: bool = False
    pad_n: bool = False
    pad_k: bool = False
    persistent: bool = False
    double_smem_buffer: bool = False
    store_immediate: bool = False
    vector_a: int = 0
    vector_b: int = 0
    vector_c: int = 0
    num_groups_to_merge: int = 0
    suffix: str = ""
    split_k: int = 0
    streamk_enabled: bool = False
    streamk_reduction_strategy: str = ""
    streamk_persistent: bool = False
    dw_tile_h: int = 0
    dw_tile_w: int = 0
    dw_filter: int = 0
    dw_stride_h: int = 0
    dw_stride_w: int = 0
    dw_pad_h: int = 0
    dw_pad_w: int = 0
    dw_nbatch: int = 0
    dw_sub_h: int = 0
    dw_sub_w: int = 0
    dw_in_vec: int = 0
    dw_out_vec: int = 0

    def __post_init__(self) -> None:
        if self.streamk_enabled:
            self._check_streamk()
        if not self.split_k:
            return
        if not 2 <= self.split_k < 10**MAX_DIGITS:
            shown = str(self.split_k) if abs(self.split_k) < 10**30 else "a huge one"
            raise KernelError(
                f"split_k must be 0 (K is not split) or 2 or more, at most {MAX_DIGITS} digits, got {shown}"
            )
        if self.ndim:
            raise KernelError(f"split_k must be 0 for a convolution, whose name cannot state it; got {self.split_k}")

    def _check_streamk(self) -> None:
        strategy = self.streamk_reduction_strategy
        if not self.ndim and strategy not in STRATEGIES:
            raise KernelError(
                f"a stream-K matrix product adds its partial sums in one of the ways {', '.join(STRATEGIES)}; "
                f"got {strategy[:60]!r} as streamk_reduction_strategy"
            )
        if not self.ndim and bool(self.streamk_persistent) != bool(self.persistent):
            raise KernelError("streamk_persistent must equal persistent for a matrix product, whose name states one")
        if strategy and (strategy == "persistent" or not re.fullmatch("[A-Za-z0-9]+", strategy)):
            raise KernelError(f"streamk_reduction_strategy must be letters and digits, got {strategy[:60]!r}")

    @property
    def compiled_layout(self) -> str:
        """The operand layout of a matrix product; "" for a convolution."""
        return self.gemm_layout

    @property
    def compiled_ndim(self) -> int:
        """The spatial dimensions of a convolution; 0 for a matrix product."""
        return self.ndim

    @property
    def registry_entry(self) -> RegistryEntry:
        """The kernel's figures in CK Tile's registry format; unknown ones are 0."""
        return RegistryEntry(
            tile=(self.tile_m, self.tile_n, self.tile_k),
            pipeline=self.pipeline,
            warps=(self.warp_m, self.warp_n, self.warp_k),
            warp_tile=(self.warp_tile_m, self.warp_tile_n, self.warp_tile_k),
            scheduler=self.scheduler or "default",
            persistent=bool(self.persistent),
            double_buffer=bool(self.double_smem_buffer),
        )

    @property
    def config(self) -> str:
        """The part of the name that is independent of the target, e.g. ``2d_16x64x128_compv4_intrawave_dsb``."""
        if self.pipeline == _depthwise.PIPELINE:
            return _depthwise.config_of(self)
        return self._conv_config() if self.ndim else self._gemm_config()

    @classmethod
    def from_config(cls, config: str) -> Self:
        """Parse :attr:`config`; parameters that it does not state keep their defaults.

        Raises:
            KernelError: the text is not a CK Tile configuration.
        """
        if depthwise := _depthwise.CONFIG.fullmatch(config):
            return cls(**_depthwise.fields_of(_depthwise.sizes_in(depthwise)))
        match = _CONV.fullmatch(config) or _GEMM.fullmatch(config)
        if match is None:
            raise KernelError(
                f"{_shown(config)} is not a CK Tile configuration such as {_CONV_EXAMPLE} or {_GEMM_EXAMPLE}"
            )
        stated = {name: _value(name, text) for name, text in match.groupdict().items() if text is not None}
        if "gemm_layout" in stated and "streamk_enabled" in stated:
            stated = {"streamk_reduction_strategy": STRATEGIES[0], **stated, "streamk_persistent": stated["persistent"]}
        return cls(**stated)  # type: ignore[arg-type]

    def _conv_config(self) -> str:
        mode = f"_{self.scheduler}" if self.scheduler else ""
        suffixes = "_dsb" * self.double_smem_buffer + "_si" * self.store_immediate + self._streamk()
        return f"{self.ndim}d_{self.tile_m}x{self.tile_n}x{self.tile_k}_{self.pipeline}{mode}{suffixes}"

    def _streamk(self) -> str:
        if not self.streamk_enabled:
            return ""
        strategy = self.streamk_reduction_strategy
        if not self.ndim:
            return "_streamk" if strategy == STRATEGIES[0] else f"_streamk_{strategy}"
        return "_streamk" + (f"_{strategy}" if strategy else "") + "_persistent" * self.streamk_persistent

    def _gemm_config(self) -> str:
        flags = "_".join(str(bool(f)) for f in (self.pad_m, self.pad_n, self.pad_k, self.persistent))
        vectors = (self.vector_a, self.vector_b, self.vector_c)
        return (
            f"{self.gemm_layout}_{self.pipeline}_{self.epilogue}_{self.scheduler}_{flags}"
            f"_{self.tile_m}x{self.tile_n}x{self.tile_k}_{self.warp_m}x{self.warp_n}x{self.warp_k}"
            f"_{self.warp_tile_m}x{self.warp_tile_n}x{self.warp_tile_k}"
            + ("_vec{}_{}_{}".format(*vectors) if any(vectors) else "")
            + (f"_splitk{self.split_k}" if self.split_k else "")
            + self._streamk()
            + (f"_{self.suffix}" if self.suffix else "")
        )


_KINDS = CkKernel.column_kinds()
_FLAGS = ("True", "_dsb", "_si", "_streamk", "_persistent")  # texts of a set flag in names


@dataclass(frozen=True)
class KernelName:
    """The parts of a parsed name. `original` is the text as read, :attr:`canonical` the text that tilewise writes."""

    op: str
    variant: str
    dtype: str
    kernel: CkKernel
    original: str

    @property
    def canonical(self) -> str:
        """The kernel's name in tables and pools."""
        return self.kernel.name(self.op, self.variant, self.dtype)


_NAMES = (
    ("grouped_conv", re.compile(r"grouped_conv_(?P<variant>forward|bwd_data|bwd_weight)_(?P<dtype>[a-z0-9]+)_(.+)")),
    ("gemm", re.compile(r"gemm(?:_(?P<variant>universal))?_(?P<dtype>(?!universal)[a-z0-9]+)_(.+)")),
)


def parse_name(name: str) -> KernelName:
    """Parse a CK Tile kernel name.

    Raises:
        KernelError: the text does not name a grouped convolution or a matrix product, or a part of it is malformed.
    """
    if match := _GENERATED_CONV.fullmatch(name):
        return _generated(match)
    if match := _depthwise.GENERATED.fullmatch(name):
        kernel = CkKernel(**_depthwise.fields_of(_depthwise.sizes_in(match)))
        return KernelName("grouped_conv", "forward", match["dtype"], kernel, name)
    for op, pattern in _NAMES:
        if match := pattern.fullmatch(name):
            kernel = CkKernel.from_config(match[3])
            if bool(kernel.ndim) != (op == "grouped_conv"):
                break
            return KernelName(op, match["variant"] or "universal", match["dtype"], kernel, name)
    raise KernelError(
        f"{_shown(name)} is not a CK Tile kernel name such as grouped_conv_forward_bf16_{_CONV_EXAMPLE} "
        f"or gemm_universal_fp8_{_GEMM_EXAMPLE}"
    )


def _generated(match: re.Match[str]) -> KernelName:
    """Return the parts of a name as CK Tile's generator spells it."""
    texts = match.groupdict()
    short, dtype, _ = (str(texts.pop(key)) for key in ("short", "dtype", "layout"))
    stated = {name: _value(name, text) for name, text in texts.items() if text is not None}
    widths = dict(zip(("vector_a", "vector_b", "vector_c"), CONV_WIDTHS, strict=True))
    kernel = CkKernel(**{**widths, **stated})  # type: ignore[arg-type]
    return KernelName("grouped_conv", _SHORT_VARIANTS.get(short, short), dtype, kernel, match.string)


def canonical_name(name: str) -> str:
    """Return the name that tables hold for any spelling of it.

    Raises:
        KernelError: as for :func:`parse_name`.
    """
    return parse_name(name).canonical


def name_with_split(name: str, split_k: int) -> str:
    """Return the name of a kernel that was launched with a split of K, which files state beside its name.

    A text that is no CK Tile kernel name is returned as it is.

    Args:
        name: the kernel's name, in any spelling.
        split_k: the stated split, at least 1.

    Raises:
        KernelError: the name itself states another split, or is that of a convolution.
    """
    try:
        parsed = parse_name(name)
    except KernelError:
        return name
    named = max(parsed.kernel.split_k, 1)
    if split_k == named:
        return name
    if parsed.kernel.split_k:
        raise KernelError(f"split_k is {split_k}, but the kernel's name states {named}")
    return replace(parsed.kernel, split_k=split_k).name(parsed.op, parsed.variant, parsed.dtype)


def _value(name: str, text: str) -> int | str | bool:
    if name == "split_k":
        return 0 if text == "1" else int(text)
    kind = _KINDS[name]
    if kind == "bool":
        return text in _FLAGS
    return int(text) if kind == "int" else text.removeprefix("_") if name == "suffix" else text


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")
