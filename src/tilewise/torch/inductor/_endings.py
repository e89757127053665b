"""Nodes after a convolution or product that its kernel can compute in its own store."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import fx

from tilewise.kernels import EPILOGUE_VARIANTS, EpilogueKind
from tilewise.torch.inductor._activation_patterns import activation_of
from tilewise.torch.inductor._sites import CONVOLUTION, CONVOLUTION_BACKWARD, PRODUCTS, Site, value_of

aten = torch.ops.aten
_VIEWS = (aten.reshape.default, aten.view.default)
_MOVES = (*_VIEWS, aten.permute.default, aten.transpose.int, aten.squeeze.dim, aten.unsqueeze.default)
# Calls of libraries, into which a compiler fuses nothing: their operands are written to memory.
_CLOSED = (CONVOLUTION, CONVOLUTION_BACKWARD, *PRODUCTS, aten.bmm.default, aten.baddbmm.default)
_CLOSED_NAMESPACE = "tilewise"


@dataclass(frozen=True)
class Ending:
    """The end of a computation that begins at a site.

    Attributes:
        bias: node of the bias.
        residual: node of the residual.
        activation: the activation; "" for none.
        nodes: the nodes that are computed, the site's first; the last one's value is the result.
    """

    bias: fx.Node | None
    residual: fx.Node | None
    activation: str
    nodes: tuple[fx.Node, ...]

    @property
    def kind(self) -> EpilogueKind:
        """The part that decides the program."""
        return EpilogueKind(self.bias is not None, self.residual is not None, self.activation)

    def then(self, *nodes: fx.Node) -> Ending:
        """Return the ending with more nodes."""
        return replace(self, nodes=(*self.nodes, *nodes))


def endings_of(site: Site) -> tuple[Ending, ...]:
    """Return every end that the site's kernel can compute, each longer than the one before."""
    plain = Ending(site.bias, site.residual, "", (site.node,))
    if (site.problem.op, site.variant) not in EPILOGUE_VARIANTS:
        return (plain,)
    found, ending = [plain], plain
    while not ending.activation and (longer := _longer(site, ending)) is not None:
        if longer.kind != ending.kind:
            found.append(longer)
        ending = longer
    return tuple(found)


def is_written(node: fx.Node) -> bool:
    """Return whether a compiler writes the value to memory as it is, for libraries' calls, instead of fusing it on."""
    users = list(node.users)
    return all(is_written(user) if user.target in _MOVES else _is_closed(user) for user in users)


def _is_closed(node: fx.Node) -> bool:
    if node.op == "output" or node.target in _CLOSED:
        return True
    return getattr(node.target, "namespace", "") == _CLOSED_NAMESPACE or "attention" in str(node.target)


def _longer(site: Site, ending: Ending) -> Ending | None:
    """Return the ending with the next node or activation, or None."""
    last = ending.nodes[-1]
    if len(last.users) == 1:
        user = next(iter(last.users))
        if site.is_product and user.target in _VIEWS and value_of(user).shape[-1] == value_of(last).shape[-1]:
            return ending.then(user)
        if user.target is aten.add.Tensor and not user.kwargs:
            return _with_addition(site, ending, user)
    if (activation := activation_of(last)) is not None:
        return replace(ending.then(*activation.nodes), activation=activation.name)
    return None


def _with_addition(site: Site, ending: Ending, node: fx.Node) -> Ending | None:
    last = ending.nodes[-1]
    other = node.args[1] if node.args[0] is last else node.args[0]
    if not isinstance(other, fx.Node) or other is last:
        return None
    added, before = other.meta.get("val"), value_of(last)
    if not isinstance(added, torch.Tensor) or (added.dtype, added.device) != (before.dtype, before.device):
        return None
    if site.is_product and ending.bias is None and added.shape == before.shape[-1:]:
        return replace(ending.then(node), bias=other)
    if ending.residual is None and added.shape == before.shape:
        return replace(ending.then(node), residual=other)
    return None
