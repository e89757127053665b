"""The layers of an eager network whose replacement makes a pass shorter.

The host queues launches, and the GPU works them off. So a pass lasts as long as all work of the one or all work of the
other, whichever is more. A kernel that is faster, but costs the host more than PyTorch's call, pays only where the GPU
has more to do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

# Three measurements of one call in a process differed by 14 % (H200's host), so a kernel's host part counts for more.
_HOST_MARGIN = 1.15


class Work(NamedTuple):
    """Milliseconds of the calls of a layer in a pass.

    Attributes:
        pytorch_gpu, pytorch_host: by PyTorch.
        kernel_gpu, kernel_host: with selected kernels.
    """

    pytorch_gpu: float
    pytorch_host: float
    kernel_gpu: float
    kernel_host: float

    @property
    def more_host(self) -> float:
        """Milliseconds that replacing costs the host; negative where it spares some."""
        return self.kernel_host * _HOST_MARGIN - self.pytorch_host

    @property
    def less_gpu(self) -> float:
        """Milliseconds that replacing spares the GPU."""
        return self.pytorch_gpu - self.kernel_gpu


def worth_launching(works: Mapping[str, Work], faster: Collection[str]) -> set[str]:
    """Return those layers to replace.

    Args:
        works: work of all layers whose times are known, by name.
        faster: the layers that kernels compute faster on the GPU.
    """
    gpu, host = sum(w.pytorch_gpu for w in works.values()), sum(w.pytorch_host for w in works.values())
    free = {name for name in faster if works[name].more_host <= 0}
    gpu -= sum(works[name].less_gpu for name in free)
    host += sum(works[name].more_host for name in free)
    # By the gain for a millisecond of the host; names break ties, so that all processes of a job choose alike.
    by_gain = sorted(set(faster) - free, key=lambda name: (-works[name].less_gpu / works[name].more_host, name))
    chosen = free
    for name in by_gain:
        after = gpu - works[name].less_gpu, host + works[name].more_host
        if max(after) < max(gpu, host):
            gpu, host = after
            chosen.add(name)
    return chosen
