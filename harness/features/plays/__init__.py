"""Users of saved runs, played again to have their requests and replies; their rows, for other features and Python.

replies   the lines of a run's files
plays     the requests and replies of a user
rows      one a step, one a user or one a response
"""

from harness.feature import Feature

FEATURE = Feature("plays", functions={"rows": "harness.analysis.rows:rows"})
