"""Select kernels for matrix products with one Registry, and launch one where there is a GPU.

python examples/gemm.py ARCH [MODELS_FOLDER]
"""

from __future__ import annotations

import sys

from tilewise.dispatch import Registry


def main(arch: str, models: str | None = None) -> None:
    """Print the selection for a few matrix products."""
    with Registry(arch, models=models) as registry:
        for m in (1, 128, 4096):
            problem = {"M": m, "N": 1536, "K": 4096, "dtype": "bf16"}
            selection = registry.select(problem)
            print(f"M={m}: {selection.kernel_name} ({selection.why})")
            assert registry.is_supported(problem, selection.kernel_name)
        try:
            import torch
        except ImportError:
            return
        if torch.cuda.is_available():
            a, b = (torch.randn(256, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            problem = {"M": 256, "N": 256, "K": 256, "layout": "rrr"}  # the dtype is that of the tensors
            print(f"largest difference: {(registry.run(problem, a, b) - a @ b).abs().max().item()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
