"""Benchmarks of learning: quality of models, value of each choice in them, and need for data."""
