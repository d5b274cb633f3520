"""Measurements and campaigns: what takes longer than a test should."""
