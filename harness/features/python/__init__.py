"""The Python interface: commands as functions, and saved runs as data."""

from harness.feature import Feature

NAMES = ("LoadedRun", "aresume", "arun", "list_runs", "load_run", "reeval", "resume", "run")
FEATURE = Feature("python", functions={name: f"harness.interface:{name}" for name in NAMES})
