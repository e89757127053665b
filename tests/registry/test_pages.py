"""MLflow's pages in a real browser: what a person finds there, and that the pages lead to each other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import mlflow
import pytest

from logged import log_training
from registry.server import mlflow_server
from small_model import table
from synthetic import CONV
from tilewise.arch import load_arch
from tilewise.gate import Thresholds
from tilewise.model import write_artefact
from tilewise.ops import Target
from tilewise.registry import PRODUCTION, Version, find_by_alias, registry_session
from tilewise.registry.promotion import Override, PromotionRules, promote
from tilewise.train import ModelSettings, TrainSettings, TuneSettings, pool_of, train

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
sync_api = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright: pip install it")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser: install chromium, or name one in CHROMIUM"),
]

TRAINING = "workflowType=machine_learning"
WAIT_MS = 60_000

See = Callable[..., None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server with a training whose model is in production."""
    folder = tmp_path_factory.mktemp("pages")
    target, frame = Target.parse(CONV), table()
    settings = TrainSettings(
        model=ModelSettings(n_estimators=8, num_leaves=7),
        tune=TuneSettings(n_trials=0),
        n_splits=2,
        threads=1,
        holdout_fraction=0.18,
    )
    result = train(frame, target, pool_of(frame, target), load_arch(target.arch), settings)
    write_artefact(folder / "model", result.parts)
    rules = PromotionRules(Thresholds(min_problems=5), 0.18, override=Override("small tables of tests"))
    with mlflow_server(folder) as uri:
        with registry_session(uri):
            log_training(result, folder / "model")
            assert promote(folder / "model", frame, rules, folder / "reports").in_production
        yield uri


@pytest.fixture(scope="module")
def see(server: str) -> Iterator[See]:
    """Return a function that opens a page, follows a link or clicks there, and waits for texts."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=WAIT_MS)
        context = browser.new_context(viewport={"width": 1900, "height": 1200})
        context.add_init_script(
            "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');"
            "localStorage.setItem('_mlflow_promo_modal_dismissed', 'true')"
        )

        def look(address: str, *texts: str, link: str = "", click: str | None = None, lacks: str | None = None) -> None:
            page = context.new_page()
            page.set_default_timeout(WAIT_MS)
            page.goto(f"{server}/{address}")
            if link:  # which would open another tab
                page.goto(f"{server}/{page.get_by_role('link', name=link, exact=True).first.get_attribute('href')}")
            if click is not None:
                page.locator(click).first.click()

            for text in texts:
                page.get_by_text(text).first.wait_for(timeout=20_000)
            if lacks is not None:
                assert page.get_by_text(lacks).count() == 0
            page.close()

        yield look
        browser.close()


@pytest.fixture
def version(server: str) -> Iterator[Version]:
    with registry_session(server):
        found = find_by_alias(CONV, PRODUCTION)
        assert found is not None
        yield found


def test_the_experiment_links_its_view_with_columns_and_charts(server: str, see: See) -> None:
    with registry_session(server):
        experiment = mlflow.get_experiment_by_name(CONV)
    assert experiment is not None
    here = f"#/experiments/{experiment.experiment_id}/runs?{TRAINING}"
    see(here, "Mean, P10, worst problem and gate of the trainings")
    columns = [f"{stage}/{name}_efficiency" for stage in ("cv", "holdout") for name in ("mean", "p10", "min")]
    see(here, *columns, "gate_decision", "promoted", link="table")
    see(here, "Comparison", *columns, link="charts")


def test_a_logged_model_shows_version_dataset_and_figures(see: See, version: Version) -> None:
    run = mlflow.get_run(str(version.run_id))
    page = f"#/experiments/{run.info.experiment_id}/models/{version.model_id}?{TRAINING}"
    digest = run.data.tags["tilewise.data_hash"][:32]
    texts = ("Model versions", "v1", f"{CONV} (#{digest})", "cv/p10_efficiency", "holdout/p10_efficiency")
    see(page, *texts, lacks="Not registered")
    see(page, "latency_ms", "double", "string", click=f"text={CONV} (#{digest})")


def test_a_run_shows_its_model_and_no_bookkeeping(see: See, version: Version) -> None:
    run = mlflow.get_run(str(version.run_id))
    page = f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}?{TRAINING}"
    see(page, "Registered models", "v1", "holdout/p10_efficiency", lacks=f"{CONV}.history")


def test_registered_models_say_what_they_are(see: See) -> None:
    see(f"#/models/{CONV}", "Selects the fastest kernel for grouped_conv forward", "tilewise.dtype", "bf16")
    see(f"#/models/{CONV}.history", "No model: the history of what")
    models = "#/models?searchInput=tags.%60tilewise.kind%60%3D%27model%27"
    see(models, CONV, "Version 1", lacks=f"{CONV}.history")
