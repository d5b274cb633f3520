"""Check that the folders of runs are complete and unchanged (`verify`)."""
