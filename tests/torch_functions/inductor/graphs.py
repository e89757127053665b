"""A compiler that runs the pass over the graphs that Inductor would see, keeps them, and runs them as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import view_to_reshape

import tilewise.torch as ours
from kernels.dispatchers import dispatcher_of
from tilewise.dispatch import Comparison, Dispatcher
from tilewise.kernels import EMPTY_KIND, EpilogueKind
from tilewise.torch import inductor
from torch_functions.predicting import CALLS, KERNELS, Predicting, predicting

CLOSED = ("tilewise.", "aten.conv", "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
MEMORY = ("prims.inductor_force", "aten.reshape", "aten.permute", "aten.clone")


class Graphs:
    """The rewritten graphs of one function."""

    def __init__(self, launch: str) -> None:
        self.graph_pass = inductor.GraphPass(launch=launch)
        self.forward: list[str] = []
        self.backward: list[str] = []
        self.backend = aot_autograd(
            fw_compiler=self._into(self.forward),
            bw_compiler=self._into(self.backward),
            decompositions=select_decomp_table(),
        )

    def _into(self, names: list[str]) -> Callable[..., Any]:
        def compile_graph(module: torch.fx.GraphModule, _: Any) -> Any:
            view_to_reshape(module)
            self.graph_pass(module.graph)
            module.graph.lint()
            module.recompile()
            calls = [n for n in module.graph.nodes if n.op == "call_function"]
            names.extend(str(node.target).removesuffix(".default") for node in calls)
            return make_boxed_func(module.forward)

        return compile_graph

    def closed(self) -> tuple[Counter[str], Counter[str]]:
        """Return the calls of libraries and of kernels in forward and backward graphs."""
        forward, backward = (Counter(n for n in ns if n.startswith(CLOSED)) for ns in (self.forward, self.backward))
        return forward, backward

    def fused(self) -> list[str]:
        """Return the calls of the forward graph that compute something and are no calls of libraries or kernels."""
        return [n for n in self.forward if not n.startswith(CLOSED + MEMORY)]


def compiled(
    function: Callable[..., Any], *, dynamic: bool = False, launch: str = "eager"
) -> tuple[Callable[..., Any], Graphs]:
    """Return a function compiled with the pass, and its graphs."""
    torch._dynamo.reset()
    graphs = Graphs(launch)
    return torch.compile(function, fullgraph=True, dynamic=dynamic, backend=graphs.backend), graphs


class Decided(Predicting):
    """A dispatcher with the same decision for every problem, which is a part of its identity as a model would be."""

    @property
    def identity(self) -> str:
        return f"{self.target.name} {self.wins(None)}"


def serve(*variants: str) -> Any:
    """Install dispatchers that expect their kernel to beat PyTorch's call for these variants alone."""
    dispatchers = predicting()
    for dispatcher in dispatchers:
        dispatcher.__class__, wins = Decided, dispatcher.target.variant in variants
        dispatcher.wins = lambda problem, wins=wins: wins  # type: ignore[attr-defined]
    return ours.use(*dispatchers)


class Fixed(Dispatcher):
    """A dispatcher with one prediction for its kernel, whatever the epilogue, and one for PyTorch's call."""

    pick_ms: float
    pytorch_ms: float

    def compare_with_pytorch(self, problem: Any, kind: EpilogueKind = EMPTY_KIND) -> Comparison:
        return Comparison(self.rank(problem)[0], self.pick_ms, self.pytorch_ms, False)


def fixed(op: str, pick_ms: float, pytorch_ms: float = 2.0) -> Any:
    """Install a dispatcher of these predictions for the op's results."""
    variant = "forward" if op == "grouped_conv" else "universal"
    dispatcher = dispatcher_of(op, variant, KERNELS[op], CALLS[op])
    dispatcher.__class__ = Fixed
    dispatcher.pick_ms, dispatcher.pytorch_ms = pick_ms, pytorch_ms  # type: ignore[attr-defined]
    return ours.use(dispatcher)
