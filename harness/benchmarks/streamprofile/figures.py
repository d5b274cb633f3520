"""What `compare` compares of StreamProfileBench: the macro averages (docs/design.md, section 8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from harness.benchmarks.records import made_of, text
from harness.benchmarks.streamprofile import scores
from harness.benchmarks.streamprofile.metrics import ERRORS, F1, NAMES
from harness.model import Record
from harness.scoring.bootstrap import Array
from harness.scoring.paired import Mask

PLACES = [scores.INDEX["all", name] for name in NAMES]


class ProfileFigures:
    """Means over users of each user's values. A user contributes its values, 0 for undefined ones, and whether each
    is defined; that depends on the task alone, so a user has the same figures in every run."""

    names: tuple[str, ...] = NAMES
    main: tuple[str, ...] = ("Recall", F1)
    lower = frozenset(ERRORS)
    uses: Mask = np.hstack([np.eye(len(NAMES), dtype=np.bool_)] * 2)

    def contributions(self, records: Sequence[Record]) -> Array:
        found = [block.rows for block in made_of(scores.score, records).blocks if block.rows is not None]
        rows = np.concatenate([np.empty((0, len(scores.COLUMNS))), *found])[:, PLACES]
        defined = ~np.isnan(rows)
        return np.hstack([np.where(defined, rows, 0.0), defined])

    def outcomes(self, records: Sequence[Record]) -> list[Counter[str]]:
        return [Counter(text(step["outcome"]) for step in record.data["steps"]) for record in records]

    def values(self, totals: Array) -> Array:
        sums, counts = np.hsplit(totals, 2)
        means: Array = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
        return means
