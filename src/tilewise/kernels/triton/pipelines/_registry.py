"""The list of pipelines, by name. Its order decides the order of features, so new ones come last."""

from __future__ import annotations

from tilewise.kernels.triton._pipeline import Pipeline
from tilewise.kernels.triton.pipelines._box import BOX
from tilewise.kernels.triton.pipelines._flat import FLAT
from tilewise.kernels.triton.pipelines._merged import MERGED
from tilewise.kernels.triton.pipelines._mergedbox import MERGEDBOX
from tilewise.kernels.triton.pipelines._patch import PATCH
from tilewise.kernels.triton.pipelines._persistent import PERSISTENT
from tilewise.kernels.triton.pipelines._plain import PLAIN
from tilewise.kernels.triton.pipelines._point import POINT
from tilewise.kernels.triton.pipelines._relay import RELAY
from tilewise.kernels.triton.pipelines._slide import SLIDE
from tilewise.kernels.triton.pipelines._taps import TAPS
from tilewise.kernels.triton.pipelines._tma import TMA
from tilewise.kernels.triton.pipelines.depthwise import DEPTH, LANES, STRIP

PIPELINES: dict[str, Pipeline] = {
    pipeline.name: pipeline
    for pipeline in (
        TAPS,
        FLAT,
        POINT,
        DEPTH,
        BOX,
        LANES,
        STRIP,
        PLAIN,
        TMA,
        PERSISTENT,
        MERGED,
        MERGEDBOX,
        RELAY,
        SLIDE,
        PATCH,
    )
}


def pipelines_of(op: str, variant: str | None = None) -> tuple[str, ...]:
    """Return the names of the pipelines that compute a variant of an op, or any variant of it if None, in order."""
    return tuple(
        pipeline.name
        for pipeline in PIPELINES.values()
        if any(o == op and variant in (None, v) for o, v in pipeline.variants)
    )
