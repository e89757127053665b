"""The Triton programs of grouped convolution, NHWGC x GKYXC -> NHWGK, 2D and 3D, as implicit matrix products.

One module per pipeline; :data:`tilewise.kernels.triton.PIPELINES` names it, and its ``IMPLEMENTATIONS`` hold the
launches by (op, variant). Operands keep their type, sums are fp32. With ``split_k`` above 1 each program sums a share
of K into a workspace, and a second launch adds the shares in a fixed order: results do not depend on timing.
"""

from __future__ import annotations

__all__: list[str] = []
