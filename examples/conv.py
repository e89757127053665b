"""Select kernels for a convolution and its gradients with one Registry, and launch one where there is a GPU.

python examples/conv.py ARCH [MODELS_FOLDER]
"""

from __future__ import annotations

import sys

from tilewise.dispatch import Registry
from tilewise.ops import GroupedConvProblem

LAYER = GroupedConvProblem(N=32, C=256, K=256, G=1, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)


def main(arch: str, models: str | None = None) -> None:
    """Print the selection for a layer's forward pass and its gradients."""
    with Registry(arch, models=models) as registry:
        for variant in ("forward", "bwd_data", "bwd_weight"):
            selection = registry.select(LAYER, variant=variant, dtype="bf16")
            print(f"{variant}: {selection.kernel_name} ({selection.why})")
        try:
            import torch
        except ImportError:
            return
        if torch.cuda.is_available():
            x = torch.randn(32, 14, 14, 256, device="cuda", dtype=torch.bfloat16)
            w = torch.randn(256, 3, 3, 256, device="cuda", dtype=torch.bfloat16)
            print(f"result: {tuple(registry.run(LAYER, x, w).shape)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
