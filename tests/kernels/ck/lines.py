"""Lines of old ``.conf`` files, one per kind, each with its instance."""

from __future__ import annotations

_FWD = "NHWGC,GKYXC,EmptyTuple,NHWGK,bf16,bf16,fp32,bf16,EmptyTuple,bf16,PassThrough,PassThrough,PassThrough"
_COPY = "Seq(4,64,1),Seq(1,0,2),Seq(1,0,2),2,8,8,false"
_WRW = "2,NHWGC,GKYXC,NHWGK,bf16,bf16,bf16,fp32,PassThrough,PassThrough,PassThrough"

FORWARD_V3 = (
    f"DeviceGroupedConvFwdMultipleABD_Xdl_CShuffle_V3<2,{_FWD},Default,MNKPadding,256,128,128,32,8,8,32,32,2,2,"
    f"{_COPY},{_COPY},1,1,Seq(1,32,1,8),8,Intrawave,v4,bf16,bf16,false,1>"
)
FORWARD = (
    f"DeviceGroupedConvFwdMultipleABD_Xdl_CShuffle<2,{_FWD},OddC,MNKPadding,1,256,64,128,32,8,8,32,32,1,2,"
    f"{_COPY},{_COPY},1,1,Seq(1,32,1,8),8,bf16,bf16,Default,1>"
)
FORWARD_LARGE = (
    f"DeviceGroupedConvFwdMultipleD_Xdl_CShuffle_Large_Tensor<2,{_FWD},Default,MNKPadding,1,256,128,128,32,8,8,32,32,"
    f"2,2,{_COPY},{_COPY},1,1,Seq(1,32,1,8),8,bf16,bf16,Default>"
)
BWD_WEIGHT = (
    f"DeviceGroupedConvBwdWeight_Xdl_CShuffle<{_WRW},Default,128,128,32,4,8,32,32,2,1,Seq(1,4,16,2),Seq(0,3,1,2),"
    "Seq(0,2,1,3),2,8,4,true,Seq(1,4,4,8),Seq(0,3,1,2),Seq(0,2,1,3),2,2,1,true,1,1,Seq(1,32,1,4),2,bf16,bf16,1,1>"
)
BWD_WEIGHT_V3 = (
    f"DeviceGroupedConvBwdWeight_Xdl_CShuffleV3<{_WRW},Default,128,16,32,64,8,16,16,1,1,Seq(8,2,8),Seq(0,2,1),"
    "Seq(0,2,1),1,8,8,false,Seq(4,4,8),Seq(0,2,1),Seq(0,2,1),1,8,8,false,1,1,Seq(1,16,1,8),4,"
    "Intrawave,v1,bf16,bf16,1,1>"
)
BWD_WEIGHT_TWO_STAGE = (
    f"DeviceGroupedConvBwdWeightTwoStage_Xdl_CShuffle<{_WRW},Default,64,32,32,32,8,32,32,1,1,Seq(4,8,1),Seq(2,0,1),"
    "Seq(1,0,2),1,2,2,false,Seq(4,16,1),Seq(2,0,1),Seq(1,0,2),1,2,2,false,1,1,Seq(1,8,1,8),1,"
    "Intrawave,v2,2,bf16,bf16,1,1>"
)
BWD_DATA = (
    "DeviceGroupedConvBwdDataMultipleD_Xdl_CShuffle_v1<256, 64, 128, 32, 8, 8, Default, 32, 32, 1, 2, 1, 4, 1, 1>"
)
BWD_DATA_LONG = (
    "DeviceGroupedConvBwdDataMultipleD_Xdl_CShuffle<3,NDHWGK,GKZYXC,EmptyTuple,NDHWGC,fp16,fp16,fp32,EmptyTuple,fp16,"
    "PassThrough,PassThrough,PassThrough,Filter1x1Stride1Pad0,1,1,1,256,128,128,32,8,8,32,32,2,2,"
    f"{_COPY},{_COPY},1,1,Seq(1,32,1,8),8,1,Default,fp16,fp16,1,1>"
)
STREAM_K = (
    "GroupedConvolutionBackwardWeightKernel<2,Default,NHWGC,GKYXC,EmptyTuple,NHWGK,4,2,2,1,0,0,32,16,64,2,1,1,16,16,16,"
    "bf16,bf16,BASIC_V1,Intrawave,0,1,fp32,bf16,EmptyTuple,PassThrough,1,2,0>"
)
EXPLICIT = (
    "DeviceGroupedConvBwdWeight_Explicit_Xdl<DeviceBatchedGemmXdlUniversal<Default, CRR> BlkSize: 128, "
    "BlkTile: 32x16x64, WaveTile: 16x16, K1: 2x2, WaveMap: 1x1, VmemReadVec: 2x2xSeq(1), "
    "BlkGemmPipelineScheduler: Interwave, BlkGemmPipelineVersion: v2, BlkGemmPipelinePrefetchStages: 2>"
)
DEPTHWISE = "16,16,3,1,1,1,1,8,1,4,8,8"

