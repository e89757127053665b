"""Dispatchers with made-up predictions, whose kernels really run in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.dispatchers import dispatcher_of
from tilewise.arch import load_arch
from tilewise.dispatch import Comparison, Dispatcher
from tilewise.kernels import EMPTY_KIND, EpilogueKind, pass_ms
from tilewise.kernels.vendor import VENDOR, VendorCall
from tilewise.ops import OPS

KERNELS = {"grouped_conv": "16x16x16_flat_w1_s2_g1_k1", "gemm": "16x16x16_plain_w1_s2_g2_k1"}
CALLS = {"grouped_conv": "vendor_cudnn", "gemm": "vendor_cublas"}
Wins = Callable[[Any], bool]  # problem -> whether our kernel is predicted to be the faster one


class Predicting(Dispatcher):
    """A dispatcher that expects PyTorch to take 2 ms, and our kernel 1 ms where it wins and 3 ms elsewhere.

    Passes are counted as in any dispatcher; those of tiny results take 1.7 us.
    """

    wins: Wins

    def compare_with_pytorch(self, problem: Any, kind: EpilogueKind = EMPTY_KIND) -> Comparison:
        pick, won = self.rank(problem)[0], self.wins(problem)
        left = (
            EMPTY_KIND
            if won
            else VENDOR.leaves(VendorCall(CALLS[problem.op].removeprefix("vendor_")), problem, self.target, kind)
        )
        passes = pass_ms(left, problem, self.target.variant, load_arch("sm90"))
        return Comparison(pick, (1.0 if won else 2.0) + passes, 2.0, not won)


def predicting(wins: Wins = lambda problem: True, ops: tuple[str, ...] = ("grouped_conv", "gemm")) -> list[Dispatcher]:
    """Return a dispatcher for each fp16 target of the interpreter."""
    made: list[Dispatcher] = []
    for op in ops:
        for variant in OPS[op].variants:
            dispatcher = dispatcher_of(op, variant, KERNELS[op], CALLS[op])
            dispatcher.__class__ = Predicting
            dispatcher.wins = wins  # type: ignore[attr-defined]
            made.append(dispatcher)
    return made
