"""Statistics that benchmarks share: pure numpy and scipy, knowing nothing of any benchmark."""
