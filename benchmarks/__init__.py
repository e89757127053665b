"""Benchmarks of tilewise itself; README.md has the commands, docs/benchmarks.md the figures."""
