"""Descriptions of measurement tables, as text tables, PNG plots, and the generated blocks of docs/data.md.

Takes a parquet file or a folder of them; gives one description per target. Imports `data`, `arch`, `ops` and
matplotlib. Used by `tilewise data describe`, which imports it only when needed.
"""

from __future__ import annotations

from tilewise.data.describe._description import describe_tables
from tilewise.data.describe._description_page import fill_page
from tilewise.data.describe._description_plots import write_plots
from tilewise.data.describe._description_tables import TextTable, text_tables

__all__ = [
    "TextTable",
    "describe_tables",
    "fill_page",
    "text_tables",
    "write_plots",
]
