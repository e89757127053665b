from __future__ import annotations

import pytest

from tilewise.errors import UsageError
from tilewise.markdown import fill, table

PAGE = "# A page\n\n<!-- begin one -->\nold\nlines\n<!-- end one -->\n\ntext\n\n<!-- begin two -->\n<!-- end two -->\n"


def test_a_table_has_its_words_left_and_its_figures_right() -> None:
    assert table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |\n"


def test_a_block_is_replaced_and_the_rest_stays() -> None:
    filled = fill(PAGE, {"one": "new\n"})
    assert filled == PAGE.replace("old\nlines", "new")
    assert fill(filled, {"one": "new\n"}) == filled


def test_what_looks_like_a_back_reference_stays_as_it_is() -> None:
    assert r"\1 \g<name>" in fill(PAGE, {"two": r"\1 \g<name>"})


def test_a_missing_block_is_said() -> None:
    with pytest.raises(UsageError, match="no block three"):
        fill(PAGE, {"three": ""})
