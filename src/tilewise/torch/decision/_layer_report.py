"""The report on an optimised network: for each layer its problems, the picks, the expected times, and the decision."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tilewise.torch.decision._host_costs import HostCost, LaunchForm


@dataclass(frozen=True)
class PassReport:
    """One computation of a layer, forward or a gradient, of one shape.

    Attributes:
        target: name of the target.
        problem: its dimensions.
        calls: how often the layer computes it while the example runs.
        pick: name of the pick; "" without a model.
        pytorch_ms: time of PyTorch's own call, with its predicted passes over the result, for a convolution's bias and
            for the layers that the pick computes too; None if it is unknown.
        expected_ms: time of the pick, with the pass that it may need.
        why_unknown: why the times cannot be compared; "" if they can.
        form: how the host launches the pick; None if the times cannot be compared.
        is_measured: whether the times of both calls were measured on this machine; otherwise they are predicted.
    """

    target: str
    problem: Mapping[str, int | str]
    calls: int
    pick: str
    pytorch_ms: float | None
    expected_ms: float | None
    why_unknown: str = ""
    form: LaunchForm | None = None
    is_measured: bool = False


@dataclass(frozen=True)
class LayerReport:
    """The decision on one layer.

    Attributes:
        name: the layer's name in the network.
        passes: its computations; empty if PyTorch has to compute the layer.
        replaced: whether selected kernels compute it from now on.
        reason: why it was replaced, or left to PyTorch.
        fused: the parts after it that its kernel computes: ``residual``, an activation.
        in_one_launch: whether it prefers kernels that one light launch runs, as the host is short of time.
    """

    name: str
    passes: tuple[PassReport, ...]
    replaced: bool
    reason: str
    fused: tuple[str, ...] = ()
    in_one_launch: bool = False

    @property
    def pytorch_ms(self) -> float | None:
        """Time of PyTorch's own calls; None if one is unknown."""
        times = [p.calls * p.pytorch_ms for p in self.passes if p.pytorch_ms is not None]
        return sum(times) if self.passes and len(times) == len(self.passes) else None

    @property
    def expected_ms(self) -> float | None:
        """Expected time of the layer as it is now; None if it is unknown."""
        if not self.replaced:
            return self.pytorch_ms
        return sum(p.calls * p.expected_ms for p in self.passes if p.expected_ms is not None)


@dataclass(frozen=True)
class OptimizeReport:
    """The decisions on a network. Times of layers are those of the GPU alone, measured or predicted.

    Attributes:
        layers: the convolutions and linear layers, in the network's order.
        folded: (convolution, batch normalisation) that are computed as one layer for inference.
        why_not_folded: why nothing was folded or fused; "" otherwise.
        models: identity of the dispatcher by target, see :attr:`tilewise.dispatch.Dispatcher.identity`.
        host: host time of an eager call by kind of layer and form of launch, and of the rest of a pass; empty if no
            decision depends on it.
        norms: batch normalisations that kernels compute in training, with the parts after them, as in `fused`.
    """

    layers: tuple[LayerReport, ...]
    folded: tuple[tuple[str, str], ...]
    why_not_folded: str
    models: Mapping[str, str]
    host: Mapping[str, HostCost] = field(default_factory=dict)
    norms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def pytorch_ms(self) -> float:
        """Time of PyTorch's own calls, over the layers where it is known."""
        return sum(layer.pytorch_ms or 0.0 for layer in self.layers)

    @property
    def expected_ms(self) -> float:
        """Expected time of the same layers as they are now."""
        return sum(layer.expected_ms or 0.0 for layer in self.layers)

    @property
    def digest(self) -> str:
        """Digest of decisions and models; processes of one job compare it to see that they chose alike."""
        layers = [{**asdict(layer), "reason": ""} for layer in self.layers]  # reasons name times of this machine
        text = json.dumps([layers, self.folded, dict(self.norms), dict(self.models)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, with the totals."""
        return {**asdict(self), "pytorch_ms": self.pytorch_ms, "expected_ms": self.expected_ms, "digest": self.digest}

    def __str__(self) -> str:
        """Return a line for each layer, and the totals."""
        lines = [
            f"{layer.name}: {'replaced' if layer.replaced else 'left'}, {_milliseconds(layer.pytorch_ms)} -> "
            f"{_milliseconds(layer.expected_ms)} ms: {layer.reason}"
            for layer in self.layers
        ]
        lines += [f"{conv}: {norm} is folded into it" for conv, norm in self.folded]
        lines += [f"{layer.name}: computes {' and '.join(layer.fused)} too" for layer in self.layers if layer.fused]
        lines += [f"{norm}: kernels compute it{_with(parts)}" for norm, parts in self.norms.items()]
        lines += [
            f"{name}: an eager call takes the host {cost.kernel_ms:.4f} ms, {cost.pytorch_ms:.4f} ms by PyTorch"
            for name, cost in self.host.items()
        ]
        if self.why_not_folded:
            lines.append(f"nothing is folded or fused: {self.why_not_folded}")
        known = [layer for layer in self.layers if layer.pytorch_ms is not None]
        replaced = sum(layer.replaced for layer in self.layers)
        lines.append(
            f"{replaced} of {len(self.layers)} layers are replaced; {_milliseconds(self.pytorch_ms)} -> "
            f"{_milliseconds(self.expected_ms)} ms expected, over the {len(known)} layers whose times are known"
        )
        return "\n".join(lines)


def _with(parts: Sequence[str]) -> str:
    return f" and {' and '.join(parts)} after it" if parts else ""


def _milliseconds(value: float | None) -> str:
    return "?" if value is None else f"{value:.4f}"
