"""The adapter by which ``torch.compile`` takes selected kernels, in networks that know nothing of tilewise.

``enable()`` or ``torch.compile(model, options=options())`` installs a pass over Inductor's graphs. It replaces
convolutions and matrix products, forward and backward, with the bias, residual and activation after them, where the
model predicts a gain over the plain ATen call; nothing is measured (docs/pytorch.md). Inductor's lookup table and its
choices pick among its own templates, and a lowering sees no ending, so neither can do this. Used by applications.
"""

from __future__ import annotations

from tilewise.torch.inductor._graph_pass import GraphPass
from tilewise.torch.inductor._install import TESTED_TORCH, disable, enable, options

__all__ = ["TESTED_TORCH", "GraphPass", "disable", "enable", "options"]
