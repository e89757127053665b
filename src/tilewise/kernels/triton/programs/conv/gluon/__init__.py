"""The programs in Gluon, Triton's language for explicit layouts, barriers and roles of warps, for Hopper.

Triton's interpreter cannot run them.
"""

from __future__ import annotations

__all__: list[str] = []
