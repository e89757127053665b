"""Benchmarks of tilewise itself, in folders by purpose; README.md lists every script."""
