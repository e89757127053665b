"""Problems and kernels that the families' tests run: tiny ones for the interpreter, real ones for a GPU."""

from __future__ import annotations

from itertools import chain

from tilewise.arch import load_arch
from tilewise.kernels import Pool, illegal, load_pool
from tilewise.kernels.triton import PIPELINES, Kernel
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

TINY: dict[str, dict[str, Problem]] = {
    "grouped_conv": {
        "plain": GroupedConvProblem(1, 8, 16, 1, 5, 6, 3, 3, pad_h=1, pad_w=1),
        "odd channels, stride, dilation": GroupedConvProblem(2, 6, 10, 2, 5, 4, 3, 2, 2, 1, 1, 0, 2),
        "stride 2, padding": GroupedConvProblem(1, 8, 8, 1, 6, 7, 3, 3, 2, 2, 1, 1),
        "depthwise": GroupedConvProblem(1, 3, 3, 3, 6, 5, 3, 2, pad_h=1, pad_w=1),
        "depthwise with a multiplier, stride": GroupedConvProblem(1, 2, 4, 2, 4, 6, 2, 3, stride_w=2, dilation_w=2),
        "depthwise, stride, 3D": GroupedConvProblem(2, 5, 5, 5, 5, 4, 3, 2, 2, 2, 1, 1, Di=4, Z=2, pad_d=1, stride_d=3),
        "stride 3 beyond the filter": GroupedConvProblem(1, 4, 4, 2, 7, 4, 2, 1, 3, 3),
        "1x1": GroupedConvProblem(1, 33, 17, 1, 4, 4, 1, 1),
        "1x1, groups, stride": GroupedConvProblem(1, 32, 40, 2, 5, 5, 1, 1, stride_h=2, stride_w=2),
        "3D": GroupedConvProblem(1, 2, 3, 1, 3, 3, 2, 2, 2, pad_h=1, Di=4, Z=2, pad_d=1, stride_d=2),
        "1x1, a matrix product": GroupedConvProblem(2, 40, 24, 1, 3, 7, 1, 1),
        "one pixel": GroupedConvProblem(1, 16, 16, 1, 1, 1, 1, 1),
    },
    "gemm": {
        "even": GemmProblem(32, 48, 64),
        "ragged": GemmProblem(19, 35, 80),
        "ragged, stored by descriptor": GemmProblem(19, 72, 80),
        "odd": GemmProblem(17, 5, 33),
        "rrr": GemmProblem(18, 48, 48, "rrr"),
        "crr": GemmProblem(32, 16, 41, "crr"),
        "ccr": GemmProblem(48, 21, 48, "ccr"),
        "ccr, stored by descriptor": GemmProblem(48, 56, 80, "ccr"),
        "odd rrr": GemmProblem(3, 19, 37, "rrr"),
        "odd crr": GemmProblem(21, 7, 37, "crr"),
        "one": GemmProblem(1, 1, 1),
    },
}
# Only for boxes: other pipelines run similar ones above.
TINY_BOXES: dict[str, Problem] = {
    "stride 2": GroupedConvProblem(3, 16, 72, 1, 10, 6, 3, 2, 2, 2, 1, 1, 1, 2),
    "stride 1 x 3, groups": GroupedConvProblem(2, 32, 48, 2, 3, 9, 1, 3, 1, 3, 0, 1),
    "dilation": GroupedConvProblem(2, 24, 16, 1, 9, 11, 3, 3, 1, 1, 2, 1, 2, 1),
    "rows": GroupedConvProblem(2, 16, 16, 1, 5, 7, 1, 3, pad_w=1),
    "many pixels": GroupedConvProblem(5, 16, 8, 1, 6, 5, 1, 1),
    "3D": GroupedConvProblem(2, 16, 16, 1, 4, 5, 2, 3, pad_h=1, pad_w=1, Di=3, Z=2, pad_d=1),
    "3D, stride 2": GroupedConvProblem(2, 16, 16, 1, 4, 5, 2, 3, 2, 2, 1, 1, Di=3, Z=3, pad_d=1, stride_d=2),
}
# Only for strips: each takes another path through their code.
TINY_STRIPS: dict[str, Problem] = {
    "3x3": GroupedConvProblem(2, 5, 5, 5, 4, 9, 3, 3, pad_h=1, pad_w=1),
    "1x1": GroupedConvProblem(1, 8, 8, 8, 3, 5, 1, 1),
    "5x5, padding beyond the filter": GroupedConvProblem(1, 3, 3, 3, 5, 6, 5, 5, pad_h=2, pad_w=6),
    "1x7, narrow": GroupedConvProblem(1, 3, 3, 3, 2, 7, 1, 7, pad_w=1),
    "stride 2": GroupedConvProblem(1, 4, 4, 4, 5, 11, 3, 5, 2, 2, 1, 2),
    "stride 3, dilation 2": GroupedConvProblem(1, 4, 4, 4, 7, 12, 2, 3, 1, 3, 0, 2, 2, 2),
    "dilation": GroupedConvProblem(1, 4, 4, 4, 7, 9, 3, 3, pad_h=2, pad_w=3, dilation_h=2, dilation_w=3),
    "3D": GroupedConvProblem(2, 4, 4, 4, 3, 5, 2, 3, pad_w=1, Di=4, Z=3, pad_d=1),
}
# Only for merged groups: full tiles and rests, channels that fill a step or several, and those that divide by little.
TINY_MERGED: dict[str, Problem] = {
    "narrow": GroupedConvProblem(1, 16, 16, 4, 5, 6, 3, 3, pad_h=1, pad_w=1),
    "a rest of groups, stride": GroupedConvProblem(2, 20, 15, 5, 5, 4, 3, 2, 2, 1, 1, 0, 2),
    "more inputs": GroupedConvProblem(1, 72, 12, 6, 4, 3, 2, 2),
    "more outputs": GroupedConvProblem(1, 6, 36, 3, 4, 5, 3, 3, 2, 2, 1, 1),
    "1x1, stride": GroupedConvProblem(1, 24, 24, 3, 5, 5, 1, 1, stride_h=2, stride_w=2),
    "odd": GroupedConvProblem(1, 21, 35, 7, 4, 4, 2, 3, pad_w=1),
    "stride 2": GroupedConvProblem(2, 16, 16, 4, 6, 4, 3, 3, 2, 2, 1, 1),
    "two tiles of groups": GroupedConvProblem(1, 80, 80, 20, 3, 4, 3, 3, pad_h=1, pad_w=1),
    "3D": GroupedConvProblem(2, 8, 12, 4, 3, 5, 2, 3, pad_w=1, Di=4, Z=3, pad_d=1, stride_d=2),
}
# Only for patches: all are few channels, with strides, rests of patches and pixels that no output reaches.
TINY_PATCHES: dict[str, Problem] = {
    "first layer": GroupedConvProblem(2, 3, 20, 1, 9, 11, 3, 3, 2, 2, 1, 1),
    "first layer, stride 1": GroupedConvProblem(1, 3, 17, 1, 7, 13, 3, 3, pad_h=1, pad_w=1),
    "7x7": GroupedConvProblem(1, 3, 8, 1, 13, 10, 7, 7, 2, 2, 3, 3),
    "patches": GroupedConvProblem(2, 3, 24, 1, 8, 13, 4, 4, 4, 4),
    "filter beyond the stride, unpadded": GroupedConvProblem(1, 2, 16, 1, 11, 6, 5, 2, 3, 1),
    "stride beyond the filter": GroupedConvProblem(1, 3, 8, 1, 12, 9, 2, 1, 4, 3),
    "dilation": GroupedConvProblem(1, 5, 8, 1, 9, 10, 3, 3, 2, 2, 1, 2, 2, 3),
    "dilation, stride 1": GroupedConvProblem(1, 2, 8, 1, 9, 11, 3, 5, 1, 1, 2, 4, 2, 2),
    "3D": GroupedConvProblem(1, 3, 8, 1, 5, 6, 3, 3, 2, 2, 1, 1, Di=5, Z=3, pad_d=1, stride_d=2),
    "eight channels": GroupedConvProblem(1, 8, 8, 1, 5, 6, 2, 2, 2, 2),
}
# Only for descriptors: rows of operands that 8 divides and 16 does not, in every layout.
TINY_ROWS: dict[str, Problem] = {
    "rows of 8": GemmProblem(19, 24, 40),
    "rows of 8, rrr": GemmProblem(18, 40, 56, "rrr"),
    "rows of 8, crr": GemmProblem(24, 40, 35, "crr"),
    "rows of 8, ccr": GemmProblem(40, 24, 56, "ccr"),
    "rows of 8, stored by pointers": GemmProblem(17, 13, 40),
}
_CONV_CONFIGS = (
    "16x16x16_taps_w1_s2_g1_k1", "16x16x16_taps_w1_s2_g3_k2", "16x16x16_flat_w1_s2_g2_k1", "16x16x16_flat_w1_s2_g1_k3",
    "16x16x16_merged_w1_s2_g1_k1", "32x16x16_merged_w1_s2_g1_k3", "16x32x32_merged_w1_s2_g1_k1",
    "16x16x16_point_w1_s2_g4_k1", "16x16x16_point_w1_s2_g1_k2", "8x8x1_depth_w1_s1_g1_k1", "8x8x1_depth_w1_s1_g2_k1",
)  # fmt: skip
_PRODUCT_CONFIGS = (
    "16x16x16_tma_w1_s2_g2_k1", "16x24x16_tma_w1_s2_g1_k2", "16x16x16_persistent_w1_s2_g2_k1",
    "16x16x16_persistent_w1_s2_g1_k2",
)  # fmt: skip
_PIXEL_CONFIGS = (
    "64x64x16_box_w4_s2_g2_k1", "128x64x16_box_w4_s2_g1_k2", "64x64x16_mergedbox_w4_s2_g1_k1",
    "128x64x32_mergedbox_w4_s2_g1_k2", "8x8x1_lanes_w1_s1_g1_k1", "16x4x1_lanes_w1_s4_g2_k1",
    *_PRODUCT_CONFIGS,
    "16x4x2_strip_w1_s1_g1_k1", "32x8x4_strip_w1_s1_g2_k1", "64x4x8_strip_w1_s1_g1_k1",
)  # fmt: skip
TINY_CONFIGS: dict[tuple[str, str], tuple[str, ...]] = {
    ("grouped_conv", "forward"): _CONV_CONFIGS + _PIXEL_CONFIGS,
    ("grouped_conv", "bwd_data"): (
        *_CONV_CONFIGS,
        *_PIXEL_CONFIGS,
        "16x16x16_patch_w1_s2_g1_k1",
        "32x32x16_patch_w1_s2_g1_k1",
        "16x64x32_patch_w1_s2_g1_k1",
    ),
    ("grouped_conv", "bwd_weight"): (
        *_CONV_CONFIGS[:-1],
        "8x8x1_depth_w1_s1_g1_k2",
        *_PRODUCT_CONFIGS,
        "64x16x64_box_w4_s2_g2_k1",
        "64x32x128_box_w4_s2_g1_k2",
        "64x48x64_box_w4_s2_g1_k1",
        "64x96x64_box_w4_s2_g1_k3",
        "16x4x2_strip_w1_s1_g1_k1",
        "32x8x4_strip_w1_s1_g1_k2",
        "64x4x8_strip_w1_s1_g1_k3",
    ),
    ("gemm", "universal"): (
        "16x16x16_plain_w1_s2_g2_k1",
        "16x16x32_plain_w1_s2_g1_k2",
        "16x16x16_tma_w1_s2_g1_k1",
        "16x32x16_tma_w1_s2_g1_k2",
        "16x16x16_persistent_w1_s2_g2_k1",
        "32x16x16_persistent_w1_s2_g1_k3",
        "16x48x16_tma_w1_s2_g1_k1",
        "16x48x16_tma_w1_s2_g1_k2",
    ),
}
REAL: dict[str, dict[str, Problem]] = {
    "grouped_conv": {
        "resnet 3x3": GroupedConvProblem(8, 64, 64, 1, 56, 56, 3, 3, pad_h=1, pad_w=1),
        "resnet 3x3, stride 2": GroupedConvProblem(8, 128, 128, 1, 56, 56, 3, 3, 2, 2, 1, 1),
        "stem": GroupedConvProblem(4, 3, 64, 1, 224, 224, 7, 7, 2, 2, 3, 3),
        "patches": GroupedConvProblem(2, 3, 384, 1, 224, 224, 16, 16, 16, 16),
        "resnext": GroupedConvProblem(4, 128, 128, 32, 28, 28, 3, 3, pad_h=1, pad_w=1),
        "resnext, stride 2": GroupedConvProblem(3, 256, 256, 32, 28, 28, 3, 3, 2, 2, 1, 1),
        "a rest of groups": GroupedConvProblem(2, 168, 168, 7, 14, 20, 3, 3, pad_h=1, pad_w=1),
        "narrow groups, dilated": GroupedConvProblem(5, 48, 96, 6, 17, 18, 3, 2, 1, 2, 2, 1, 2),
        "narrow groups, unpadded": GroupedConvProblem(2, 64, 64, 16, 18, 7, 2, 3),
        "depthwise 5x5, stride 2": GroupedConvProblem(4, 240, 240, 240, 28, 28, 5, 5, 2, 2, 2, 2),
        "depthwise 5x5": GroupedConvProblem(4, 120, 120, 120, 28, 30, 5, 5, pad_h=2, pad_w=2),
        "depthwise, odd": GroupedConvProblem(2, 37, 37, 37, 15, 13, 3, 7, pad_h=1, pad_w=2, dilation_h=2),
        "depthwise with a multiplier": GroupedConvProblem(2, 96, 192, 96, 30, 30, 3, 3, pad_h=1, pad_w=1),
        "1x1": GroupedConvProblem(8, 256, 512, 1, 28, 28, 1, 1),
        "1x1 on one pixel": GroupedConvProblem(1, 1152, 48, 1, 1, 1, 1, 1),
        "1x1, stride 2": GroupedConvProblem(8, 256, 512, 1, 28, 28, 1, 1, 2, 2),
        "dilated": GroupedConvProblem(2, 256, 128, 1, 33, 33, 3, 3, 1, 1, 6, 6, 6, 6),
        "dilated, stride 2": GroupedConvProblem(2, 64, 96, 1, 33, 34, 3, 3, 2, 2, 2, 2, 2, 3),
        "odd": GroupedConvProblem(3, 37, 53, 1, 19, 23, 3, 5, 1, 2, 1, 2),
        "odd, groups": GroupedConvProblem(2, 33, 27, 3, 17, 17, 3, 3, pad_h=1, pad_w=1),
        "1 x 7": GroupedConvProblem(2, 160, 192, 1, 17, 17, 1, 7, pad_w=3),
        "3D": GroupedConvProblem(2, 32, 48, 1, 14, 14, 3, 3, pad_h=1, pad_w=1, Di=8, Z=3, pad_d=1),
        "3D, stride 2": GroupedConvProblem(1, 32, 40, 2, 15, 14, 3, 3, 2, 2, 1, 1, Di=9, Z=3, pad_d=1, stride_d=2),
    },
    "gemm": {
        "square": GemmProblem(1024, 1024, 1024),
        "llm": GemmProblem(2048, 1536, 7168),
        "one row": GemmProblem(1, 4096, 4096),
        "few rows": GemmProblem(24, 1280, 8192),
        "few columns": GemmProblem(4096, 8, 2048),
        "long": GemmProblem(256, 384, 32768),
        "ragged": GemmProblem(1000, 1016, 1040),
        "odd": GemmProblem(257, 513, 1025),
        "rrr": GemmProblem(768, 1152, 2048, "rrr"),
        "ragged rrr": GemmProblem(300, 648, 1072, "rrr"),
        "odd rrr": GemmProblem(77, 333, 555, "rrr"),
        "crr": GemmProblem(1024, 640, 768, "crr"),
        "ragged crr": GemmProblem(336, 520, 1000, "crr"),
        "odd crr": GemmProblem(131, 67, 259, "crr"),
        "ccr": GemmProblem(896, 512, 2048, "ccr"),
        "ragged ccr": GemmProblem(400, 1001, 720, "ccr"),
        "ragged ccr, stored by descriptor": GemmProblem(400, 1000, 720, "ccr"),
    },
}
# Kernels that Triton's interpreter cannot run.
_RELAY_IMAGES = (
    "64x64x64_relay_w8_s8_g1_k1", "128x128x64_relay_w8_s4_g8_k1", "256x64x64_relay_w8_s4_g8_k1",
    "128x256x64_relay_w8_s3_g1_k1", "256x128x64_relay_w8_s3_g8_k1",
)  # fmt: skip
RELAY_CONFIGS = {
    "forward": _RELAY_IMAGES,
    "bwd_data": _RELAY_IMAGES,
    "bwd_weight": (
        "64x64x64_relay_w8_s8_g1_k14", "128x128x64_relay_w8_s6_g1_k1", "64x256x64_relay_w8_s5_g8_k3",
        "128x256x64_relay_w8_s4_g1_k4", "256x128x64_relay_w8_s3_g1_k1",
    ),
}  # fmt: skip
SLIDE_CONFIGS = {
    "forward": ("64x64x64_slide_w4_s2_g1_k1", "64x64x64_slide_w4_s3_g1_k1", "64x32x32_slide_w4_s4_g1_k1"),
    "bwd_data": ("64x64x64_slide_w4_s3_g1_k1", "64x32x32_slide_w4_s2_g1_k1"),
    "bwd_weight": ("64x64x64_slide_w4_s2_g1_k1", "64x64x64_slide_w4_s5_g1_k8"),
}
COMPILED_CONFIGS = tuple(dict.fromkeys(chain(*RELAY_CONFIGS.values(), *SLIDE_CONFIGS.values())))
# Kernels of pipelines that a shipped pool lacks.
BEYOND_CONFIGS = (
    "64x64x32_box_w4_s4_g1_k1", "128x128x64_box_w8_s3_g8_k1", "256x128x64_box_w8_s3_g8_k1", "128x64x16_box_w4_s3_g1_k4",
    "32x64x1_lanes_w2_s9_g1_k1", "8x32x1_lanes_w1_s3_g2_k1", "64x32x8_strip_w1_s1_g1_k1", "64x32x4_strip_w2_s1_g2_k1",
    "16x64x2_strip_w2_s1_g1_k1", "64x64x64_tma_w4_s3_g8_k1", "128x128x64_persistent_w4_s4_g4_k1",
    "64x32x32_merged_w4_s4_g1_k1", "128x64x64_merged_w4_s3_g1_k4", "64x128x32_merged_w4_s3_g1_k16",
    "128x64x64_mergedbox_w4_s3_g1_k1", "256x128x64_mergedbox_w8_s3_g1_k2", *COMPILED_CONFIGS,
)  # fmt: skip


def tiny(op: str, kernel: Kernel) -> dict[str, Problem]:
    """Return the problems that a kernel is interpreted for."""
    if kernel.pipeline == "box":
        return TINY_BOXES
    if op == "gemm" and PIPELINES[kernel.pipeline].described:
        return TINY[op] | TINY_ROWS
    own = {"strip": TINY_STRIPS, "merged": TINY_MERGED, "mergedbox": TINY_MERGED, "patch": TINY_PATCHES}
    return TINY[op] | own.get(kernel.pipeline, {})


def wide_pool(target: Target) -> Pool:
    """Return the shipped pool, and kernels of the pipelines that it lacks."""
    arch, beyond = load_arch(target.arch), [Kernel.from_config(config) for config in BEYOND_CONFIGS]
    legal = [k for k in beyond if illegal(k, target, arch) is None]
    kernels = dict.fromkeys((*load_pool(target).kernels, *legal))
    return Pool(target.op, target.variant, target.dtype, tuple(kernels))