KINDS = {
    "forward_v3": FORWARD_V3,
    "forward": FORWARD,
    "forward_large": FORWARD_LARGE,
    "bwd_weight": BWD_WEIGHT,
    "bwd_weight_v3": BWD_WEIGHT_V3,
    "bwd_weight_two_stage": BWD_WEIGHT_TWO_STAGE,
    "bwd_data": BWD_DATA,
    "bwd_data_long": BWD_DATA_LONG,
    "stream_k": STREAM_K,
    "explicit": EXPLICIT,
    "depthwise": DEPTHWISE,
}


def _row(tile: str, warps: str, inner: str, vectors: str, pipeline: str, **more: object) -> dict[str, object]:
    """Return an instance's fields; triples are written as ``128x128x32``."""
    groups = {"tile_": tile, "warp_": warps, "warp_tile_": inner}
    row: dict[str, object] = {
        f"{prefix}{axis}": int(value)
        for prefix, triple in groups.items()
        for axis, value in zip("mnk", triple.split("x"), strict=True)
    }
    row |= {f"vector_size_{x}": int(v) for x, v in zip("abc", vectors.split("x"), strict=True)}
    plain = {
        "scheduler": "intrawave",
        "epilogue": "cshuffle",
        "double_smem_buffer": False,
        "num_groups_to_merge": 1,
        "num_wave_groups": 1,
        "specialization": "default",
        "two_stage": False,
        "explicit_gemm": False,
        "split_image": False,
        "streamk_enabled": False,
        "streamk_reduction_strategy": "",
        "streamk_persistent": False,
    }
    return row | {"pipeline": pipeline} | plain | more


EXPECTED: dict[str, dict[str, object]] = {
    "forward_v3": _row("128x128x32", "2x2x1", "32x32x8", "8x8x8", "compv4", double_smem_buffer=True),
    "forward": _row("64x128x32", "2x2x1", "32x32x8", "8x8x8", "compv1"),
    "forward_large": _row("128x128x32", "2x2x1", "32x32x8", "8x8x8", "compv1", split_image=True),
    "bwd_weight": _row("128x32x32", "2x1x1", "32x32x8", "8x2x2", "compv1"),
    "bwd_weight_v3": _row("16x32x64", "1x2x1", "16x16x16", "8x8x4", "compv1"),
    "bwd_weight_two_stage": _row(
        "32x32x32", "1x1x1", "32x32x8", "2x2x1", "mem", two_stage=True, num_groups_to_merge=2
    ),
    "bwd_data": _row("64x128x32", "2x2x1", "32x32x8", "1x4x1", "compv1"),
    "bwd_data_long": _row(
        "128x128x32", "2x2x1", "32x32x8", "8x8x8", "compv1", specialization="filter1x1_stride1_pad0"
    ),
    "stream_k": _row(
        "32x16x64", "2x1x1", "16x16x16", "4x2x2", "compv1", streamk_enabled=True, streamk_reduction_strategy=2
    ),
    "explicit": _row(
        "32x16x64", "2x1x1", "16x16x16", "2x2x1", "mem", scheduler="interwave", explicit_gemm=True, two_stage=True,
        specialization="filter1x1_stride1_pad0",
    ),
    "depthwise": {
        "tile_h": 16, "tile_w": 16, "filt": 3, "str_h": 1, "str_w": 1, "pad_h": 1, "pad_w": 1, "nbatch": 8,
        "sub_h": 1, "sub_w": 4, "in_vec": 8, "out_vec": 8,
    },
}  # fmt: skip
