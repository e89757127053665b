"""Measure kernels on a GPU: plan, isolated workers, timing in rounds, a journal to resume from."""
