"""The pass over Inductor's ATen graphs that replaces nodes which selected kernels compute faster."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import fx
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

from tilewise import __version__
from tilewise.errors import ProblemError
from tilewise.ops import OPS
from tilewise.torch._serving import DEVICE_TYPE, DTYPES, identity_of
from tilewise.torch.inductor._costs import Choice, choose
from tilewise.torch.inductor._endings import Ending, endings_of
from tilewise.torch.inductor._rewrite import replace_forward, replace_gradients
from tilewise.torch.inductor._sites import Site, backward_sites, forward_site

_log = logging.getLogger(__name__)

_OPS = ("grouped_conv", "gemm")
# More than an operator of tilewise takes the host in compiled code. A constant, so that all ranks choose alike and
# graphs on disk stay valid; docs/pytorch.md has measurements.
_HOST_MS = 0.05

Pass = Callable[[fx.Graph], None]
Previous = Pass | Sequence[Pass] | None


class GraphPass(CustomGraphPass):  # type: ignore[misc] # torch has no types here
    """A pass that replaces convolutions and products with their endings where the model predicts a gain.

    Nodes whose sizes are symbols stay as they are, like those for which there is no model or no plain call to compare.

    Args:
        previous: passes that run first: a value of Inductor's setting, as another library may have installed it.
        launch: ``graph`` if the compiled network is captured in CUDA graphs, where kernels cost the host nothing;
            ``eager`` if not, unless Inductor captures it.

    Attributes:
        seen: number of convolutions, their gradients and products in the graphs so far that kernels can compute.
        replaced: number of those that kernels compute now.
    """

    def __init__(self, previous: Previous = None, launch: str = "eager") -> None:
        self.previous, self.launch = previous, launch
        self.seen = self.replaced = 0

    @property
    def before(self) -> tuple[Pass, ...]:
        """The passes that run first."""
        if isinstance(self.previous, Sequence):
            return tuple(self.previous)
        return () if self.previous is None else (self.previous,)

    def __call__(self, graph: fx.Graph) -> None:
        """Run over the graph of a forward or backward pass."""
        for other in self.before:
            other(graph)
        if config.cpp_wrapper:  # as ahead-of-time compilation sets it: the program runs without Python
            return
        nodes = list(graph.nodes)
        host_ms = 0.0 if self.launch == "graph" or config.triton.cudagraphs else _HOST_MS
        found = [is_replaced for node in nodes if not node._erased for is_replaced in _visit(node, host_ms)]
        self.seen += len(found)
        self.replaced += sum(found)
        if found:
            _log.info("kernels compute %d of the graph's %d convolutions and products", sum(found), len(found))

    def uuid(self) -> str | None:
        """Return the identity of the pass for the keys of compiled graphs; None if another pass has no identity.

        It changes with the models and switches of the dispatchers, and with the code that decides.
        """
        others = [getattr(other, "uuid", lambda: None)() for other in self.before]
        if any(identity is None for identity in others):
            return None
        models = [identity_of(op, OPS[op].variants, dtype, d) for d in _devices() for op in _OPS for dtype in DTYPES]
        return hashlib.sha256(repr((__version__, _code(), models, others, self.launch)).encode()).hexdigest()


def _visit(node: fx.Node, host_ms: float) -> Iterator[bool]:
    """Replace a node or its parts where that pays, and yield for each computation whether it was replaced."""
    try:
        site, gradients = forward_site(node), list(backward_sites(node))
    except ProblemError as e:  # PyTorch computes it
        _log.info("%s poses no problem of tilewise: %s", node.name, e)
        return
    if site is not None:
        choice = _choose(site, host_ms)
        if choice.ending is not None:
            replace_forward(site, choice.ending)
        yield choice.ending is not None
    replaced = [gradient for gradient in gradients if _choose(gradient, host_ms).ending is not None]
    yield from (gradient in replaced for gradient in gradients)
    if replaced:
        replace_gradients(node, replaced)


def _choose(site: Site, host_ms: float) -> Choice:
    choice = choose(site, endings_of(site), host_ms)
    done = "left to ATen" if choice.ending is None else f"by {site.target} with {_shown(choice.ending)}"
    _log.debug("%s: %s -> %s ms, %s", site.node.name, choice.pytorch_ms, choice.expected_ms, done)
    return choice


def _shown(ending: Ending) -> str:
    kind = ending.kind
    parts = (("bias" if kind.has_bias else ""), ("residual" if kind.has_residual else ""), kind.activation)
    return " and ".join(part for part in parts if part) or "no ending"


def _devices() -> list[torch.device]:
    if DEVICE_TYPE == "cpu":
        return [torch.device("cpu")]
    return [torch.device(DEVICE_TYPE, index) for index in range(torch.cuda.device_count())]


@cache
def _code() -> str:
    """Return a digest of this package's files."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
