"""Sweeps (trait JSON): the values that each trait may take, expanded into the instances that an arch's rules allow.

Convolutions: ``{"variant": "forward", "trait_config": {"data_type": {"values": ["bf16"]}, ...}}``. A trait that the
document does not name takes the values of :data:`TRAITS`; a document without tile sizes, such as CK Tile ships, takes
the tiles of :data:`CK_TILES` and no suffix that their pipelines do not need.

Matrix products, as CK Tile's tile engine reads them: ``{"tile_config": {"tile_m": {"min": 128, "max": 256, "step": 64},
"warp_m": {"values": [1, 2]}, ...}, "trait_config": {"pipeline": {"values": ["compv3"]}, ...}}``. The document names
every trait but layout and type. Sweeps of stream-K kernels name ``reduction_strategy`` as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, TypeAlias, TypeGuard

from tilewise.arch import HardwareProfile
from tilewise.errors import KernelError
from tilewise.kernels.ck._ck_kernel import CONV_WIDTHS, STRATEGIES, CkKernel
from tilewise.kernels.ck._ck_rules import (
    CK_DTYPES,
    EPILOGUES,
    GEMM_PIPELINES,
    SCHEDULERS,
    SUFFIXES,
    SWEPT_PIPELINES,
    Shape,
    Suffixes,
    build_fault,
    shape_of,
)
from tilewise.kernels.ck._instance import VARIANTS, Instance
from tilewise.ops import GEMM_LAYOUTS, Target

TraitValue: TypeAlias = "str | int | bool"

MAX_COMBINATIONS = 200_000  # a larger sweep is probably a mistake

_SIDES, _K_DEPTHS = (16, 32, 64, 128, 256), (16, 32, 64, 128)
_LAYOUTS = {1: "nwgc", 2: "nhwgc", 3: "ndhwgc"}

# The tiles (M, N, K) of CK Tile's own convolutions, as its sweep builder and its table of gfx950 have them (ROCm's
# composable_kernel, 2026). Its other sets of rules have longer lists. A tile has one division into warps and vectors.
CK_TILES: dict[tuple[int, int, int], Shape] = {
    (16, 64, 64): Shape((1, 4, 1), (16, 16, 16), CONV_WIDTHS),
    (32, 64, 64): Shape((2, 2, 1), (16, 16, 16), CONV_WIDTHS),
    (64, 64, 64): Shape((4, 1, 1), (16, 16, 16), CONV_WIDTHS),
    (32, 128, 64): Shape((1, 4, 1), (32, 32, 16), CONV_WIDTHS),
    (64, 128, 64): Shape((2, 2, 1), (32, 32, 16), CONV_WIDTHS),
    (128, 128, 64): Shape((4, 4, 1), (32, 32, 16), CONV_WIDTHS),
    (16, 64, 128): Shape((1, 4, 1), (16, 16, 32), CONV_WIDTHS),
    (32, 64, 128): Shape((2, 2, 1), (16, 16, 32), CONV_WIDTHS),
    (64, 64, 128): Shape((4, 1, 1), (16, 16, 32), CONV_WIDTHS),
    (128, 64, 128): Shape((8, 2, 1), (16, 16, 32), CONV_WIDTHS),
}
_TILE_SIZES = ("tile_m", "tile_n", "tile_k")

# Values of each trait that a sweep does not name.
TRAITS: dict[str, tuple[TraitValue, ...]] = {
    "data_type": CK_DTYPES["grouped_conv"],
    "ndim_spatial": (2,),
    "tile_m": _SIDES,
    "tile_n": _SIDES,
    "tile_k": _K_DEPTHS,
    "pipeline": SWEPT_PIPELINES,
    "scheduler": SCHEDULERS,
    "double_smem_buffer": (False, True),
    "store_immediate": (False, True),
    "epilogue": ("cshuffle",),
    "num_groups_to_merge": (1,),
    "specialization": ("default",),
    "two_stage": (False,),
    "explicit_gemm": (False,),
    "split_image": (False,),
}


def is_sweep(document: object) -> TypeGuard[Mapping[str, object]]:
    """Return whether parsed JSON looks like a sweep."""
    return isinstance(document, Mapping) and "trait_config" in document


def is_gemm_sweep(document: object) -> TypeGuard[Mapping[str, object]]:
    """Return whether parsed JSON looks like a sweep of matrix products."""
    return is_sweep(document) and "tile_config" in document and "variant" not in document


def expand_sweep(document: object, arch: HardwareProfile) -> tuple[Instance, ...]:
    """Return the instances of a sweep, in the order of the traits' values.

    Warps, warp tile and vector widths follow from the tile, one choice each: that of :data:`CK_TILES`, or else
    :func:`._ck_rules.shape_of`. A tile that breaks a rule, or that no matrix instruction of the arch divides, is left
    out.

    Args:
        document: parsed JSON.
        arch: the arch whose rules apply.

    Raises:
        KernelError: the document is not a sweep, names an unknown trait or value, has too many combinations, or has no
            legal instance.
    """
    variant, named, traits = _traits(document)
    combinations = prod(len(values) for values in traits.values())
    if combinations > MAX_COMBINATIONS:
        raise KernelError(f"a sweep has at most {MAX_COMBINATIONS} combinations, got {combinations}; name fewer values")
    buildable = tuple(i for i in _instances(variant, named, traits) if build_fault(i.kernel, i.dtype, arch) is None)
    shaped = tuple(s for s in (_shaped(i, arch) for i in buildable) if s is not None)
    if not shaped:
        raise KernelError(f"no instance of this sweep is legal on {arch.name}; name other tiles or traits")
    return shaped


def legal_kernels(target: Target, arch: HardwareProfile, like: Sequence[CkKernel]) -> tuple[CkKernel, ...]:
    """Return the kernels of the full sweep of a target, stated as far as the kernels of a pool state theirs.

    The sweep has all tile sizes and suffixes, not only those of CK Tile's own sweeps. A parameter that no kernel of
    `like` states stays unstated, so a model that learnt from `like` can score the result.

    Args:
        target: a convolution's target.
        arch: the arch whose rules apply.
        like: the kernels of the pool, which also give the spatial dimensions.

    Raises:
        KernelError: the target's op has no sweep, or `like` is empty.
    """
    if target.op != "grouped_conv":
        raise KernelError(
            f"{target.name}: CK Tile's rules expand convolutions only, not {target.op}; select among the pool's kernels"
        )
    if not like:
        raise KernelError(f"{target.name}: the pool must have at least one kernel, got 0")
    traits: dict[str, Sequence[TraitValue]] = {
        "data_type": [target.dtype],
        "ndim_spatial": sorted({k.ndim for k in like}),
    }
    traits |= {name: list(TRAITS[name]) for name in _TILE_SIZES}
    document = {"variant": target.variant, "trait_config": {name: {"values": v} for name, v in traits.items()}}
    blank = CkKernel(0, 0, 0, "").to_dict()
    unstated: dict[str, Any] = {n: v for n, v in blank.items() if all(getattr(k, n) == v for k in like)}
    if not unstated.keys() >= set(Suffixes._fields):  # a name states all of its suffixes or none
        unstated = {n: v for n, v in unstated.items() if n not in Suffixes._fields}
    return tuple(dict.fromkeys(replace(i.kernel, **unstated) for i in expand_sweep(document, arch)))


def _traits(document: object) -> tuple[str, frozenset[str], dict[str, tuple[TraitValue, ...]]]:
    """Return the variant, the named traits, and the values of every trait, named or not."""
    named = document["trait_config"] if is_sweep(document) else None
    if not is_sweep(document) or not isinstance(named, Mapping):
        raise KernelError("a sweep has a variant and a trait_config, an object of traits")
    unknown = sorted(set(document) - {"variant", "trait_config"})
    if unknown:
        raise KernelError(
            f"{', '.join(map(repr, unknown))} is not a key of a sweep; its keys are variant and trait_config"
        )
    variant = document.get("variant")
    if not isinstance(variant, str) or variant not in VARIANTS:
        raise KernelError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    for name in named:
        if name not in TRAITS:
            raise KernelError(f"trait {name!r} is unknown; known are {', '.join(TRAITS)}")
    values = {n: _values(n, named[n]) if n in named else default for n, default in TRAITS.items()}
    return variant, frozenset(named), values


def _values(name: str, entry: object) -> tuple[TraitValue, ...]:
    values = entry.get("values") if isinstance(entry, Mapping) else None
    if not isinstance(values, list) or not values:
        raise KernelError(f'trait {name} needs {{"values": [...]}} with at least one value')
    kind = type(TRAITS[name][0])
    wrong = [v for v in values if type(v) is not kind]
    if wrong:
        raise KernelError(f"trait {name}: values must be of type {kind.__name__}, got {wrong[0]!r:.60}")
    known = {"pipeline": tuple(SUFFIXES), "scheduler": SCHEDULERS, "data_type": CK_DTYPES["grouped_conv"]}.get(name)
    for value in values:
        if known and value not in known:
            raise KernelError(f"trait {name}: {value[:60]!r} is unknown; known are {', '.join(known)}")
        if name == "ndim_spatial" and value not in _LAYOUTS:
            raise KernelError(f"trait {name}: must be 1, 2 or 3, got {value}")
    return tuple(dict.fromkeys(values))


def _instances(variant: str, named: frozenset[str], traits: Mapping[str, tuple[Any, ...]]) -> Iterator[Instance]:
    """Yield all combinations whose suffix set exists."""
    rest = ("epilogue", "num_groups_to_merge", "specialization", "two_stage", "explicit_gemm", "split_image")
    of_ck_tile = named.isdisjoint(_TILE_SIZES)
    tiles = CK_TILES if of_ck_tile else product(*(traits[name] for name in _TILE_SIZES))
    outer = (traits["data_type"], traits["ndim_spatial"], tiles, traits["pipeline"])
    for dtype, ndim, (m, n, k), pipeline in product(*outer):
        found = [s for s in SUFFIXES[pipeline] if _allowed(s, traits)]
        for suffixes in _plain(found, named) if of_ck_tile else found:
            for epilogue, merged, specialization, *flags in product(*(traits[name] for name in rest)):
                kernel = CkKernel(
                    m, n, k, pipeline, ndim, epilogue=epilogue, num_groups_to_merge=merged, **suffixes._asdict()
                )
                two_stage, explicit_gemm, split_image = flags
                yield Instance(
                    variant,
                    dtype,
                    kernel,
                    _LAYOUTS[ndim],
                    specialization=specialization,
                    two_stage=two_stage,
                    explicit_gemm=explicit_gemm,
                    split_image=split_image,
                )


def _plain(found: Sequence[Suffixes], named: frozenset[str]) -> Sequence[Suffixes]:
    """Return the suffix sets with no flag that the sweep does not name and that the pipeline does not need."""
    unnamed = [flag for flag in ("double_smem_buffer", "store_immediate") if flag not in named]
    needed = {flag: all(getattr(s, flag) for s in found) for flag in unnamed}
    return [s for s in found if all(getattr(s, flag) == need for flag, need in needed.items())]


def _allowed(suffixes: Suffixes, traits: Mapping[str, tuple[TraitValue, ...]]) -> bool:
    return all(value in traits[name] for name, value in suffixes._asdict().items())


def complete_instance(kernel: CkKernel, target: Target, arch: HardwareProfile) -> Instance:
    """Return the instance to build for a kernel whose name leaves parameters out, as a sweep would complete it.

    Raises:
        KernelError: no matrix instruction of the arch divides the tile, or the completed kernel breaks a rule.
    """
    instance = Instance(target.variant, target.dtype, kernel, _LAYOUTS.get(kernel.ndim, ""))
    if kernel.warp_m or not kernel.ndim:
        return instance
    completed = _shaped(instance, arch)
    if completed is None:
        raise KernelError(f"{instance.name}: no warps and matrix instruction of {arch.name} divide its tile")
    return completed


def _shaped(instance: Instance, arch: HardwareProfile) -> Instance | None:
    """Return the instance with warps, warp tile and vectors; None if that breaks a rule."""
    kernel = instance.kernel
    tile = (kernel.tile_m, kernel.tile_n, kernel.tile_k)
    shape = CK_TILES.get(tile) or shape_of(tile, instance.dtype, arch)
    if shape is None:
        return None
    names = (*(f"warp_{x}" for x in "mnk"), *(f"warp_tile_{x}" for x in "mnk"), *(f"vector_{x}" for x in "abc"))
    values = (*shape.warps, *shape.warp_tile, *shape.vectors)
    division: dict[str, Any] = dict(zip(names, values, strict=True))
    divided = replace(kernel, **division)
    return None if build_fault(divided, instance.dtype, arch) else replace(instance, kernel=divided)


# ---- matrix products -------------------------------------------------------------------------------------------------

_GEMM_SIZES = tuple(f"{part}_{x}" for part in ("tile", "warp", "warp_tile") for x in "mnk")
_GEMM_TRAITS: dict[str, tuple[TraitValue, ...]] = {  # with the values that exist
    "pipeline": GEMM_PIPELINES,
    "scheduler": (*SCHEDULERS, "default"),
    "epilogue": EPILOGUES,
    **dict.fromkeys(("pad_m", "pad_n", "pad_k", "persistent"), (False, True)),
}
_STREAMK_TRAIT = "reduction_strategy"
_GEMM_KEYS = ("tile_config", "trait_config", "k_block_per_cu")  # the last is an option of the build, not of the kernel


def expand_gemm_sweep(document: object, dtype: str, arch: HardwareProfile) -> tuple[Instance, ...]:
    """Return the instances of a sweep of matrix products for each layout, in the order of the values.

    Kernels of the ``mem`` pipeline pad all sizes, whatever the sweep says of their pads. A sweep that names reduction
    strategies has a stream-K kernel for each.

    Args:
        document: parsed JSON, for which :func:`is_gemm_sweep` is true.
        dtype: element type of the operands, which the document does not state.
        arch: the arch whose rules apply.

    Raises:
        KernelError: a trait is missing, unknown or of unknown values, the sweep has too many combinations or no legal
            instance, or there are no matrix products of this type.
    """
    if dtype not in CK_DTYPES["gemm"]:
        raise KernelError(
            f"a sweep of matrix products does not state their type; give dtype=, one of {', '.join(CK_DTYPES['gemm'])}"
        )
    sizes, traits, strategies = _gemm_axes(document)
    warp_tiles = [
        tuple(t)
        for t in arch.warp_tiles.get(dtype, ())
        if all(size in sizes[name] for name, size in zip(_GEMM_SIZES[6:], t, strict=True))
    ]
    axes = (*(sizes[name] for name in _GEMM_SIZES[:6]), *traits.values(), warp_tiles)
    combinations = prod(len(axis) for axis in (*axes, strategies))
    if combinations > MAX_COMBINATIONS:
        raise KernelError(f"a sweep has at most {MAX_COMBINATIONS} combinations, got {combinations}; name fewer values")
    kernels = (_gemm_kernel(*values) for values in product(*axes))
    found = tuple(dict.fromkeys(k for k in kernels if build_fault(k, dtype, arch) is None))
    if not found:
        raise KernelError(f"no instance of this sweep is legal on {arch.name} for {dtype}; name other tiles or traits")
    return tuple(
        _gemm_instance(replace(kernel, gemm_layout=layout), dtype, strategy)
        for layout, kernel, strategy in product(GEMM_LAYOUTS, found, strategies)
    )


def _gemm_instance(kernel: CkKernel, dtype: str, strategy: str) -> Instance:
    """Return a stream-K instance, or a plain one where the strategy is ""."""
    plain = Instance("universal", dtype, kernel)
    if not strategy:
        return plain
    persistent = bool(kernel.persistent)
    divided = replace(kernel, streamk_enabled=True, streamk_reduction_strategy=strategy, streamk_persistent=persistent)
    return replace(plain, kernel=divided)


def _gemm_kernel(*values: Any) -> CkKernel:
    """Return a kernel without a layout, of tile sizes, warps, traits and warp tile."""
    *stated, warp_tile = values
    names = (*_GEMM_SIZES[:6], *_GEMM_TRAITS)
    fields: dict[str, Any] = dict(zip((*names, *_GEMM_SIZES[6:]), (*stated, *warp_tile), strict=True))
    if fields["pipeline"] == "mem":
        fields |= dict.fromkeys(("pad_m", "pad_n", "pad_k"), True)
    return CkKernel(**fields)


def _gemm_axes(
    document: object,
) -> tuple[dict[str, Sequence[int]], dict[str, Sequence[TraitValue]], Sequence[str]]:
    """Return the values of every size and of every trait, and the reduction strategies of stream-K, else one ""."""
    if not is_gemm_sweep(document):
        raise KernelError("a sweep of matrix products has a tile_config and a trait_config")
    unknown = sorted(key for key in set(document) - set(_GEMM_KEYS) if (key, document[key]) != ("problem", {}))
    if "multi_d_config" in unknown:
        raise KernelError("kernels with further operands (multi_d_config) compute no problem of the op gemm")
    if unknown:
        raise KernelError(f"{', '.join(map(repr, unknown))} is not a key of a sweep of matrix products")
    parts = ((document["tile_config"], _GEMM_SIZES), (document["trait_config"], tuple(_GEMM_TRAITS)))
    for named, known in parts:
        optional = {_STREAMK_TRAIT} if known != _GEMM_SIZES else set[str]()
        if not isinstance(named, Mapping) or set(named) - optional != set(known):
            got = ", ".join(map(str, named)) if isinstance(named, Mapping) else repr(named)[:60]
            raise KernelError(f"a sweep of matrix products names exactly {', '.join(known)}; got {got or 'none'}")
    (stated_sizes, _), (stated_traits, _) = parts
    sizes = {n: _size_values(n, stated_sizes[n]) for n in _GEMM_SIZES}  # type: ignore[index]
    traits = {n: _trait_values(n, stated_traits[n], known) for n, known in _GEMM_TRAITS.items()}  # type: ignore[index]
    if _STREAMK_TRAIT not in stated_traits:  # type: ignore[operator]
        return sizes, traits, ("",)
    found = _trait_values(_STREAMK_TRAIT, stated_traits[_STREAMK_TRAIT], STRATEGIES)  # type: ignore[index]
    return sizes, traits, [str(strategy) for strategy in found]


def _size_values(name: str, entry: object) -> Sequence[int]:
    """Read a list of values, or a range with both ends."""
    values: object = None
    if isinstance(entry, Mapping) and set(entry) == {"min", "max", "step"}:
        numbers = [entry[key] for key in ("min", "max", "step")]
        if all(type(v) is int and v > 0 for v in numbers):
            values = range(numbers[0], numbers[1] + 1, numbers[2])
    elif isinstance(entry, Mapping) and set(entry) == {"values"} and isinstance(entry["values"], list):
        values = entry["values"]
    if (
        not isinstance(values, list | range)
        or not values
        or (isinstance(values, list) and any(type(v) is not int or v < 1 for v in values))
    ):
        raise KernelError(f'{name} needs {{"values": [...]}} or {{"min", "max", "step"}}, of whole numbers from 1')
    return values if isinstance(values, range) else tuple(dict.fromkeys(values))


def _trait_values(name: str, entry: object, known: Sequence[TraitValue]) -> Sequence[TraitValue]:
    values = entry.get("values") if isinstance(entry, Mapping) else None
    if not isinstance(values, list) or not values:
        raise KernelError(f'trait {name} needs {{"values": [...]}} with at least one value')
    for value in values:
        if type(value) is not type(known[0]) or value not in known:
            raise KernelError(f"trait {name}: {value!r:.60} is unknown; known are {', '.join(map(str, known))}")
    return tuple(dict.fromkeys(values))
