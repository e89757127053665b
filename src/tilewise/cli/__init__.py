"""The command line: one module a verb, each with ``run(cfg) -> None`` that composes the rooms."""
