"""Verbs around the dispatcher: select, explain, cache. They import no training library and need no GPU.

Each module has `run(cfg)` and uses the face of `dispatch`. The package exports nothing.
"""
