"""Comparison of two runs on the users that both have (docs/statistics.md)."""
