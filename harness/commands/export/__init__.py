"""Write saved runs for other programs, and send them to trackers of experiments (`export`)."""

from __future__ import annotations

TRACKERS = ("wandb", "mlflow")
"""Trackers of experiments that runs can be sent to; each is an extra package of the same name."""
