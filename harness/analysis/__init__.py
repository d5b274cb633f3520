"""Saved runs read back: tables, comparison, verification."""
