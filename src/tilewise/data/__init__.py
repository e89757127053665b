"""Measurement tables: columns, schema, reading, quarantine, splits."""
