"""Report what ends a process from inside: code of an agent file, or a library (docs/features/supervision.md)."""

from harness.feature import Feature

FEATURE = Feature("supervision", functions={"supervise": "harness.features.supervision.supervision:supervise"})
