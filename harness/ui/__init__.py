"""Views of a running schedule."""
