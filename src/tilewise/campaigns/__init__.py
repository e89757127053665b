"""Campaigns: decide on measurements, as a plan for `tilewise.collect`, and judge the table that comes back.

:mod:`~tilewise.campaigns.plan` chooses problems and kernels to measure next, :mod:`~tilewise.campaigns.search` looks
for kernels outside the pool, :mod:`~tilewise.campaigns.validate` checks a model on measurements. They import collect,
data, evaluate, model and train; they never measure, and never import registry or dispatch. Used by the command line.
"""

from __future__ import annotations

__all__: list[str] = []
