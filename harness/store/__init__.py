"""Files of a run: logs that survive their writer, a lock, a manifest, the index of a tasks file."""
