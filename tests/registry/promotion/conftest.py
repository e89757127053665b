from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from registry.promotion.ways import BAD, GOOD, REASON, SMALL, Promote
from small_model import table, write_model
from synthetic import CONV
from tilewise.registry import Version
from tilewise.registry.promotion import Override, Promotion, PromotionRules, promote


@pytest.fixture
def go(registry: str, tmp_path: Path) -> Promote:
    """Promote a model described by the arguments of :func:`small_model.write_model`."""

    def _go(
        model: dict[str, Any], frame: pd.DataFrame | None = None, *, production: bool = False, reason: str = REASON,
        observations: Any = None,
    ) -> Promotion:  # fmt: skip
        folder = write_model(tmp_path / "models" / CONV, **model)
        rules = PromotionRules(SMALL, 0.18, observations, Override(reason, production=production))
        return promote(folder, table() if frame is None else frame, rules, tmp_path / "reports")

    return _go


@pytest.fixture
def refused(go: Promote) -> Version:
    """Return the second version, which the gate refused; the first is in production."""
    go(GOOD)
    bad = go(BAD)
    assert bad.outcome == "refused"
    return bad.version
