"""Benchmarks of the registry: time, memory and error rates of a gate decision, and requests of MLflow's pages."""
