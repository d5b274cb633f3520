"""Several addresses for one model are one endpoint (docs/features/replicas.md)."""

from harness.feature import Feature

FEATURE = Feature("replicas", functions={"balanced": "harness.extensions.replicas.replicas:Replicas"})
