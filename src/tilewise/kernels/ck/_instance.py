"""CK Tile instances: a kernel with every parameter that a configuration can state, and its canonical text.

The canonical text proves that two generators make the same set: two instances are equal exactly if their texts are. It
is the kernel's name, then in brackets the parameters that the name lacks and that differ from the default, in a fixed
order::

    grouped_conv_forward_bf16_2d_128x128x32_compv4_intrawave_dsb[warp_m=2,warp_n=2,warp_k=1,...,layout=nhwgc]
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from tilewise.errors import KernelError
from tilewise.kernels.ck._ck_kernel import MAX_DIGITS, CkKernel, parse_name
from tilewise.kernels.ck._depthwise import SIZES, fields_of

Value: TypeAlias = "int | str | bool"

VARIANTS = ("forward", "bwd_data", "bwd_weight")
DEPTHWISE = "forward_depthwise"

_WORD = re.compile(r"[A-Za-z0-9_]{0,100}")
_TEXT = re.compile(r"(?P<name>[A-Za-z0-9_]+)(?:\[(?P<details>[a-z_]+=\w*(?:,[a-z_]+=\w*)*)\])?", re.ASCII)
_DEPTHWISE_NAME = re.compile(rf"grouped_conv_{DEPTHWISE}_(?P<dtype>[a-z0-9]+)_(?P<ndim>[123])d")


class InstanceHeader(NamedTuple):
    """The parameters that all instances of one file share."""

    variant: str
    ndim: int
    layout: str
    dtype: str


@dataclass(frozen=True)
class Instance:
    """A tiled kernel of a variant and dtype. Instances that differ in `id` alone are equal.

    Attributes:
        variant: forward, bwd_data or bwd_weight; universal for a matrix product.
        dtype: element type of the operands, including types without a target, such as fp32.
        kernel: tile, warps, pipeline and the like.
        layout: layout of a convolution's image, ``nhwgc`` or ``ndhwgc``; "" if it is not stated.
        num_wave_groups: groups of warps that share a block's work.
        specialization: ``default``, ``filter1x1_pad0``, ``filter1x1_stride1_pad0``, ``filter3x3``.
        two_stage: whether a first kernel computes in fp32 and a second converts (bwd_weight).
        explicit_gemm: whether a 1x1 filter is computed as a plain matrix product.
        split_image: whether images too large for 32-bit offsets are computed in parts.
        id: number in the file that it was read from.

    Raises:
        KernelError: a text or number cannot be written to a name or a file, or two parameters contradict each other.
    """

    variant: str
    dtype: str
    kernel: CkKernel
    layout: str = ""
    num_wave_groups: int = 1
    specialization: str = "default"
    two_stage: bool = False
    explicit_gemm: bool = False
    split_image: bool = False
    id: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _check({**_plain(self), **self.kernel.to_dict()})
        known = VARIANTS if self.kernel.ndim else ("universal",)
        if self.variant not in known:
            raise KernelError(f"variant must be one of {', '.join(known)}, got {self.variant!r}")
        if self.kernel.ndim and (self.kernel.gemm_layout or self.kernel.suffix):
            raise KernelError("gemm_layout and suffix belong to matrix products; leave them empty for a convolution")
        parse_name(self.name)

    @property
    def op(self) -> str:
        """The op that it computes."""
        return "grouped_conv" if self.kernel.ndim else "gemm"

    @property
    def name(self) -> str:
        """The kernel's name. Several instances may share it, since it does not state every parameter."""
        return self.kernel.name(self.op, self.variant, self.dtype)

    @property
    def header(self) -> InstanceHeader:
        """The parameters that all instances of one file share."""
        return InstanceHeader(self.variant, self.kernel.ndim, self.layout, self.dtype)

    @property
    def fields(self) -> dict[str, Value]:
        """The attributes that a filter may use: tilewise's names, and those of files and other tools."""
        values = {**self.kernel.to_dict(), **_plain(self)}
        return values | {
            "op": self.op,
            "name": self.name,
            "datatype": self.dtype,
            "data_type": self.dtype,
            "ndim_spatial": self.kernel.ndim,
            **{f"vector_size_{x}": values[f"vector_{x}"] for x in "abc"},
            **{f"wave_{x}": values[f"warp_{x}"] for x in "mnk"},
        }


@dataclass(frozen=True)
class DepthwiseInstance:
    """A kernel of depthwise forward convolution, which has tiles of pixels and is built for one filter.

    Attributes:
        tile_h, tile_w: output pixels per block.
        filt: filter size along both axes.
        str_h, str_w, pad_h, pad_w: stride and padding.
        nbatch: images per block.
        sub_h, sub_w: output pixels per lane.
        in_vec, out_vec: elements per load and per store.
        id: number in the file that it was read from; ignored by comparisons.
    """

    dtype: str
    ndim: int
    layout: str
    tile_h: int
    tile_w: int
    filt: int
    str_h: int
    str_w: int
    pad_h: int
    pad_w: int
    nbatch: int
    sub_h: int
    sub_w: int
    in_vec: int
    out_vec: int
    id: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _check(_plain(self))
        if not _DEPTHWISE_NAME.fullmatch(self.name):
            raise KernelError(f"{self.name} is not a depthwise instance: dtype must be a word, ndim must be 1, 2 or 3")

    @property
    def name(self) -> str:
        """Variant, dtype and dimensions; all depthwise instances of them share it."""
        return f"grouped_conv_{DEPTHWISE}_{self.dtype}_{self.ndim}d"

    @property
    def kernel(self) -> CkKernel:
        """The candidate that tables, models and pools know; its name states all sizes.

        Raises:
            KernelError: it is not a kernel of two dimensions with channels first, the only ones that CK Tile has.
        """
        if self.ndim != 2 or self.layout != "ngchw":
            raise KernelError(f"{self.name}: CK Tile has 2d depthwise kernels for ngchw only, got {self.layout!r}")
        values = (getattr(self, name) for name in DEPTHWISE_SIZES)
        return CkKernel(**fields_of(dict(zip(SIZES, values, strict=True))))

    @property
    def header(self) -> InstanceHeader:
        """The parameters that all instances of one file share."""
        return InstanceHeader(DEPTHWISE, self.ndim, self.layout, self.dtype)

    @property
    def fields(self) -> dict[str, Value]:
        """The attributes that a filter may use."""
        more = {"op": "grouped_conv", "name": self.name, "variant": DEPTHWISE, "datatype": self.dtype}
        return {**_plain(self), **more, "data_type": self.dtype, "ndim_spatial": self.ndim}


