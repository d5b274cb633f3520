"""These tests need the feature `serve`, whose endpoint has a Batch API."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("harness.features.serve") else ["test_processes.py", "test_served.py"]
