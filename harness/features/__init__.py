"""Capabilities that not every run needs, a folder each; `harness.feature` has the list."""
