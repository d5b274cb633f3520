"""Download the tasks files of a benchmark (`fetch`, `run --fetch`), and note in each run where they
are from."""
