"""tilewise collect without a GPU: what would be measured, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewise.cli.main import main

TARGET = "target=grouped_conv_forward_bf16_sm90"


def test_a_dry_run_says_what_it_would_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    settings = (TARGET, "collect.dry_run=true", "collect.part=[0,20]", "collect.devices=[0,1]")
    assert main(["collect", *settings, f"output={tmp_path}/out.parquet"]) == 0
    said = capsys.readouterr().out
    assert "20 problems, 0 of them done; 20 x 130 kernels left" in said
    assert "dropped: depth needs one input channel a group" in said
    assert "2 GPUs" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("setting", "status", "message"),
    [
        ("collect.devices=[x]", 2, "collect.devices must be GPU indices, or [all]"),
        ("collect.budget_s=-1", 2, "budget_s must not be negative, got -1"),
        ("collect.budget_s=0", 4, "3 of 3 problems are left: the budget is spent"),
    ],
)
def test_what_cannot_be_done_has_a_status_and_a_line(
    setting: str, status: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", TARGET, "collect.part=[0,3]", f"output={tmp_path}/out.parquet", setting]) == status
    assert message in capsys.readouterr().err
