"""Text as categories: a row takes a byte or two, and comparing and grouping work on numbers.

Categories stand in the order of their names, so that they sort as text does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals


def categories(values: pd.Series) -> pd.Series:
    """Return text as categories in the order of their names."""
    if values.isna().all():  # pandas' own conversion would look at every empty cell
        none = pd.Categorical.from_codes(np.full(len(values), -1, dtype=np.int8), pd.Index([], dtype="str"))
        return pd.Series(none, index=values.index, name=values.name)
    if not isinstance(values.dtype, pd.CategoricalDtype) or values.cat.categories.dtype != "str":
        return values.astype("str").astype("category")
    return values.cat.reorder_categories(values.cat.categories.sort_values())


def in_words(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with categories as text, which takes pandas' own conversion forty times as long."""
    coded = rows.select_dtypes("category").items()
    words = {str(n): v.cat.categories.array.take(v.cat.codes.to_numpy(), allow_fill=True) for n, v in coded}
    return rows.assign(**words)


def stacked(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of tables of equal columns as one table; pandas would make objects of other categories."""
    if len(parts) == 1:
        return parts[0]
    text = list(dict.fromkeys(name for part in parts for name in part.select_dtypes("category")))
    union = {n: union_categoricals([part[n].astype("category") for part in parts], sort_categories=True) for n in text}
    return pd.concat([part.drop(columns=text) for part in parts]).assign(**union)[list(parts[0])]
