"""The collector: figures of dispatchers as families of metrics. docs/fleet.md lists and explains them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tilewise.dispatch import Dispatcher, Figures, Registry
from tilewise.dispatch.shadowing import ShadowFigures

Values = Iterable[tuple[tuple[str, ...], float]]  # of further labels


class Family(NamedTuple):
    """A metric.

    Attributes:
        name: without the prefix, and without the ``_total`` that counters get.
        help: its meaning in a line.
        values: returns the values of a dispatcher, by further labels.
        labels: names of the further labels, beside ``target``.
        is_counter: whether it only grows.
    """

    name: str
    help: str
    values: Callable[[Figures], Values]
    labels: tuple[str, ...] = ()
    is_counter: bool = False


def _one(value: float | None) -> Values:
    return [] if value is None else [((), float(value))]


def _by_key(values: Mapping[str, int]) -> Values:
    return [((key,), float(value)) for key, value in values.items()]


def _info(f: Figures) -> Values:
    version = "" if f.version is None else str(f.version)
    return [((version, f.content_hash[:12]), 1.0)]


def _shadow(value: Callable[[ShadowFigures], float | None]) -> Callable[[Figures], Values]:
    return lambda f: [] if f.shadow is None else _one(value(f.shadow))


def _shadow_problems(f: Figures) -> Values:
    return [] if f.shadow is None else _by_key(f.shadow.problems)


FAMILIES = (
    Family("decisions", "New problems by who decided", lambda f: _by_key(f.decisions), ("why",), True),
    Family("requests", "Requests by who answered (switch record)", lambda f: _by_key(f.requests), ("why",), True),
    Family("remembered_decisions", "Decisions kept in memory", lambda f: _one(f.remembered)),
    Family("launch_failures", "Kernels that failed to launch", lambda f: _one(f.launch_failures), (), True),
    Family("model", "The model that serves", _info, ("version", "content_hash")),
    Family("model_version", "Its version in the registry", lambda f: _one(f.version)),
    Family("model_registered_timestamp_seconds", "When it was registered", lambda f: _one(f.registered_at)),
    Family("model_loaded_timestamp_seconds", "When it began to serve", lambda f: _one(f.loaded_at)),
    Family("registry_looks", "Looks for a newer model by result", lambda f: _by_key(f.looks), ("result",), True),
    Family("registry_looked_timestamp_seconds", "The last look that did not fail", lambda f: _one(f.looked_at)),
    Family("push_connected", "Whether the relay's stream is there", lambda f: _one(f.push_connected)),
    Family("push_events", "Events of the relay", lambda f: _one(f.push_events), (), True),
    Family("shapes_checked", "Decided problems with a known distance", lambda f: _one(f.shapes_checked)),
    Family("shapes_far", "Those far from the training data", lambda f: _one(f.shapes_far)),
    Family("shadow_problems", "Compared problems by state", _shadow_problems, ("state",)),
    Family("shadow_regret_ratio", "Measured regret of production", _shadow(lambda s: s.regret)),
    Family("shadow_speed_up_ratio", "Speed-up of the candidate", _shadow(lambda s: s.speed_up)),
    Family("shadow_served_seconds", "GPU time of calls", _shadow(lambda s: s.served_s), (), True),
    Family("shadow_timing_seconds", "GPU time of timing", _shadow(lambda s: s.spent_s), (), True),
)  # fmt: skip


class DispatcherCollector(Collector):
    """A collector of dispatchers' figures for ``prometheus_client.REGISTRY.register``.

    Args:
        sources: dispatchers, and registries with the dispatchers that they will have made by then.
    """

    def __init__(self, *sources: Dispatcher | Registry) -> None:
        self._sources = sources

    def describe(self) -> Iterable[Metric]:
        """Return no names in advance: registering must not read figures."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all dispatchers."""
        figures = [f for source in self._sources for f in _figures_of(source)]
        for family in FAMILIES:
            kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
            metric = kind(f"tilewise_{family.name}", family.help, labels=["target", *family.labels])
            for f in figures:
                for labels, value in family.values(f):
                    metric.add_metric([f.target, *labels], value)
            yield metric


def _figures_of(source: Dispatcher | Registry) -> list[Figures]:
    return source.figures() if isinstance(source, Registry) else [source.figures()]
