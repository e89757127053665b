"""Table of data: convolution layers of real networks, as their papers and reference implementations define them.

Each function yields the layers of one image (``N = 1``); the caller picks batch sizes. Only dimensions matter here, so
a layer that occurs twice is listed once.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import TypedDict, Unpack

from tilewise.ops import GroupedConvProblem

Layers = Iterator[GroupedConvProblem]


class ConvOptions(TypedDict, total=False):
    """Options of a layer, 1 by default; the default padding keeps the size at stride 1."""

    stride: int
    groups: int
    dilation: int
    pad: int | tuple[int, int]


def conv(size: int, c: int, k: int, f: int | tuple[int, int] = 1, **options: Unpack[ConvOptions]) -> GroupedConvProblem:
    """Return a layer over one square image of `size` pixels per side, with `c` input and `k` output channels."""
    stride, groups, dilation = options.get("stride", 1), options.get("groups", 1), options.get("dilation", 1)
    pad = options.get("pad")
    y, x = (f, f) if isinstance(f, int) else f
    pad_h, pad_w = (pad, pad) if isinstance(pad, int) else pad or (dilation * (y - 1) // 2, dilation * (x - 1) // 2)
    return GroupedConvProblem(
        1, c, k, groups, size, size, y, x, stride, stride, pad_h, pad_w, dilation, dilation
    )  # fmt: skip


def resnet50() -> Layers:
    """ResNet-50 (He et al. 2015, v1.5: the stride sits in the 3x3), 224 x 224."""
    yield from _resnet(groups=1, base=64)


def resnext50() -> Layers:
    """ResNeXt-50 32x4d (Xie et al. 2016)."""
    yield from _resnet(groups=32, base=128)


def resnext101_32x8d() -> Layers:
    """ResNeXt-101 32x8d; the widths of its four stages."""
    yield from _resnet(groups=32, base=256)


def wide_resnet50() -> Layers:
    """Wide ResNet-50-2 (Zagoruyko, Komodakis 2016)."""
    yield from _resnet(groups=1, base=128)


def _resnet(groups: int, base: int) -> Layers:
    yield conv(224, 3, 64, 7, stride=2)
    size, c = 56, 64
    for stage in range(4):
        width, out = base << stage, 256 << stage
        stride = 1 if stage == 0 else 2
        yield conv(size, c, width)
        yield conv(size, width, width, 3, stride=stride, groups=groups)
        yield conv(size, c, out, stride=stride)
        size //= stride
        yield conv(size, width, out)
        yield conv(size, out, width)
        yield conv(size, width, width, 3, groups=groups)
        c = out


def resnet18() -> Layers:
    """ResNet-18/34 basic blocks."""
    yield conv(224, 3, 64, 7, stride=2)
    size, c = 56, 64
    for stage in range(4):
        out, stride = 64 << stage, 1 if stage == 0 else 2
        yield conv(size, c, out, 3, stride=stride)
        if stage:
            yield conv(size, c, out, stride=2)
        size //= stride
        yield conv(size, out, out, 3)
        c = out


def vgg16() -> Layers:
    """VGG-16 (Simonyan, Zisserman 2014)."""
    size, c = 224, 3
    for k, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            yield conv(size, c, k, 3)
            c = k
        size //= 2


def _inverted(size: int, channels: tuple[int, int, int], f: int, stride: int, squeeze: int = 0) -> Layers:
    """Inverted residual: expand 1x1, depthwise, project 1x1 (MobileNetV2), with optional squeeze-excite 1x1s.

    Channels are those of the input, of the depthwise layer and of the output.
    """
    c, hidden, k = channels
    if hidden != c:
        yield conv(size, c, hidden)
    yield conv(size, hidden, hidden, f, stride=stride, groups=hidden)
    if squeeze:
        yield conv(1, hidden, squeeze)
        yield conv(1, squeeze, hidden)
    yield conv(size // stride, hidden, k)


def mobilenet_v1() -> Layers:
    """MobileNetV1 (Howard et al. 2017)."""
    yield conv(224, 3, 32, 3, stride=2)
    size, c = 112, 32
    for k, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (1024, 2), (1024, 1)):
        yield conv(size, c, c, 3, stride=stride, groups=c)
        size //= stride
        yield conv(size, c, k)
        c = k


def mobilenet_v2() -> Layers:
    """MobileNetV2 (Sandler et al. 2018): (expansion, channels, repeats, stride)."""
    yield conv(224, 3, 32, 3, stride=2)
    size, c = 112, 32
    for t, k, n, s in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 2, 2),
        (6, 64, 2, 2),
        (6, 96, 2, 1),
        (6, 160, 2, 2),
        (6, 320, 1, 1),
    ):
        for i in range(n):
            stride = s if i == 0 else 1
            yield from _inverted(size, (c, c * t, k), 3, stride)
            size, c = size // stride, k
    yield conv(7, 320, 1280)


def mobilenet_v3_large() -> Layers:
    """MobileNetV3-Large (Howard et al. 2019): (kernel, hidden, channels, squeeze, stride)."""
    yield conv(224, 3, 16, 3, stride=2)
    size, c = 112, 16
    table = (
        (3, 16, 16, 0, 1), (3, 64, 24, 0, 2), (3, 72, 24, 0, 1), (5, 72, 40, 24, 2), (5, 120, 40, 32, 1),
        (3, 240, 80, 0, 2), (3, 200, 80, 0, 1), (3, 184, 80, 0, 1), (3, 480, 112, 120, 1), (3, 672, 112, 168, 1),
        (5, 672, 160, 168, 2), (5, 960, 160, 240, 1),
    )  # fmt: skip
    for f, hidden, k, squeeze, stride in table:
        yield from _inverted(size, (c, hidden, k), f, stride, squeeze)
        size, c = size // stride, k
    yield conv(7, 160, 960)


def efficientnet_b0() -> Layers:
    """EfficientNet-B0 (Tan, Le 2019)."""
    yield from _efficientnet(224, (32, 16, 24, 40, 80, 112, 192, 320, 1280))


def efficientnet_b4() -> Layers:
    """EfficientNet-B4 at 380 x 380."""
    yield from _efficientnet(380, (48, 24, 32, 56, 112, 160, 272, 448, 1792))


def _efficientnet(image: int, widths: tuple[int, ...]) -> Layers:
    stem, *blocks, head = widths
    yield conv(image, 3, stem, 3, stride=2)
    size, c = -(-image // 2), stem
    for k, t, f, s in zip(blocks, (1, 6, 6, 6, 6, 6, 6), (3, 3, 5, 3, 5, 5, 3), (1, 2, 2, 2, 1, 2, 1), strict=True):
        for stride in (s, 1):
            yield from _inverted_same(size, c, k, f, stride, t)
            size, c = -(-size // stride), k
    yield conv(size, c, head)


def _inverted_same(size: int, c: int, k: int, f: int, stride: int, expand: int) -> Layers:
    hidden = c * expand
    if expand > 1:
        yield conv(size, c, hidden)
    yield conv(size, hidden, hidden, f, stride=stride, groups=hidden)
    yield conv(1, hidden, max(1, c // 4))
    yield conv(1, max(1, c // 4), hidden)
    yield conv(-(-size // stride), hidden, k)


def efficientnet_v2_s() -> Layers:
    """EfficientNetV2-S at 384 x 384: its fused blocks are plain 3x3s (Tan, Le 2021)."""
    yield conv(384, 3, 24, 3, stride=2)
    yield conv(192, 24, 24, 3)
    yield conv(192, 24, 96, 3, stride=2)
    yield conv(96, 96, 48)
    yield conv(96, 48, 192, 3)
    yield conv(96, 192, 48)
    yield conv(96, 48, 192, 3, stride=2)
    yield conv(48, 192, 64)
    yield conv(48, 64, 256, 3)
    yield conv(48, 256, 64)
    for size, c, k, stride in ((48, 64, 128, 2), (24, 128, 160, 1), (24, 160, 256, 2), (12, 256, 256, 1)):
        yield from _inverted_same(size, c, k, 3, stride, 4 if stride == 2 else 6)


def convnext(widths: tuple[int, ...]) -> Layers:
    """ConvNeXt (Liu et al. 2022): 7x7 depthwise, 1x1s as linear layers, 2x2 stride-2 downsampling."""
    yield conv(224, 3, widths[0], 4, stride=4, pad=0)
    size = 56
    for i, c in enumerate(widths):
        if i:
            yield conv(size, widths[i - 1], c, 2, stride=2, pad=0)
            size //= 2
        yield conv(size, c, c, 7, groups=c)
        yield conv(size, c, 4 * c)
        yield conv(size, 4 * c, c)


def convnext_tiny() -> Layers:
    """ConvNeXt-T."""
    yield from convnext((96, 192, 384, 768))


def convnext_base() -> Layers:
    """ConvNeXt-B."""
    yield from convnext((128, 256, 512, 1024))


def unet() -> Layers:
    """U-Net (Ronneberger et al. 2015) with same padding, 512 x 512."""
    size, c = 512, 1
    for k in (64, 128, 256, 512, 1024):
        yield conv(size, c, k, 3)
        yield conv(size, k, k, 3)
        size, c = size // 2, k
    size *= 2
    for k in (512, 256, 128, 64):
        size *= 2
        yield conv(size, 2 * k, k, 2, pad=0)
        yield conv(size, 2 * k, k, 3)
    yield conv(512, 64, 2)


def densenet121() -> Layers:
    """DenseNet-121 (Huang et al. 2016), every fourth layer of a block."""
    size, c = 56, 64
    for layers in (6, 12, 24, 16):
        for i in range(0, layers, 4):
            yield conv(size, c + 32 * i, 128)
        yield conv(size, 128, 32, 3)
        c += 32 * layers
        if size > 7:
            yield conv(size, c, c // 2)
            c, size = c // 2, size // 2


def inception_v3() -> Layers:
    """Inception v3 (Szegedy et al. 2015): its asymmetric and small filters."""
    yield conv(299, 3, 32, 3, stride=2, pad=0)
    yield conv(149, 32, 32, 3, pad=0)
    yield conv(147, 32, 64, 3)
    yield conv(73, 64, 80)
    yield conv(73, 80, 192, 3, pad=0)
    for c in (192, 256, 288):
        yield conv(35, c, 64)
        yield conv(35, c, 48)
    yield conv(35, 48, 64, 5)
    yield conv(35, 64, 96, 3)
    yield conv(35, 96, 96, 3)
    yield conv(35, 288, 384, 3, stride=2, pad=0)
    yield conv(17, 768, 192)
    for c in (128, 160, 192):
        yield conv(17, c, c, (1, 7))
        yield conv(17, c, 192, (7, 1))
    yield conv(17, 192, 320, 3, stride=2, pad=0)
    yield conv(8, 1280, 320)
    yield conv(8, 2048, 448)
    yield conv(8, 448, 384, 3)
    yield conv(8, 384, 384, (1, 3))
    yield conv(8, 384, 384, (3, 1))


def deeplab_v3() -> Layers:
    """DeepLabv3 (Chen et al. 2017): atrous convolutions over a 33 x 33 map (output stride 16, 513 x 513)."""
    for dilation in (6, 12, 18):
        yield conv(33, 2048, 256, 3, dilation=dilation)
    yield conv(33, 2048, 256)
    yield conv(33, 1280, 256)
    for dilation in (2, 4):
        yield conv(33, 512, 512, 3, dilation=dilation)
    yield conv(129, 304, 256, 3)
    yield conv(129, 256, 21)


def retinanet() -> Layers:
    """RetinaNet's pyramid and heads (Lin et al. 2017), 800 x 1216 padded to squares of equal area."""
    for size, c in ((100, 512), (50, 1024), (25, 2048)):
        yield conv(size, c, 256)
    for size in (124, 62, 31, 16, 8):
        yield conv(size, 256, 256, 3)
        yield conv(size, 256, 720, 3)
        yield conv(size, 256, 36, 3)
    yield conv(25, 2048, 256, 3, stride=2)


