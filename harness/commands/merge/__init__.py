"""Combine the parts of a run (`merge`)."""
