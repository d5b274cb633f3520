"""An async, high-concurrency inference harness for benchmarks of user behaviour."""

__version__ = "0.1.0"
