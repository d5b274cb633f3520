"""The live display: a board that is redrawn in its place, on a terminal or in the output of a notebook's cell."""

from harness.feature import Feature

FEATURE = Feature("dashboard", functions={"live_display": "harness.ui.live:live_display"})
