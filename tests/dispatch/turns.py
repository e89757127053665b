"""A dispatcher whose models take turns, as refreshes make them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewise.dispatch import Dispatcher, Switches
from tilewise.dispatch._generation import Deployment, Generation
from tilewise.dispatch.measuring import GpuMeasurer
from tilewise.model import TrainedModel


def take_turns(dispatcher: Dispatcher, models: Sequence[TrainedModel]) -> Iterator[TrainedModel]:
    """Swap the dispatcher's model at each step, each a new generation with an empty memory; yield the current model."""
    measurer, version = GpuMeasurer(), 0
    while True:
        for model in models:
            version += 1
            deployment = Deployment(model.target, model.pool, model, version)
            dispatcher._selector.generation = Generation(deployment, Switches(), measurer)
            yield model
