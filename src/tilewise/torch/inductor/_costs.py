"""Predicted times of the ways in which a site and the nodes after it can be computed in a compiled graph.

A plain ATen call is followed by one pass over its result that computes all of the ending, as Inductor fuses it. The
pass costs nothing where the result is read by a node that Inductor computes anyway and fuses it into.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tilewise.errors import KernelError
from tilewise.kernels import EMPTY_KIND, EpilogueKind, pass_ms
from tilewise.torch._serving import dispatcher_named, warn_no_kernel
from tilewise.torch.inductor._endings import Ending, is_written
from tilewise.torch.inductor._sites import Site

# Predicted gain from which an operator takes the place of PyTorch's call. Lesser ones are within the model's error, and
# Inductor plans the graph around an operator less freely: without a least gain densenet121, resnext50 and r3d_18 were
# 2, 2 and 6 % slower than without tilewise, with it 2 % faster, equal and 2 % slower (H200, bf16, batch 16).
_LEAST_GAIN = 0.1


class Choice(NamedTuple):
    """The fastest way to compute a site.

    Attributes:
        ending: the part that tilewise's operator computes; None where the plain ATen call is as fast or nothing
            compares the two, or where it is hardly slower.
        pytorch_ms: predicted time of the plain call with its pass; None if it is unknown.
        expected_ms: predicted time of the choice.
    """

    ending: Ending | None
    pytorch_ms: float | None = None
    expected_ms: float | None = None


def choose(site: Site, endings: Sequence[Ending], host_ms: float) -> Choice:
    """Return the choice for a site by the model's predictions: a pure function of shapes, models and switches.

    Args:
        site: the site.
        endings: its endings.
        host_ms: the least time of a kernel, which the host takes to launch it.
    """
    dispatcher = dispatcher_named(site.target)
    if dispatcher is None:
        return Choice(None)
    whole, arch = endings[-1], dispatcher.arch
    is_pass_needed = is_written(whole.nodes[-1])

    def left_ms(done: EpilogueKind) -> float:
        return pass_ms(whole.kind.without(done), site.problem, site.variant, arch) if is_pass_needed else 0.0

    try:
        found = [dispatcher.compare_with_pytorch(site.problem, ending.kind) for ending in endings]
    except KernelError as e:
        warn_no_kernel(dispatcher, e)
        return Choice(None)
    if any(f.pick_ms is None or f.pytorch_ms is None for f in found):
        return Choice(None)
    times = [(f.pick_ms or 0.0) + left_ms(e.kind) for f, e in zip(found, endings, strict=True)]
    # PyTorch's products add a bias in the library's call.
    own = EpilogueKind(whole.kind.has_bias) if site.is_product else EMPTY_KIND
    pytorch_ms, expected_ms = (found[0].pytorch_ms or 0.0) + left_ms(own), max(min(times), host_ms)
    if expected_ms >= pytorch_ms * (1 - _LEAST_GAIN):
        return Choice(None, pytorch_ms, pytorch_ms)
    best = max(i for i, time in enumerate(times) if time == min(times))
    return Choice(endings[best], pytorch_ms, expected_ms)
