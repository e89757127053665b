"""Verbs that train, judge and release models: train, evaluate, compare, promote, rollback, shadow, registry.

Each module has `run(cfg)` and uses the faces of `train`, `evaluate`, `gate` and `registry`. The package exports
nothing.
"""
