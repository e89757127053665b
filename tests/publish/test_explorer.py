"""The explorer shows the evaluation's selections, is small and self-contained, and works in a browser without a net."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from publish.test_tables import ROOT
from small_model import table, with_vendor, write_model
from tilewise.cli.main import main
from tilewise.errors import DataError
from tilewise.evaluate import Evaluation, evaluate
from tilewise.model import TrainedModel, load_artefact
from tilewise.publish import explorer_data, explorer_page, render

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
FRACTION = 0.5
COMMITTED = ROOT / "docs/explorer-grouped_conv_forward_bf16_sm90.html"


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return with_vendor(table())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return load_artefact(write_model(tmp_path_factory.mktemp("model") / "m", vendor=True))


@pytest.fixture(scope="module")
def evaluation(model: TrainedModel, frame: pd.DataFrame) -> Evaluation:
    return evaluate(model, frame, FRACTION, require_unseen=False)


def embedded(page: str) -> dict[str, Any]:
    """Return the data inside a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_fields_are_the_evaluation_s(model: TrainedModel, frame: pd.DataFrame, evaluation: Evaluation) -> None:
    data: dict[str, Any] = explorer_data(model, frame, FRACTION)
    names, vendor = data["kernels"], set(data["vendor"])
    assert [names[i] for i in vendor] == ["vendor_cudnn"]
    assert len(data["problems"]) == len(evaluation.per_problem)
    for shown, (_, row) in zip(data["problems"], evaluation.per_problem.iterrows(), strict=True):
        kernel, predicted, measured = shown["field"][0]
        assert row["selected"].endswith(names[kernel])
        assert [predicted, measured, shown["best"], shown["efficiency"]] == pytest.approx(
            [row["predicted_tflops"], row["selected_tflops"], row["oracle_tflops"], row["efficiency"]], rel=1e-3
        )
        assert shown["of"] == row["n_kernels"]
        rest = [guess for _, guess, _ in shown["field"][1:]]
        assert rest == sorted(rest, reverse=True)
        assert vendor & {k for k, _, _ in shown["field"]}
        assert row["oracle"].removeprefix("grouped_conv_forward_bf16_") in {names[k] for k, _, _ in shown["field"]}
        assert len(shown["field"]) <= 22


def test_the_page_is_self_contained_and_no_text_ends_its_script(model: TrainedModel, frame: pd.DataFrame) -> None:
    page = explorer_page(model, frame, FRACTION)
    addresses = set(re.findall(r"https?://[^\s\"']+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a format, not a request
    assert not re.search(r"<link|@import|url\(|src=", page)
    data: dict[str, Any] = explorer_data(model, frame, FRACTION)
    assert embedded(page) == data
    hostile = {**data, "target": "</script><b>&", "rule": "</script>"}
    assert render(hostile).count("</script>") == page.count("</script>")
    assert embedded(render(hostile)) == hostile


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_texts_and_marks_stand_out_in_both_modes(mode: int) -> None:
    """WCAG 2.1 asks for a contrast of 4.5 for texts, and of 3 for graphics (1.4.3, 1.4.11)."""
    template = (ROOT / "src/tilewise/publish/explorer.html").read_text()
    colours = dict(re.findall(r"--(\w+): (#\w+)", re.findall(r":root \{(.*?)\}", template, re.DOTALL)[mode]))
    light = {name: luminance(colour) for name, colour in colours.items()}
    for name, least in (("text", 4.5), ("dim", 4.5), ("own", 3.0), ("fair", 3.0), ("poor", 3.0), ("mark", 3.0)):
        low, high = sorted((light[name], light["page"]))
        assert (high + 0.05) / (low + 0.05) >= least, name


def luminance(colour: str) -> float:
    """Return the relative luminance of #rgb or #rrggbb, by WCAG 2.1."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_a_table_without_a_problem_of_the_holdout_is_refused(model: TrainedModel, frame: pd.DataFrame) -> None:
    with pytest.raises(DataError, match=r"no problem of .* to show"):
        explorer_data(model, frame, 0.0)


@pytest.mark.long
def test_evaluate_writes_the_page(
    model: TrainedModel, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame.to_parquet("table.parquet")
    words = ["evaluate", f"model_dir={model.where}", "data=table.parquet", "holdout.fraction=0"]
    assert main([*words, "html=page.txt"]) == 2
    assert main([*words, "html=page.html", "slices={bound: memory}"]) == 2
    assert not Path("page.html").exists()


def test_the_committed_page_is_the_template_s() -> None:
    page = COMMITTED.read_text()
    assert render(embedded(page)) == page, "render it again: tilewise evaluate html=docs/..."
    assert len(page) < 300_000


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no browser: install chromium, or name one in CHROMIUM")
@pytest.mark.parametrize("number", [None, 3])
def test_a_browser_shows_the_worst_or_the_linked_problem(
    number: int | None, model: TrainedModel, frame: pd.DataFrame, tmp_path: Path
) -> None:
    data: dict[str, Any] = explorer_data(model, frame, FRACTION)
    problems = data["problems"]
    wanted = problems[number] if number is not None else min(problems, key=lambda p: p["efficiency"])
    (tmp_path / "page.html").write_text(render(data))
    address = f"file://{tmp_path}/page.html" + (f"#{number}" if number is not None else "")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom"]
    done = subprocess.run(
        [str(CHROMIUM), *options, f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=3000", address],
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    dom = unescape(done.stdout)
    assert f'<h2 id="words">{wanted["words"]}</h2>' in dom
    assert f"{data['kernels'][wanted['field'][0][0]]}: {100 * wanted['efficiency']:.1f} % of the fastest kernel" in dom
    assert dom.count('class="measured"') == len(wanted["field"])
    assert dom.count("<circle") == dom.count("<option") == len(problems)
    assert f"{len(problems)} of {len(problems)} problems, the worst first" in dom
