"""Benchmarks: the registry, what they share, and the two that ship."""
