"""All scenarios by name; those on servers need the extra of that name."""

from __future__ import annotations

from extras import has_extra
from faults import races, scenarios
from faults.schedule import Scenario

SCENARIOS: dict[str, Scenario] = {**scenarios.SCENARIOS, **races.SCENARIOS}
if has_extra("servers"):
    from faults import network

    SCENARIOS |= network.SCENARIOS
