"""The ways to compute the parts of an eager network by which a pass becomes shortest.

The host queues launches, and the GPU works them off. So a pass lasts as long as all work of the one or all work of the
other, whichever is more. A kernel that is faster, but costs the host more than PyTorch's call, pays only where the GPU
has more to do; one that is slower than another kernel, but costs the host less, where the host has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_LEAST_GAIN = 1e-9  # of a pass: what is less is rounding
_TIE = 1e-3  # weight of the part that is not the longer one: where it is equal, less work is better


class Work(NamedTuple):
    """Milliseconds that the calls of a part, such as a layer, take in a pass, computed in one way."""

    gpu: float
    host: float


def shortest_pass(ways: Mapping[str, Sequence[Work]], rest: Work, host_margin: float = 1.0) -> dict[str, int]:
    """Return for each part the index of its way, 0 for the first.

    The part that shortens the pass most changes its way, again and again until none does. Names break ties, so that all
    processes of a job choose alike.

    Args:
        ways: the work of each part in each way, by name; the first way is PyTorch's.
        rest: everything else in a pass, as far as it is known.
        host_margin: how many times as long as predicted the host's part may last.
    """
    chosen, names = dict.fromkeys(ways, 0), sorted(ways)
    gpu = rest.gpu + sum(of_part[0].gpu for of_part in ways.values())
    host = rest.host + sum(of_part[0].host for of_part in ways.values())
    while True:
        least, best = _length(gpu, host_margin * host) * (1 - _LEAST_GAIN), None
        for name in names:
            now = ways[name][chosen[name]]
            for index, way in enumerate(ways[name]):
                after = _length(gpu - now.gpu + way.gpu, host_margin * (host - now.host + way.host))
                if after < least:
                    least, best = after, (name, index)
        if best is None:
            return chosen
        name, index = best
        now, way = ways[name][chosen[name]], ways[name][index]
        gpu, host = gpu - now.gpu + way.gpu, host - now.host + way.host
        chosen[name] = index


def _length(gpu: float, host: float) -> float:
    return max(gpu, host) + _TIE * min(gpu, host)
