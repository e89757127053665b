"""Quality of labels: find untrustworthy rows, then prepare a table for training or merge tables into a data version.

Takes measurement tables and exclusions files (`NAME.exclusions.yaml`: decisions to leave rows out, with reason and
author); gives good rows, and every other row with the rule that it breaks. Imports `data` and `data.importers`.
Used by `tilewise data`, benchmarks and tests.
"""

from __future__ import annotations

from tilewise.data.quality._exclusions import EXCLUSIONS_METADATA, Exclusion, find_exclusions
from tilewise.data.quality._merge import merge_measurements
from tilewise.data.quality._prepare import (
    Prepared,
    prepare_files,
    prepare_measurements,
    prepared_metadata,
    write_prepared,
)

__all__ = [
    "EXCLUSIONS_METADATA",
    "Exclusion",
    "Prepared",
    "find_exclusions",
    "merge_measurements",
    "prepare_files",
    "prepare_measurements",
    "prepared_metadata",
    "write_prepared",
]
