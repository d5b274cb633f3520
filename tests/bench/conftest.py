"""`bench.faults` draws from the faults of the feature `serve`."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("harness.features.serve") else ["test_faults.py"]