def yolov8_m() -> Layers:
    """YOLOv8-m at 640 x 640."""
    widths = (48, 96, 192, 384, 576)
    yield conv(640, 3, 48, 3, stride=2)
    size = 320
    for c, k in itertools.pairwise(widths):
        yield conv(size, c, k, 3, stride=2)
        size //= 2
        yield conv(size, k, k)
        yield conv(size, k // 2, k // 2, 3)
        yield conv(size, 2 * k, k)
    for size, c in ((80, 192), (40, 384), (20, 576)):
        yield conv(size, c, 64, 3)
        yield conv(size, c, 192, 3)
        yield conv(size, 192, 80)


def stable_diffusion_unet() -> Layers:
    """Stable Diffusion 1.x denoising U-Net (Rombach et al. 2022), 64 x 64 latents."""
    yield conv(64, 4, 320, 3)
    for size, c in ((64, 320), (32, 640), (16, 1280), (8, 1280)):
        yield conv(size, c, c, 3)
        yield conv(size, c, c)
        yield conv(size, 2 * c, c, 3)
        yield conv(size, 2 * c, c)
        if size > 8:
            yield conv(size, c, c, 3, stride=2)
    yield conv(32, 320, 640, 3)
    yield conv(16, 640, 1280, 3)
    yield conv(16, 1920, 1280, 3)
    yield conv(32, 960, 640, 3)
    yield conv(64, 960, 320, 3)
    yield conv(64, 320, 4, 3)


def vae_decoder() -> Layers:
    """Return the autoencoder's decoder of latent diffusion models, 64 x 64 latents to 512 x 512 pixels."""
    yield conv(64, 4, 512, 3)
    for size, c, k in (
        (64, 512, 512),
        (128, 512, 512),
        (256, 512, 256),
        (256, 256, 256),
        (512, 256, 128),
        (512, 128, 128),
    ):
        yield conv(size, c, k, 3)
        if c != k:
            yield conv(size, c, k)
    yield conv(512, 128, 3, 3)


def regnet_y_8gf() -> Layers:
    """RegNetY-8GF (Radosavovic et al. 2020): group width 56."""
    size, c = 112, 32
    for width in (224, 448, 896, 2016):
        yield conv(size, c, width)
        yield conv(size, width, width, 3, stride=2, groups=width // 56)
        yield conv(size, c, width, stride=2)
        size //= 2
        yield conv(size, width, width, 3, groups=width // 56)
        yield conv(size, width, width)
        c = width


def vision_transformer_patches() -> Layers:
    """Patch embeddings: ViT-B/16, ViT-L/14, Swin-T, SAM's neck."""
    yield conv(224, 3, 768, 16, stride=16, pad=0)
    yield conv(224, 3, 1024, 14, stride=14, pad=0)
    yield conv(224, 3, 96, 4, stride=4, pad=0)
    yield conv(64, 768, 256)
    yield conv(64, 256, 256, 3)


def super_resolution() -> Layers:
    """EDSR and ESRGAN bodies (Lim et al. 2017, Wang et al. 2018): large maps, few channels."""
    for size in (48, 128, 256):
        yield conv(size, 64, 64, 3)
        yield conv(size, 256, 256, 3)
    for c in (64, 96, 128, 160, 192):
        yield conv(128, c, 32, 3)
    yield conv(256, 64, 3, 3)
    yield conv(256, 3, 64, 9)


def convnext_large() -> Layers:
    """ConvNeXt-L."""
    yield from convnext((192, 384, 768, 1536))


def regnet_x_600mf() -> Layers:
    """RegNetX-600MF (Radosavovic et al. 2020): group width 24."""
    yield from _regnet_x((48, 96, 240, 528), 24)


def regnet_x_3_2gf() -> Layers:
    """RegNetX-3.2GF: group width 48."""
    yield from _regnet_x((96, 192, 432, 1008), 48)


def _regnet_x(widths: tuple[int, ...], group_width: int) -> Layers:
    size, c = 112, 32
    for width in widths:
        yield conv(size, c, width)
        yield conv(size, width, width, 3, stride=2, groups=width // group_width)
        size //= 2
        yield conv(size, width, width, 3, groups=width // group_width)
        yield conv(size, width, width)
        c = width


def shufflenet_v1_g3() -> Layers:
    """ShuffleNetV1 (Zhang et al. 2017) with 3 groups: grouped 1x1s."""
    yield from _shufflenet_v1(3, (240, 480, 960))


def shufflenet_v1_g4() -> Layers:
    """ShuffleNetV1 with 4 groups."""
    yield from _shufflenet_v1(4, (272, 544, 1088))


def shufflenet_v1_g8() -> Layers:
    """ShuffleNetV1 with 8 groups."""
    yield from _shufflenet_v1(8, (384, 768, 1536))


def _shufflenet_v1(groups: int, widths: tuple[int, ...]) -> Layers:
    size, c = 56, 24
    for out in widths:
        hidden = out // 4
        yield conv(size, c, hidden, groups=1 if c == 24 else groups)
        yield conv(size, hidden, hidden, 3, stride=2, groups=hidden)
        size //= 2
        yield conv(size, hidden, out - c, groups=groups)  # the rest of the channels is the pooled input
        yield conv(size, out, hidden, groups=groups)
        yield conv(size, hidden, hidden, 3, groups=hidden)
        yield conv(size, hidden, out, groups=groups)
        c = out


NETWORKS: dict[str, Callable[[], Layers]] = {
    f.__name__: f
    for f in (
        resnet18, resnet50, wide_resnet50, resnext50, resnext101_32x8d, vgg16, mobilenet_v1, mobilenet_v2,
        mobilenet_v3_large, efficientnet_b0, efficientnet_b4, efficientnet_v2_s, convnext_tiny, convnext_base, unet,
        densenet121, inception_v3, deeplab_v3, retinanet, yolov8_m, stable_diffusion_unet, vae_decoder, regnet_y_8gf,
        vision_transformer_patches, super_resolution,
    )
}  # fmt: skip

# Kept apart from NETWORKS, from which set grouped_conv-1 is drawn.
LATER_NETWORKS: dict[str, Callable[[], Layers]] = {
    f.__name__: f
    for f in (
        convnext_large, regnet_x_600mf, regnet_x_3_2gf, shufflenet_v1_g3, shufflenet_v1_g4, shufflenet_v1_g8,
    )
}  # fmt: skip


def with_batch(layer: GroupedConvProblem, batch: int) -> GroupedConvProblem:
    """Return the layer over `batch` images."""
    return dataclasses.replace(layer, N=batch)
