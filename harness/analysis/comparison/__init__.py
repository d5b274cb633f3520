"""What `compare` reads, works out and says: two runs on the users that both have (docs/statistics.md)."""
