"""Figures of a dispatcher for monitoring: counts that its slow paths keep, read when somebody asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewise.dispatch._refresher import Refresher
from tilewise.dispatch._runner import Runner
from tilewise.dispatch._selector import Selector

if TYPE_CHECKING:
    from tilewise.dispatch.shadowing import Shadow, ShadowFigures


@dataclass(frozen=True)
class Figures:
    """Counts since the dispatcher was made, and its present state. Times are seconds since 1970.

    Attributes:
        target: the target's name.
        version: the model's number in the registry; None for models from elsewhere.
        content_hash: of the model's files; "" without a model.
        registered_at: when the version was registered; None if the registry did not say.
        loaded_at: when the model began to serve.
        decisions: new problems by who decided: ``model``, ``cache``, ``measured``, ``fallback``.
        requests: all requests likewise; empty unless the switch `record` counts them.
        remembered: number of remembered decisions.
        launch_failures: kernels that could not be launched, so that the next in rank was.
        looks: looks for a newer model by result: ``new``, ``same``, ``failed``.
        looked_at: time of the last look that did not fail; None before.
        push_connected: whether the relay's stream is there; None without the switch `push`.
        push_events: number of the relay's events.
        shapes_checked: decided problems whose distance to the training data is known.
        shapes_far: those beyond the reach of the model's calibration.
        shadow: figures of the shadow; None without one.
    """

    target: str
    version: int | None
    content_hash: str
    registered_at: float | None
    loaded_at: float
    decisions: Mapping[str, int]
    requests: Mapping[str, int]
    remembered: int
    launch_failures: int
    looks: Mapping[str, int]
    looked_at: float | None
    push_connected: bool | None
    push_events: int
    shapes_checked: int
    shapes_far: int
    shadow: ShadowFigures | None


def read_figures(selector: Selector, refresher: Refresher, runner: Runner, shadow: Shadow | None) -> Figures:
    """Return the figures of a dispatcher's parts; a call computes a few distances of new problems, 10 ms at most."""
    generation, listener = selector.generation, refresher.listener
    generation.reach.update(generation.decisions)
    registered_ms = generation.registered_ms
    return Figures(
        target=generation.target.name,
        version=generation.version,
        content_hash=generation.content_hash or "",
        registered_at=registered_ms / 1e3 if registered_ms else None,
        loaded_at=generation.loaded_at,
        decisions=dict(selector.decisions),
        requests=selector.requests,
        remembered=len(generation.decisions),
        launch_failures=runner.failures,
        looks=dict(refresher.looks),
        looked_at=refresher.looked_at,
        push_connected=None if listener is None else listener.is_connected,
        push_events=0 if listener is None else listener.events,
        shapes_checked=generation.reach.checked,
        shapes_far=generation.reach.far,
        shadow=None if shadow is None else shadow.figures(),
    )
