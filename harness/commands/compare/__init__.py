"""Compare runs on the users that they share, with significance tests (`compare`)."""
