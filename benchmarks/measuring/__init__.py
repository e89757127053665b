"""Benchmarks of measuring: how fast kernels are timed, tables imported, and the value of a second of measuring."""
