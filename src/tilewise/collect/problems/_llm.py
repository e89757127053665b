"""Matrix products of real language models: projections of a decoder layer, from the models' published configs.

A shape is ``(N, K)`` = (output features, input features) of one linear layer, fused as inference engines fuse them
(``qkv``, ``gate_up``); M is the number of tokens. ``tp8`` marks one of eight tensor-parallel shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Projection:
    """Linear layer of a model, ``y[M, N] = x[M, K] @ w[N, K].T``."""

    model: str
    name: str
    N: int
    K: int

    @property
    def origin(self) -> str:
        """Name of the layer, ``model/projection``."""
        return f"{self.model}/{self.name}"


@dataclass(frozen=True)
class _Decoder:
    """Sizes, as in its config, of a decoder with grouped-query attention and a gated MLP."""

    hidden: int
    query: int  # heads x head size
    key_value: int  # key-value heads x head size
    intermediate: int  # of the MLP, or of one expert
    shares: int = 1

    def projections(self) -> dict[str, tuple[int, int]]:
        h, s = self.hidden, self.shares
        return {
            "qkv": ((self.query + 2 * self.key_value) // s, h),
            "o": (h, self.query // s),
            "gate_up": (2 * self.intermediate // s, h),
            "down": (h, self.intermediate // s),
        }


# hidden_size, num_attention_heads x head_dim, num_key_value_heads x head_dim, (moe_)intermediate_size
_DECODERS = {
    "llama3.2-1b": _Decoder(2048, 32 * 64, 8 * 64, 8192),
    "llama3.2-3b": _Decoder(3072, 24 * 128, 8 * 128, 8192),
    "llama3-8b": _Decoder(4096, 32 * 128, 8 * 128, 14336),
    "llama3-70b": _Decoder(8192, 64 * 128, 8 * 128, 28672),
    "llama3-70b-tp8": _Decoder(8192, 64 * 128, 8 * 128, 28672, shares=8),
    "llama3-405b-tp8": _Decoder(16384, 128 * 128, 8 * 128, 53248, shares=8),
    "qwen2.5-0.5b": _Decoder(896, 14 * 64, 2 * 64, 4864),
    "qwen2.5-1.5b": _Decoder(1536, 12 * 128, 2 * 128, 8960),
    "qwen2.5-7b": _Decoder(3584, 28 * 128, 4 * 128, 18944),
    "qwen2.5-14b": _Decoder(5120, 40 * 128, 8 * 128, 13824),
    "qwen2.5-72b": _Decoder(8192, 64 * 128, 8 * 128, 29568),
    "qwen3-0.6b": _Decoder(1024, 16 * 128, 8 * 128, 3072),
    "qwen3-8b": _Decoder(4096, 32 * 128, 8 * 128, 12288),
    "qwen3-32b": _Decoder(5120, 64 * 128, 8 * 128, 25600),
    "qwen3-30b-a3b": _Decoder(2048, 32 * 128, 4 * 128, 768),
    "qwen3-235b-a22b": _Decoder(4096, 64 * 128, 4 * 128, 1536),
    "mixtral-8x7b": _Decoder(4096, 32 * 128, 8 * 128, 14336),
    "mixtral-8x22b": _Decoder(6144, 48 * 128, 8 * 128, 16384),
}

# Layers that _Decoder does not cover: latent attention, routers, vocabularies.
_OTHERS = {
    "deepseek-v3": {  # and R1: 128 heads, 128 + 64 wide, values 128 wide; latents 1536 and 512
        "q_a": (1536, 7168),
        "q_b": (128 * 192, 1536),
        "kv_a": (512 + 64, 7168),
        "qkv_a": (1536 + 512 + 64, 7168),
        "kv_b": (128 * 256, 512),
        "o": (7168, 128 * 128),
        "gate": (18432, 7168),
        "gate_up": (2 * 18432, 7168),
        "down": (7168, 18432),
        "expert_gate_up": (2 * 2048, 7168),
        "expert_down": (7168, 2048),
        "router": (256, 7168),
    },
    "deepseek-v3-tp8": {
        "q_b": (128 * 192 // 8, 1536),
        "kv_b": (128 * 256 // 8, 512),
        "gate_up": (2 * 18432 // 8, 7168),
        "down": (7168, 18432 // 8),
        "vocabulary": (129280 // 8, 7168),
    },
    "deepseek-v2-lite": {
        "q": (16 * 192, 2048),
        "kv_a": (512 + 64, 2048),
        "kv_b": (16 * 256, 512),
        "expert_gate_up": (2 * 1408, 2048),
        "expert_down": (2048, 1408),
    },
    "llama3-8b": {"vocabulary": (128256, 4096)},
    "qwen3-30b-a3b": {"router": (128, 2048)},
    "mixtral-8x7b": {"router": (8, 4096)},
}


def projections() -> Iterator[Projection]:
    """Yield every projection of every model; two models may share a shape."""
    for model, decoder in _DECODERS.items():
        for name, (n, k) in decoder.projections().items():
            yield Projection(model, name, n, k)
    for model, shapes in _OTHERS.items():
        for name, (n, k) in shapes.items():
            yield Projection(model, name, n, k)
