"""PyTorch's memory formats in which kernels read tensors."""

from __future__ import annotations

import torch

# By number of axes: matrices; tensors of 2D and of 3D convolutions.
STORED_FORMATS = {2: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}
