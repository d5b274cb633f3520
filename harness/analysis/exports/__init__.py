"""`export`: saved runs as rows for other programs, and as logs of Inspect."""
