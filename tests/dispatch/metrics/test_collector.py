"""Prometheus gets the dispatcher's own counts; the dashboard shows nothing that no dispatcher exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

pytest.importorskip("prometheus_client", reason="needs the extra metrics")

from prometheus_client import CollectorRegistry

from calibrations import one_bin
from committed import ROOT
from dispatch.shadowing.shadows import Calls, FakeTimer, generation_of
from small_model import table, write_model
from store import fresh_store
from synthetic import CONV, problems
from tilewise.dispatch import Dispatcher, Registry, Switches, _reach
from tilewise.dispatch.metrics import DispatcherCollector
from tilewise.errors import UnknownTargetError
from tilewise.metrics import DEPTH
from tilewise.model import TrainedModel
from tilewise.ops import Target
from tilewise.registry import PRODUCTION, registry_session, set_alias
from tilewise.registry.promotion import publish

SHAPES = problems(Target.parse(CONV), 12)
DASHBOARD = ROOT / "docs" / "dashboards" / "tilewise.json"


def export(*sources: Dispatcher | Registry) -> dict[str, float]:
    """Return the samples that Prometheus would scrape, by name and labels without the target."""
    registry = CollectorRegistry()
    registry.register(DispatcherCollector(*sources))
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            labels = ",".join(f'{k}="{v}"' for k, v in sample.labels.items() if k != "target")
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def serve(dispatcher: Dispatcher, times: int = 1) -> None:
    """Select each shape some times, look for models, and wait for the shadow."""
    for _ in range(times):
        for problem in SHAPES:
            dispatcher.select(problem)
    dispatcher.refresh()
    assert dispatcher._shadow is not None
    dispatcher._shadow.prepare()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    return [write_model(root / "bad", trees=10, sign=-1.0), write_model(root / "good", trees=10)]


@pytest.fixture
def shadowed(models: list[Path], tmp_path: Path) -> Iterator[Dispatcher]:
    """Return a dispatcher of the registry that records, shadows and listens to a relay that is not there."""
    uri = fresh_store(tmp_path / "store")
    with registry_session(uri):
        set_alias(publish(models[0]), PRODUCTION)
    recorded = tmp_path / "table.parquet"
    table(failures=0.0).to_parquet(recorded)
    switches = Switches(
        shadow=str(models[1]), shadow_journal=str(tmp_path / "journal"), simulate=str(recorded),
        record=str(tmp_path / "requests"), push="http://127.0.0.1:1",
    )  # fmt: skip
    with Dispatcher.from_registry(CONV, uri=uri, switches=switches) as dispatcher:
        yield dispatcher


@pytest.mark.long
def test_the_export_has_the_counts(shadowed: Dispatcher) -> None:
    serve(shadowed, times=3)
    found = export(shadowed)
    assert found['tilewise_decisions_total{why="model"}'] == len(SHAPES)
    assert found['tilewise_decisions_total{why="fallback"}'] == 0
    assert found['tilewise_requests_total{why="model"}'] == 3 * len(SHAPES)
    assert found["tilewise_remembered_decisions"] == len(SHAPES)
    assert found["tilewise_model_version"] == shadowed.version == 1
    assert found['tilewise_registry_looks_total{result="same"}'] >= 1
    assert found["tilewise_push_connected"] == 0
    assert found["tilewise_model_registered_timestamp_seconds"] <= found["tilewise_model_loaded_timestamp_seconds"]
    states = {s: found[f'tilewise_shadow_problems{{state="{s}"}}'] for s in ("equal", "timed", "waiting", "failed")}
    assert sum(states.values()) == len(SHAPES)
    assert states["timed"] > 0
    assert 0 < found["tilewise_shadow_regret_ratio"] < 1  # the serving model picks slow kernels
    assert found["tilewise_shadow_speed_up_ratio"] > 1


@pytest.mark.long
def test_the_dashboard_shows_only_what_is_exported(shadowed: Dispatcher) -> None:
    serve(shadowed)
    exported = {name.partition("{")[0] for name in export(shadowed)}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    named = {name for panel in panels for t in panel["targets"] for name in re.findall(r"tilewise_\w+", t["expr"])}
    assert named <= exported
    assert exported <= named  # and everything that is exported is shown


@pytest.mark.long
def test_a_failed_look_is_counted_and_a_pool_has_no_version(tmp_path: Path) -> None:
    with registry_session(fresh_store(tmp_path / "store")) as uri:
        pass
    with Dispatcher.from_registry("gemm_universal_bf16_sm90", uri=uri) as dispatcher:
        with pytest.raises(UnknownTargetError, match="is not registered"):
            dispatcher.refresh()
        found = export(dispatcher)
    assert found['tilewise_registry_looks_total{result="failed"}'] == 1
    assert "tilewise_registry_looked_timestamp_seconds" not in found
    assert "tilewise_model_version" not in found


def test_a_registry_exports_the_dispatchers_that_it_has_made(models: list[Path], tmp_path: Path) -> None:
    models[0].rename(tmp_path / CONV)
    with Registry("sm90", models=tmp_path) as registry:
        assert registry.figures() == []
        registry.select(SHAPES[0], dtype="bf16")
        assert [f.decisions["model"] for f in registry.figures()] == [1]
        assert export(registry)['tilewise_decisions_total{why="model"}'] == 1
    (tmp_path / CONV).rename(models[0])


def test_far_shapes_are_counted_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reach, "_MOST", 5)
    keys = np.array([p.group_key for p in SHAPES[:8]])
    calibration = one_bin(keys, 0.0, 1, [np.array([0.1])] * DEPTH)
    reach = _reach.Reach(cast(TrainedModel, SimpleNamespace(calibration=calibration)))
    for checked in (5, 10, 12, 12):
        reach.update(SHAPES)
        assert reach.checked == checked
    strange = {p.group_key for p in SHAPES[8:]} - {p.group_key for p in SHAPES[:8]}
    assert reach.far == sum(p.group_key in strange for p in SHAPES) > 0


def test_regret_is_that_of_the_slower_selection_weighted_by_calls(models: list[Path], tmp_path: Path) -> None:
    calls = Calls(generation_of(models[0]), models[1], tmp_path / "journal", FakeTimer(ratio=0.5), share=1.0)
    for problem in SHAPES:
        calls(problem, 400)
    figures = calls.shadow.figures()
    assert figures.problems["timed"] > 0
    equal = figures.problems["equal"]
    assert figures.regret is not None
    assert figures.speed_up is not None
    if not equal:
        assert figures.regret == pytest.approx(0.5)
        assert figures.speed_up == pytest.approx(2.0)
    else:
        assert 0 < figures.regret < 0.5
