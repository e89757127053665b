"""Table of data: 3D convolution layers of video and volume networks, as their papers define them (``N = 1``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, Unpack

from tilewise.collect.problems._networks import Layers
from tilewise.ops import GroupedConvProblem


class Conv3dOptions(TypedDict, total=False):
    """Options of a layer: the stride as (time, space), and the groups; 1 by default."""

    stride: tuple[int, int]
    groups: int


def conv3d(
    frames: int, size: int, c: int, k: int, f: tuple[int, int], **options: Unpack[Conv3dOptions]
) -> GroupedConvProblem:
    """Return a layer over `frames` square images, padded so that stride 1 keeps sizes; `f` is (time, space)."""
    groups = options.get("groups", 1)
    (z, y), (along_time, across) = f, options.get("stride", (1, 1))
    return GroupedConvProblem(
        1, c, k, groups, size, size, y, y, across, across, (y - 1) // 2, (y - 1) // 2,
        Di=frames, Z=z, stride_d=along_time, pad_d=(z - 1) // 2,
    )  # fmt: skip


def c3d() -> Layers:
    """C3D (Tran et al. 2015): 3x3x3 throughout, 16 frames of 112 x 112."""
    yield conv3d(16, 112, 3, 64, (3, 3))
    yield conv3d(16, 56, 64, 128, (3, 3))
    yield conv3d(8, 28, 128, 256, (3, 3))
    yield conv3d(8, 28, 256, 256, (3, 3))
    yield conv3d(4, 14, 256, 512, (3, 3))
    yield conv3d(4, 14, 512, 512, (3, 3))
    yield conv3d(2, 7, 512, 512, (3, 3))


def r3d_18() -> Layers:
    """R3D-18 (Tran et al. 2018), 16 frames of 112 x 112."""
    yield conv3d(16, 112, 3, 64, (3, 7), stride=(1, 2))
    frames, size, c = 16, 56, 64
    yield conv3d(frames, size, c, c, (3, 3))
    for k in (128, 256, 512):
        yield conv3d(frames, size, c, k, (3, 3), stride=(2, 2))
        yield conv3d(frames, size, c, k, (1, 1), stride=(2, 2))
        frames, size, c = frames // 2, size // 2, k
        yield conv3d(frames, size, c, c, (3, 3))


def r2plus1d_18() -> Layers:
    """R(2+1)D-18 (Tran et al. 2018): space and time apart, with the widths that keep R3D's parameters."""
    yield conv3d(16, 112, 3, 45, (1, 7), stride=(1, 2))
    yield conv3d(16, 56, 45, 64, (3, 1))
    frames, size, c = 16, 56, 64
    yield conv3d(frames, size, c, 144, (1, 3))
    yield conv3d(frames, size, 144, c, (3, 1))
    for k, first, then in ((128, 230, 288), (256, 460, 576), (512, 921, 1152)):
        yield conv3d(frames, size, c, first, (1, 3), stride=(1, 2))
        yield conv3d(frames, size // 2, first, k, (3, 1), stride=(2, 1))
        frames, size, c = frames // 2, size // 2, k
        yield conv3d(frames, size, c, then, (1, 3))
        yield conv3d(frames, size, then, c, (3, 1))


def slowfast_r50() -> Layers:
    """SlowFast R50 8x8 (Feichtenhofer et al. 2019): 8 and 32 frames of 224 x 224, and the lateral connections."""
    yield conv3d(8, 224, 3, 64, (1, 7), stride=(1, 2))
    yield conv3d(32, 224, 3, 8, (5, 7), stride=(1, 2))
    for size, c in ((56, 8), (56, 32), (28, 64), (14, 128)):
        yield conv3d(32, size, c, 2 * c, (5, 1), stride=(4, 1))
    for size, width in ((56, 8), (28, 16), (14, 32), (7, 64)):  # the fast path
        yield conv3d(32, size, 4 * width, width, (3, 1))
        yield conv3d(32, size, width, width, (1, 3))
        yield conv3d(32, size, width, 4 * width, (1, 1))
    for size, width in ((14, 256), (7, 512)):  # the slow path's last stages look along time
        yield conv3d(8, size, 4 * width, width, (3, 1))
        yield conv3d(8, size, width, width, (1, 3))
        yield conv3d(8, size, width, 4 * width, (1, 1))


def x3d_m() -> Layers:
    """X3D-M (Feichtenhofer 2020): depthwise 3x3x3 between 1x1x1s, 16 frames of 224 x 224."""
    yield conv3d(16, 224, 3, 24, (1, 3), stride=(1, 2))
    yield conv3d(16, 112, 24, 24, (5, 1), groups=24)
    size, c = 112, 24
    for k, hidden in ((24, 54), (48, 108), (96, 216), (192, 432)):
        yield conv3d(16, size, c, hidden, (1, 1))
        yield conv3d(16, size, hidden, hidden, (3, 3), stride=(1, 2), groups=hidden)
        size, c = size // 2, k
        yield conv3d(16, size, hidden, c, (1, 1))
        yield conv3d(16, size, hidden, hidden, (3, 3), groups=hidden)


def resnext3d_101() -> Layers:
    """3D ResNeXt-101 (Hara et al. 2018): 32 groups, 16 frames of 112 x 112."""
    frames, size, c = 8, 28, 64
    for stage, width in enumerate((128, 256, 512, 1024)):
        stride = 1 if stage == 0 else 2
        yield conv3d(frames, size, c, width, (1, 1))
        yield conv3d(frames, size, width, width, (3, 3), stride=(stride, stride), groups=32)
        frames, size, c = frames // stride, -(-size // stride), 2 * width
        yield conv3d(frames, size, width, width, (3, 3), groups=32)
        yield conv3d(frames, size, width, c, (1, 1))


def csn() -> Layers:
    """ir-CSN (Tran et al. 2019): depthwise 3x3x3 bottlenecks, 32 frames of 224 x 224."""
    for frames, size, width in ((32, 56, 64), (16, 28, 128), (8, 14, 256), (4, 7, 512)):
        yield conv3d(frames, size, width, width, (3, 3), groups=width)
        yield conv3d(frames, size, width, 4 * width, (1, 1))


def unet_3d() -> Layers:
    """3D U-Net (Çiçek et al. 2016) with same padding, 64 x 64 x 64 voxels."""
    for size, c, k in ((64, 1, 32), (64, 32, 64), (32, 64, 128), (16, 128, 256), (8, 256, 512), (16, 768, 256)):
        yield conv3d(size, size, c, k, (3, 3))


VIDEO_NETWORKS: dict[str, Callable[[], Layers]] = {
    f.__name__: f for f in (c3d, r3d_18, r2plus1d_18, slowfast_r50, x3d_m, resnext3d_101, csn, unet_3d)
}
