"""Benchmarks of ``@tilewise.autotune`` beside ``triton.autotune``, on the examples in ``examples/autotune``."""
