"""Screenshots of MLflow's pages in a real browser, for docs/registry.md.

python -m benchmarks.registry.mlflow_pages --server http://127.0.0.1:5000 --target TARGET [--out docs/images/mlflow]

Needs `pip install playwright` and Chromium (`playwright install chromium`, or the system's with
CHROMIUM=/usr/bin/chromium). Nothing else in tilewise uses them, so they are not among its requirements.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 1600, 1000
WAIT_MS = 120_000
SETTLE_MS = 10_000
UNDISTURBED = (  # without the assistant and the notice that MLflow shows at the first visit
    "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');"
    "localStorage.setItem('_mlflow_promo_modal_dismissed', 'true')"
)


def pages(server: str, target: str) -> dict[str, str]:
    """Return addresses by the name of the picture: pages of the candidate, and the experiment that it was made in."""
    import mlflow

    client: Any = mlflow.MlflowClient(server)
    judged = client.get_model_version_by_alias(target, "candidate")
    experiment = client.get_run(judged.run_id).info.experiment_id
    here, run = f"{server}/#/experiments/{experiment}", judged.run_id
    view = f"{here}/runs?viewStateShareKey=tilewise&workflowType=machine_learning"
    return {
        "runs": view,
        "compare": f"{view}&compareRunsMode=CHART",
        "model": f"{here}/models/{judged.source.removeprefix('models:/')}?workflowType=machine_learning",
        "learning_curve": f"{here}/runs/{run}/artifacts/plots/learning_curve.png",
        "promotion": f"{here}/runs/{run}/artifacts/promotion/promotion.html",
        "against_production": f"{here}/runs/{run}/artifacts/plots/against_production/efficiency.png",
        "version": f"{server}/#/models/{target}/versions/{judged.version}",
    }


def take(addresses: dict[str, str], out: Path) -> None:
    """Write one PNG per page."""
    from playwright.sync_api import sync_playwright  # type: ignore[import-not-found,unused-ignore]

    out.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"args": ["--no-sandbox"]}
    if os.environ.get("CHROMIUM"):
        options["executable_path"] = os.environ["CHROMIUM"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**options, timeout=WAIT_MS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(UNDISTURBED)
        for name, address in addresses.items():
            page.goto("about:blank")
            page.goto(address, wait_until="load")
            page.wait_for_timeout(SETTLE_MS)  # the pages poll the server, so the network never idles
            page.get_by_text("Path:").evaluate_all("found => found.forEach(e => e.style.visibility = 'hidden')")
            page.screenshot(path=out / f"{name}.png")
            print(out / f"{name}.png", flush=True)
        browser.close()


def main() -> None:
    """Find the addresses and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://127.0.0.1:5000")
    parser.add_argument("--target", default="grouped_conv_forward_bf16_sm90")
    parser.add_argument("--out", type=Path, default=Path("docs/images/mlflow"))
    args = parser.parse_args()
    take(pages(args.server, args.target), args.out)


if __name__ == "__main__":
    main()
