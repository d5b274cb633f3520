"""Show runs side by side: tables, Excel files (`stats`), and a page over all runs (`report` without
a run)."""
