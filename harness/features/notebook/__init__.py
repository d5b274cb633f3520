"""The display of a notebook: the board in the output of a cell."""

from harness.feature import Feature

FEATURE = Feature("notebook", functions={"notebook_display": "harness.features.notebook.notebook:NotebookDisplay"})
