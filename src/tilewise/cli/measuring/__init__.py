"""Verbs that build, plan, measure, import and check: ck, collect, plan, ingest, data, instances, search, validate.

Each module has `run(cfg)` and uses the faces of `collect`, `data`, `campaigns` and `kernels`. The package exports
nothing.
"""
