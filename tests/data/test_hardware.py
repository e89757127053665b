"""Properties of a GPU fill the columns of the device, or the import stops with the rule that they break."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ck_files
from tilewise.data import read_measurements
from tilewise.data.importers import ingest_file
from tilewise.errors import DataError
from tilewise.ops import Target

TARGET = Target.parse("grouped_conv_forward_bf16_gfx950")
GPU = {
    **{"name": "AMD Instinct MI355X", "gcnArchName": "gfx950:sramecc+:xnack-", "multiProcessorCount": 256},
    **{"clockRate": 2400000, "memoryClockRate": 2000000, "totalGlobalMem": 309220868096, "driver": "6.16.6"},
}


def imported(folder: Path, properties: Any) -> Path:
    """Import a CSV with a file of properties beside it."""
    (folder / "runs.csv").write_text("\n".join(ck_files.csv_lines(ck_files.conv_problems(3))) + "\n")
    (folder / "gpu.json").write_text(properties if isinstance(properties, str) else json.dumps(properties))
    ingest_file(folder / "runs.csv", TARGET, folder / "out.parquet", hardware=folder / "gpu.json")
    return folder / "out.parquet"


def test_they_fill_the_columns_of_the_device(tmp_path: Path) -> None:
    rows = read_measurements(imported(tmp_path, GPU), TARGET)
    assert (rows["hw_device"] == GPU["name"]).all()
    assert (rows["driver"] == "6.16.6").all()
    assert rows["hw_uuid"].isna().all()


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ("{", r"gpu\.json: must be a readable JSON file"),
        ([1], r"must be a JSON object of hardware properties"),
        ({"name": "x"}, "gcnArchName is missing; capture it"),
        ({**GPU, "gcnArchName": "gfx942"}, "must be the target's arch gfx950, got gfx942; give arch=gfx942"),
        ({**GPU, "multiProcessorCount": 128}, "must be 256, as conf/arch/gfx950.yaml has it, got 128"),
        ({**GPU, "clockRate": -1}, "clockRate must be a positive whole number, got -1"),
        ({**GPU, "clockRate": True}, "clockRate must be a positive whole number, got True"),
        ({**GPU, "name": " "}, "name must be a text that is not empty"),
        ({**GPU, "colour": "red"}, "'colour' is not a hardware property; known are gcnArchName, name"),
    ],
)
def test_a_broken_rule_is_named_and_nothing_is_written(tmp_path: Path, properties: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        imported(tmp_path, properties)
    assert not (tmp_path / "out.parquet").exists()


def test_a_table_with_its_own_device_takes_no_other(tmp_path: Path) -> None:
    table = imported(tmp_path, GPU)
    with pytest.raises(DataError, match="states its GPU itself; leave out hardware="):
        ingest_file(table, TARGET, tmp_path / "again.parquet", hardware=tmp_path / "gpu.json")
