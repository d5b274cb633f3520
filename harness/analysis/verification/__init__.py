"""What `verify` checks of a run's folder."""
