"""Importers: measurements that others made, as a table of ours. One file a format."""

from tilewise.data.importers.ingest import Report, ingest, quarantine_path

__all__ = ["Report", "ingest", "quarantine_path"]
