"""The page in docs/ has a block for every table and figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from synthetic import CONV, measurements
from tilewise.data.describe import fill_page, text_tables
from tilewise.data.describe._description import describe
from tilewise.data.describe._description_plots import FIGURES
from tilewise.data.describe._description_tables import MOST_REASONS
from tilewise.errors import UsageError
from tilewise.ops import Target

PAGE = Path(__file__).parents[3] / "docs" / "data.md"
TABLE = measurements(CONV, 12, 8, repeats=4)
TABLES = text_tables([describe(TABLE, Target.parse(CONV), 0.2)])


def test_the_page_takes_all_there_is() -> None:
    plots = [Path("docs/images/data") / f"{name}_{op}_sm90.png" for name in FIGURES for op in ("gemm", "conv")]
    filled = fill_page(PAGE.read_text(), Path("docs/data.md"), TABLES, plots)
    for plot in plots:
        assert f"(images/data/{plot.name})" in filled
    assert f"| {CONV} | 12 |" in filled
    assert fill_page(filled, Path("docs/data.md"), TABLES, plots) == filled


def test_figures_stay_where_none_were_drawn() -> None:
    text = PAGE.read_text()
    assert [line for line in fill_page(text, PAGE, TABLES, []).splitlines() if line.startswith("![")] == [
        line for line in text.splitlines() if line.startswith("![")
    ]


def test_a_page_without_a_block_is_said() -> None:
    with pytest.raises(UsageError, match="the page has no block"):
        fill_page("# nothing\n", Path("x.md"), TABLES, [])


def test_every_link_of_the_page_leads_to_a_file() -> None:
    links = [part.split(")")[0].partition("#")[0] for part in PAGE.read_text().split("](")[1:]]
    written = [link for link in links if not link.startswith("reference/")]  # the site's build makes these pages
    assert [link for link in written if not (PAGE.parent / link).is_file()] == []


def test_a_long_tail_of_reasons_is_summed_up() -> None:
    reasons = [f"fault {'abcdefghijklmnopqrst'[i % 20]}" for i in range(len(TABLE))]
    table = TABLE.assign(is_valid=False, status="runtime_error", error=reasons)
    table.loc[0, ["is_valid", "status", "error"]] = [True, "ok", None]
    (failures,) = (t for t in text_tables([describe(table, Target.parse(CONV), 0.2)]) if t.name == "failures")
    assert len(failures.rows) == MOST_REASONS + 1
    assert failures.rows[-1][1] == "others"
    assert sum(int(row[3].replace(",", "")) for row in failures.rows) == len(TABLE) - 1


def test_rows_have_the_headers_width() -> None:
    for table in TABLES:
        assert {len(row) for row in table.rows} <= {len(table.header)}
