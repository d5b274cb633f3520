"""What `stats` reads and lays side by side: the reports of all runs, as tables (docs/design.md, section 7)."""
