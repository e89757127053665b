"""Plan measurements: choose the problems and kernels from which a model learns most, or a trace of calls gains most.

`propose` and `propose_by_value` take measurements so far and an empty or full plan, and give a plan within a time
budget. They import collect, data, features, model and train; they never measure. Used by `tilewise plan`; benchmarks
replay plans on recorded tables with the committee behind them.
"""

from __future__ import annotations

from tilewise.campaigns.plan._choice import KernelChoice, choose_kernels, order_problems
from tilewise.campaigns.plan._committee import COMMITTEE_SETTINGS, Committee, Member, disagreement
from tilewise.campaigns.plan._pairs import Pairs, supported_pairs
from tilewise.campaigns.plan._propose import PlanSettings, Proposal, propose
from tilewise.campaigns.plan._value import Stakes, ValueProposal, propose_by_value

__all__ = [
    "COMMITTEE_SETTINGS",
    "Committee",
    "KernelChoice",
    "Member",
    "Pairs",
    "PlanSettings",
    "Proposal",
    "Stakes",
    "ValueProposal",
    "choose_kernels",
    "disagreement",
    "order_problems",
    "propose",
    "propose_by_value",
    "supported_pairs",
]
