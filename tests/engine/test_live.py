"""Running scores: what the display shows, and what is kept for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio
import pytest

from harness.defaults import SHARD_USERS
from harness.engine.running_scores import RunningScores
from harness.model import Record


class Counter:
    """Scores are (`condensed`, number of users); what is merged must have been condensed before."""

    def score(self, shard: Sequence[Record]) -> tuple[bool, int]:
        return False, len(shard)

    def merge(self, a: tuple[bool, int], b: tuple[bool, int]) -> tuple[bool, int]:
        assert a[0], "each shard that came was kept as a whole"
        return False, a[1] + b[1]

    def condense(self, merged: tuple[bool, int]) -> tuple[bool, int]:
        return True, merged[1]

    def running(self, merged: tuple[bool, int]) -> Mapping[str, float | None]:
        assert merged[0]
        return {"users": merged[1]}


@pytest.mark.parametrize("users", [1, SHARD_USERS, 3 * SHARD_USERS + 1])
def test_each_shard_is_condensed_before_the_next_is_merged(users: int) -> None:
    """However many users finish between two looks, all are counted, and none is kept."""
    live = RunningScores(Counter())  # type: ignore[arg-type]

    async def twice() -> None:
        for _ in range(2):
            for number in range(users):
                live.add(Record(str(number), {}))
            await live.advance()

    anyio.run(twice)
    assert (live.users, live.figures) == (2 * users, {"users": 2 * users})
