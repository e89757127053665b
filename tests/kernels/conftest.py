"""Without a GPU, Triton's interpreter runs the kernels; it must be chosen before triton is imported."""

from __future__ import annotations

import os

try:
    import torch
except ImportError:
    pass  # the rules and pools are tested without it
else:
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
