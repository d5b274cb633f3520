"""Check that a benchmark keeps its contract (`check-benchmark`)."""
