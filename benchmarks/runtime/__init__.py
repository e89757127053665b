"""Benchmarks of the dispatcher: latency of a selection, overhead of a launch and of shadowing."""
