"""Options that take part in runs; a folder each, which can be deleted."""
