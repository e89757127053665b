"""The decision which layers of a network are replaced, and the report on it.

Times of the GPU are predicted or measured by dispatchers; those of eager calls on the host are measured here. Used by
``tilewise.torch.optimize``. Needs torch and triton.
"""

from __future__ import annotations

from tilewise.torch.decision._host_costs import HostCost, host_ms_of_pass
from tilewise.torch.decision._judge import Judge, Launch, Layer
from tilewise.torch.decision._layer_report import LayerReport, OptimizeReport, PassReport

__all__ = [
    "HostCost",
    "Judge",
    "Launch",
    "Layer",
    "LayerReport",
    "OptimizeReport",
    "PassReport",
    "host_ms_of_pass",
]