AnyInstance: TypeAlias = Instance | DepthwiseInstance
DEPTHWISE_SIZES = tuple(  # in the order of a ``.conf`` line
    f.name for f in dataclasses.fields(DepthwiseInstance) if f.name not in ("dtype", "ndim", "layout", "id")
)

_EXTRAS = {
    f.name: f.default
    for f in dataclasses.fields(Instance)
    if f.default is not dataclasses.MISSING and f.name != "id"
}  # fmt: skip
# An example value of each parameter; its type decides how to read it.
_KNOWN: dict[str, object] = {
    **CkKernel(0, 0, 0, "").to_dict(),
    **_EXTRAS,
}


def get_instance_string(instance: AnyInstance) -> str:
    """Return the canonical text of an instance."""
    if isinstance(instance, DepthwiseInstance):
        details: dict[str, Value] = {n: getattr(instance, n) for n in ("layout", *DEPTHWISE_SIZES)}
    else:
        in_name, stated = CkKernel.from_config(instance.kernel.config).to_dict(), instance.kernel.to_dict()
        details = {n: stated[n] for n in stated if stated[n] != in_name[n]}
        details |= {n: getattr(instance, n) for n, default in _EXTRAS.items() if getattr(instance, n) != default}
    text = ",".join(f"{name}={_written(value)}" for name, value in details.items())
    return f"{instance.name}[{text}]" if text else instance.name


def parse_instance_string(text: str) -> AnyInstance:
    """Parse a canonical text, or a kernel's name alone.

    Raises:
        KernelError: the text does not describe an instance.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise KernelError(
            f"{text[:200]!r} is not an instance: expected a kernel's name, optionally with [key=value,...]"
        )
    details: dict[str, str] = {}
    for part in (match["details"] or "").split(",") if match["details"] else ():
        key, _, value = part.partition("=")
        if key in details:
            raise KernelError(f"{match['name']}: {key} must be stated once")
        details[key] = value
    if depthwise := _DEPTHWISE_NAME.fullmatch(match["name"]):
        return _depthwise(depthwise["dtype"], int(depthwise["ndim"]), details)
    parsed = parse_name(match["name"])
    unknown = [n for n in details if n not in _KNOWN]
    if unknown:
        known = ", ".join(_KNOWN)
        raise KernelError(f"{parsed.original}: {unknown[0]!r} is not a parameter of an instance; known are {known}")
    values = {n: _read(n, text, _KNOWN[n]) for n, text in details.items()}
    kernel = dataclasses.replace(parsed.kernel, **{n: v for n, v in values.items() if n not in _EXTRAS})
    return Instance(parsed.variant, parsed.dtype, kernel, **{n: v for n, v in values.items() if n in _EXTRAS})


def _depthwise(dtype: str, ndim: int, details: Mapping[str, str]) -> DepthwiseInstance:
    wanted = ("layout", *DEPTHWISE_SIZES)
    if set(details) != set(wanted):
        raise KernelError(f"a depthwise instance has exactly {', '.join(wanted)}; got {', '.join(details) or 'none'}")
    sizes = {n: _read(n, details[n], 0) for n in DEPTHWISE_SIZES}
    return DepthwiseInstance(dtype, ndim, details["layout"], **sizes)


def distinct_instances(instances: Iterable[AnyInstance]) -> tuple[AnyInstance, ...]:
    """Return each instance once, in the order of first appearance."""
    return tuple(dict.fromkeys(instances))


def _plain(instance: AnyInstance) -> dict[str, Value]:
    """Return all fields but `kernel` and `id`."""
    names = (f.name for f in dataclasses.fields(instance))
    return {n: getattr(instance, n) for n in names if n not in ("kernel", "id")}


def _check(values: Mapping[str, Value]) -> None:
    for name, value in values.items():
        if isinstance(value, str) and not _WORD.fullmatch(value):
            raise KernelError(f"{name} must be letters, digits and underscores, got {value[:200]!r}")
        if isinstance(value, int) and not 0 <= value < 10**MAX_DIGITS:
            shown = value if abs(value) < 10**30 else "a huge one"
            raise KernelError(f"{name} must be a number from 0 to {MAX_DIGITS} digits, got {shown}")


def _written(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(name: str, text: str, like: object) -> Any:
    """Read a parameter as the type of `like`."""
    if isinstance(like, bool):
        if text not in ("true", "false"):
            raise KernelError(f"{name} must be true or false, got {text!r}")
        return text == "true"
    if isinstance(like, int):
        if not re.fullmatch(rf"[0-9]{{1,{MAX_DIGITS}}}", text):
            raise KernelError(f"{name} must be a number of at most {MAX_DIGITS} digits, got {text[:200]!r}")
        return int(text)
    return text
