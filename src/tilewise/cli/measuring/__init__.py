"""Verbs that plan, measure, import and check measurements: collect, plan, ingest, data, instances, ck, search, validate.

Each module has `run(cfg)` and uses the faces of `collect`, `data`, `campaigns` and `kernels`. The package exports
nothing.
"""
