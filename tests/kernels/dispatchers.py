"""Dispatchers without a model over a few kernels, the first of them selected."""

from __future__ import annotations

from tilewise.dispatch import Dispatcher
from tilewise.kernels import Pool, backend
from tilewise.kernels._pool import parse_config
from tilewise.ops import Target


def dispatcher_of(op: str, variant: str, *configs: str, dtype: str = "fp16") -> Dispatcher:
    """Return a dispatcher whose pool has these configurations, legal or not."""
    triton = backend("triton")
    pool = Pool(op, variant, dtype, tuple(parse_config(config, triton) for config in configs))
    return Dispatcher(Target(op, variant, dtype, "sm90"), pool, None)
