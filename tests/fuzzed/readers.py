"""Every reader of the project that is fuzzed, by name."""

from __future__ import annotations

from fuzzed import artefacts, caches, collect_inputs, records, tables

READERS = {**tables.READERS, **collect_inputs.READERS, **caches.READERS, **records.READERS, **artefacts.READERS}
