"""Show what a run would send, and send nothing (`run --dry-run`)."""
