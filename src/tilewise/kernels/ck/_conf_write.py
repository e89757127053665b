"""Builder's instance strings, written in the spelling that :func:`._conf_lines.parse_native` reads."""

from __future__ import annotations

from collections.abc import Mapping

from tilewise.errors import KernelError
from tilewise.kernels.ck._conf_fields import ConfHeader, split_fields
from tilewise.kernels.ck._conf_lines import (
    NATIVE_PIPELINES,
    NATIVE_VARIANTS,
    SCHEDULERS,
    SPECIALIZATIONS,
    parse_depthwise,
    parse_native,
)
from tilewise.kernels.ck._instance import DEPTHWISE_SIZES, AnyInstance, DepthwiseInstance, Instance, get_instance_string

# Layouts of weights and of output images, by the layout of the image.
_WEIGHTS = {"nwgc": ("GKXC", "NWGK"), "nhwgc": ("GKYXC", "NHWGK"), "ndhwgc": ("GKZYXC", "NDHWGK")}


def builder_string(instance: AnyInstance) -> str:
    """Return the line of a ``.conf`` file that reads back as the instance.

    The spelling is that of CK Tile's own kernels, with a stream-K tail where it is enabled; a depthwise instance is its
    twelve numbers. The older spellings hold how threads share a copy, which an instance does not know.

    Raises:
        KernelError: the line cannot hold a parameter of the instance, or a parameter that it needs is not stated.
    """
    if isinstance(instance, DepthwiseInstance):
        fields = [str(getattr(instance, n)) for n in DEPTHWISE_SIZES]
        back: AnyInstance = parse_depthwise(fields, ConfHeader(instance.dtype, instance.ndim, instance.layout))
        return _checked(",".join(fields), back, instance)
    if instance.op != "grouped_conv":
        raise KernelError(f"{instance.name} has no line in a .conf, which holds convolutions; write a .json or .txt")
    fields = _native_fields(instance)
    head = _old_name(NATIVE_VARIANTS, instance.variant, "variant", instance)
    line = f"{head}<{','.join(fields)}>"
    return _checked(line, parse_native(instance.variant, split_fields(",".join(fields))), instance)


def _native_fields(instance: Instance) -> list[str]:
    k = instance.kernel
    if instance.layout not in _WEIGHTS:
        raise KernelError(f"{instance.name}: layout must be one of {', '.join(_WEIGHTS)}, got {instance.layout!r}")
    weights, output = _WEIGHTS[instance.layout]
    specialization = _old_name(SPECIALIZATIONS, instance.specialization, "specialization", instance)
    numbers = (
        k.vector_a, k.vector_b, k.vector_c, k.num_groups_to_merge, instance.split_image, instance.explicit_gemm,
        k.tile_m, k.tile_n, k.tile_k, k.warp_m, k.warp_n, k.warp_k, k.warp_tile_m, k.warp_tile_n, k.warp_tile_k,
    )  # fmt: skip
    pipeline = _old_name(NATIVE_PIPELINES, k.pipeline, "pipeline", instance)
    scheduler = _old_name(SCHEDULERS, k.scheduler, "scheduler", instance)
    fields = [str(k.ndim), specialization, instance.layout.upper(), weights, "EmptyTuple", output]
    fields += [str(int(n)) for n in numbers]
    fields += [instance.dtype, instance.dtype, pipeline, scheduler]
    fields += [str(int(k.double_smem_buffer)), str(instance.num_wave_groups)]
    fields += ["fp32", instance.dtype, "EmptyTuple", "PassThrough"]
    if k.streamk_enabled:
        fields += ["1", k.streamk_reduction_strategy, str(int(k.streamk_persistent))]
    return fields


def _old_name(names: Mapping[str, str], value: str, field: str, instance: Instance) -> str:
    """Return the Builder's name of a value, the first where it has several."""
    found = next((old for old, new in names.items() if new == value), None)
    if found is None:
        known = ", ".join(dict.fromkeys(names.values()))
        raise KernelError(f"{instance.name}: {field} {value!r} has no name in a .conf; it must be one of {known}")
    return found


def _checked(line: str, back: AnyInstance, instance: AnyInstance) -> str:
    if back != instance:
        raise KernelError(
            f"{get_instance_string(instance)}: a .conf cannot hold all of its parameters, and would read back as "
            f"{get_instance_string(back)}; write a .json or .txt"
        )
    return line
